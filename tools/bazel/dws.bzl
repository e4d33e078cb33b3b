"""The rules of this project: thin wrappers over the native ones, with one set of warnings.

    load("//tools/bazel:dws.bzl", "dws_cc_library", "dws_cc_test")
"""

load("//tools/bazel:warnings.bzl", "WARNINGS")

def _precompiled(name, copts):
    """The flags and the dependency that make a target start from a precompiled header.

    Not with flags for a processor: the compiler would refuse the header, and parse its text instead.
    """
    if [copt for copt in copts if copt.startswith("-m")]:
        return [], []
    label = "//tools/bazel/precompiled:" + name
    off = {
        "//tools/bazel/precompiled:asked_off": [],
        "//tools/bazel/precompiled:optimised": [],
    }
    flags = dict(off)
    flags["//conditions:default"] = [
        "-include",
        "tools/bazel/precompiled/{}.h".format(name),
        # False alarms of gcc 12 in std::string, which it reports only with a precompiled header.
        "-Wno-array-bounds",
        "-Wno-stringop-overflow",
        "-Wno-stringop-overread",
    ]
    deps = dict(off)
    deps["//conditions:default"] = [label]
    return select(flags), select(deps)

def dws_cc_library(name, copts = [], deps = [], **kwargs):
    flags, precompiled = _precompiled("product", copts)
    native.cc_library(
        name = name,
        copts = WARNINGS + copts + flags,
        linkstatic = True,  # --dynamic_mode=off: nothing would load a shared library of it
        deps = deps + precompiled,
        **kwargs
    )

def dws_cc_folder(name, deps, visibility = [], exclude = [], srcs = [], failpoint_srcs = [], **kwargs):
    """All C++ of a folder as one library: who may include it is who sees it, and tests may.

    Args:
      name: the folder's.
      deps: every folder that its files include.
      visibility: the folders above it.
      exclude: files that are not part of it.
      srcs: generated files beside the folder's own.
      failpoint_srcs: its .cc that reach a failpoint (common/base/failpoint.h), which programs with failpoints
        compile again: `failpoint_srcs` is a filegroup of them. tools/tidy holds the list.
      **kwargs: of dws_cc_library.
    """
    if failpoint_srcs:
        native.exports_files(failpoint_srcs, visibility = ["//tests:__subpackages__"])
        native.filegroup(
            name = "failpoint_srcs",
            srcs = failpoint_srcs,
            visibility = [
                "//receiver_daemon:__pkg__",
                "//sender_daemon:__pkg__",
                "//tests:__subpackages__",
            ],
        )
    dws_cc_library(
        name = name,
        srcs = native.glob(["*.cc"], exclude = exclude) + srcs,
        hdrs = native.glob(["*.h", "*.inc"], exclude = exclude),
        deps = deps,
        visibility = visibility if "//visibility:public" in visibility else visibility + ["//tests:__subpackages__"],
        **kwargs
    )

def dws_cc_binary(name, copts = [], deps = [], **kwargs):
    flags, precompiled = _precompiled("product", copts)
    native.cc_binary(name = name, copts = WARNINGS + copts + flags, deps = deps + precompiled, **kwargs)

def dws_cc_test(name, main = None, srcs = [], copts = [], data = [], deps = [], **kwargs):
    """A Catch2 test: `#include <catch2/catch.hpp>` and TEST_CASEs, no main.

    Args:
      name: of the test.
      main: the file with the cases; `<name>.cc`.
      srcs: what it is compiled with.
      copts: of cc_test.
      data: of cc_test.
      deps: the folders that it tests; what these depend on need not be named.
      **kwargs: of cc_test.
    """
    flags, precompiled = _precompiled("catch", copts)
    native.cc_test(
        name = name,
        srcs = [main or name + ".cc"] + srcs,
        copts = WARNINGS + copts + flags,
        data = data + ["//tests:tsan.supp"],
        deps = deps + ["//tests:catch_main"] + precompiled,
        **kwargs
    )

def dws_cc_tests(names, **kwargs):
    """A dws_cc_test for each name."""
    for name in names:
        dws_cc_test(name = name, **kwargs)

def dws_proto_library(name, srcs, deps = [], grpc = True, visibility = None):
    """A C++ library of the messages, and with `grpc` of the services, in `srcs`.

    Include as "<package>/foo.pb.h" and "<package>/foo.grpc.pb.h"; a .proto imports another by its
    path from the top of the tree.

    Args:
      name: the cc_library. `<name>_srcs` is a filegroup of the .proto files and those they import.
      srcs: .proto files of this package.
      deps: other dws_proto_library targets, as "//package:name" or ":name".
      grpc: False leaves out the services, and with them the dependency on gRPC.
      visibility: of the library and of the .proto files.
    """
    native.filegroup(
        name = name + "_srcs",
        srcs = srcs + [dep + "_srcs" for dep in deps],
        visibility = visibility,
    )

    suffixes = [".pb"] + ([".grpc.pb"] if grpc else [])
    stems = [src[:-len(".proto")] for src in srcs]
    headers = [stem + suffix + ".h" for stem in stems for suffix in suffixes]
    sources = [stem + suffix + ".cc" for stem in stems for suffix in suffixes]
    flags = ["--cpp_out=$(GENDIR)"]
    if grpc:
        flags += [
            "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin",
            "--grpc_out=$(GENDIR)",
        ]

    # The pragma turns warnings off in generated headers.
    native.genrule(
        name = name + "_gen",
        srcs = [name + "_srcs"],
        outs = headers + sources,
        cmd = " && ".join([
            "/usr/bin/protoc -I. {} {}".format(
                " ".join(flags),
                " ".join([native.package_name() + "/" + src for src in srcs]),
            ),
            "for header in $(OUTS); do case $$header in *.h) " +
            "sed -i '1i #pragma GCC system_header' $$header;; esac; done",
        ]),
        visibility = ["//visibility:private"],
    )

    native.cc_library(
        name = name,
        srcs = sources,
        hdrs = headers,
        copts = ["-w"],
        visibility = visibility,
        deps = deps + ["@debian//:grpc++" if grpc else "@debian//:protobuf"],
    )

def dws_py_proto(name, protos, proto_package, out, srcs, visibility = None):
    """Python modules of .proto files, importable inside the package they are put in.

    Args:
      name: a filegroup of foo_pb2.py and foo_pb2_grpc.py for each proto, and the package's __init__.py.
      protos: names of .proto files, "foo.proto".
      proto_package: the folder they are in, "proto".
      out: the folder, below this package, they go to: "dws/_proto". Their Python package has its name.
      srcs: labels of the .proto files and all they import: "//proto:foo_proto_srcs".
      visibility: of the filegroup.
    """
    stems = [proto[:-len(".proto")] for proto in protos]
    modules = [stem + suffix for stem in stems for suffix in ["_pb2.py", "_pb2_grpc.py"]]
    outs = ["{}/{}".format(out, module) for module in modules] + [out + "/__init__.py"]

    # protoc writes `from proto import foo_pb2`, after the folder of the .proto file.
    native.genrule(
        name = name,
        srcs = srcs,
        outs = outs,
        cmd = " && ".join([
            "gen=$$(mktemp -d)",
            "/usr/bin/protoc -I. --python_out=$$gen --grpc_python_out=$$gen " +
            "--plugin=protoc-gen-grpc_python=/usr/bin/grpc_python_plugin " +
            " ".join([proto_package + "/" + proto for proto in protos]),
            "sed -i 's/^from {} import /from {} import /' $$gen/{}/*.py".format(
                proto_package.replace("/", "."),
                out.replace("/", "."),
                proto_package,
            ),
            "cp $$gen/{}/*.py $(RULEDIR)/{}/".format(proto_package, out),
            "touch $(RULEDIR)/{}/__init__.py".format(out),
            "rm -r $$gen",
        ]),
        visibility = visibility,
    )

def dws_py_test(name, srcs = [], data = [], deps = [], args = [], **kwargs):
    """A unittest script: `<name>.py` ends in unittest.main(), and runs under /usr/bin/python3.

    It finds the packages of //clients/python and, by path from the top, other Python files. Its
    working directory is the runfiles' top: data is opened by the path it has in the tree.

    Args:
      name: of the test.
      srcs: other Python files it imports.
      data: binaries and files it uses.
      deps: filegroups of Python files, as //clients/python:dws.
      args: passed to the script.
      **kwargs: of sh_test.
    """
    main = name + ".py"
    native.sh_test(
        name = name,
        srcs = ["//tools/bazel:py_test.sh"],
        args = ["$(location {})".format(main)] + args,
        data = [main] + srcs + data + deps + ["//tests:tsan.supp"],
        **kwargs
    )

def dws_py_tests(names, **kwargs):
    """A dws_py_test for each name."""
    for name in names:
        dws_py_test(name = name, **kwargs)

_PROGRAMS = {
    "dws-receiver": "//receiver_daemon:dws-receiver",
    "dws-receiver-failpoints": "//receiver_daemon:dws-receiver-failpoints",
    "dws-sender": "//sender_daemon:dws-sender",
    "dws-sender-failpoints": "//sender_daemon:dws-sender-failpoints",
    "dwsctl": "//tools/dwsctl",
}

def dws_job_test(
        name,
        size = "medium",
        srcs = [],
        programs = ["dws-receiver", "dws-sender"],
        data = [],
        tags = [],
        deps = [],
        **kwargs):
    """A dws_py_test that runs whole daemons, with the Python package and tests/integration's cluster.py and integration_case.py.

    Args:
      name: of the test.
      size: of the test.
      srcs: other Python files it imports.
      programs: those it runs.
      data: files it uses.
      tags: besides no-tsan: over a daemon's whole life ThreadSanitizer reports gRPC's own threads, which are not
        instrumented. The unit tests run the daemons' parts, reactors included, under it.
      deps: filegroups of Python files.
      **kwargs: of dws_py_test.
    """
    dws_py_test(
        name = name,
        size = size,
        srcs = srcs + ["//tests/integration:integration_case"],
        data = data + [_PROGRAMS[program] for program in programs],
        tags = tags + ["no-tsan"],
        deps = deps + ["//clients/python:dws"],
        **kwargs
    )

def dws_job_tests(names, **kwargs):
    """A dws_job_test for each name."""
    for name in names:
        dws_job_test(name = name, **kwargs)
