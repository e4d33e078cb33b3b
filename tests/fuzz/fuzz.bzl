"""Fuzz targets: load("//tests/fuzz:fuzz.bzl", "dws_fuzz_target")"""

load("//tools/bazel:dws.bzl", "dws_cc_binary", "dws_cc_library", "dws_cc_test")

def dws_fuzz_target(name, deps):
    """`<name>.cc` defines LLVMFuzzerTestOneInput.

    Makes `<name>`, which libFuzzer drives (--config=fuzz only, see tools/fuzz.sh), and
    `<name>_replay`, a test of the corpus with any compiler.
    """
    corpus = "corpus/{}.pack".format(name)
    dws_cc_library(
        name = name + "_target",
        testonly = True,
        srcs = [name + ".cc"],
        # No header declares LLVMFuzzerTestOneInput.
        copts = ["-Wno-missing-declarations"],
        deps = deps,
    )
    dws_cc_binary(
        name = name,
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [name + "_target"],
    )
    dws_cc_test(
        name = name + "_replay",
        main = "corpus_replay.cc",
        data = [corpus],
        local_defines = ['DWS_FUZZ_CORPUS=\\"tests/fuzz/{}\\"'.format(corpus)],
        deps = [name + "_target"],
    )
