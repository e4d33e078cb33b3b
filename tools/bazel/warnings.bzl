"""The warnings that all of our C++ is compiled with."""

# All warnings are errors in our code; system headers and generated headers are exempt.
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wshadow",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Wmissing-declarations",
    "-Wextra-semi",
    "-Wvla",
    # Designated initialisers leave the other fields at their defaults on purpose.
    "-Wno-missing-field-initializers",
    # False alarms of gcc 12 on std::string operator+ (gcc bug 105651).
    "-Wno-restrict",
]
