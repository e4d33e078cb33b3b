"""A library that the system has installed."""

def system_library(name, libs = [], static_libs = [], static = None, defines = [], deps = []):
    """Links `libs` (without -l), in the order given, before those of `deps`.

    Args:
      name: of the cc_library.
      libs: shared libraries.
      static_libs: with --config=static, archives that `libs` need besides their own; any order.
      static: with --config=static, linker options in place of all that. None: the archives.
      defines: for whoever includes the library's headers.
      deps: other system_library targets.
    """
    if static == None:
        # A group, because archives refer to each other in cycles.
        static = [
            "-Wl,--start-group",
        ] + ["-l:lib{}.a".format(lib) for lib in libs + static_libs] + [
            "-Wl,--end-group",
        ] if libs else []
    native.cc_library(
        name = name,
        defines = defines,
        linkopts = ["-pthread"] + select({
            ":static": static,
            "//conditions:default": ["-l" + lib for lib in libs],
        }),
        deps = deps,
    )
