"""A precompiled header: what nearly every file includes of the system's headers, parsed once.

    precompiled_header(name = "product", header = "product.inc")

A target that depends on it and compiles with `-include <package>/product.h` starts from the parsed state. The
compiler uses it only if the flags are the same; with others it reads the header as text.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("//tools/bazel:warnings.bzl", "WARNINGS")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(ctx = ctx, cc_toolchain = toolchain)
    text = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.symlink(output = text, target_file = ctx.file.header)
    parsed = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = text.path,
        output_file = parsed.path,
        # Warning flags matter, too: -Wvla removes a macro. -x is before the source on the command line.
        user_compile_flags = (ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + WARNINGS +
                              ["-x", "c++-header"]),
        use_pic = True,  # as all objects of programs and tests
    )
    ctx.actions.run(
        mnemonic = "CppPrecompile",
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        inputs = depset([ctx.file.header, text], transitive = [toolchain.all_files]),
        outputs = [parsed],
    )
    headers = depset([text, parsed])
    return [
        DefaultInfo(files = headers),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = headers)),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "header": attr.label(mandatory = True, allow_single_file = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    fragments = ["cpp"],
    incompatible_use_toolchain_transition = True,
)
