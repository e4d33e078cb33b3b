"""The CUDA toolkit of this machine as @cuda: looked for when a target of it is needed, not before.

    @cuda//:nvcc              the compiler, for genrules
    @cuda//:headers           <cuda.h>, and <nccl.h> where NCCL came with the toolkit
    @cuda//:stubs/libcuda.so  the driver's symbols without the driver, for a test of our declarations

Only builds with --config=cuda need it. DWS links no library of it.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

exports_files([
    "nvcc.sh",
    "stubs/libcuda.so",
])

sh_binary(
    name = "nvcc",
    srcs = ["nvcc.sh"],
)

cc_library(
    name = "headers",
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/crt/*",
    ]),
    includes = ["include"],
)
"""

def _cuda_toolkit_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    for path in ["bin/nvcc", "bin/ptxas", "bin/fatbinary", "include/cuda.h", "lib64/stubs/libcuda.so"]:
        if not ctx.path(home + "/" + path).exists:
            fail(("{}/{}: not found. --config=cuda needs the CUDA toolkit 13: install it, or set " +
                  "CUDA_HOME to where it is; without --config=cuda nothing of it is needed").format(
                home,
                path,
            ))
    ctx.file("nvcc.sh", "#!/bin/bash\nexec {}/bin/nvcc \"$@\"\n".format(home), executable = True)
    ctx.symlink(home + "/include", "include")
    ctx.symlink(home + "/lib64/stubs/libcuda.so", "stubs/libcuda.so")
    ctx.file("BUILD.bazel", _BUILD)

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    environ = ["CUDA_HOME"],
    local = True,
)
