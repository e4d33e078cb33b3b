"""A library that the system has installed."""

def system_library(name, libs = [], defines = [], deps = []):
    """Links `libs` (without -l), in the order given, before those of `deps`."""
    native.cc_library(
        name = name,
        defines = defines,
        linkopts = ["-pthread"] + ["-l" + lib for lib in libs],
        deps = deps,
    )
