"""The source tree keeps the style's rules, and each rule sees what it is for."""

import os
import unittest
from pathlib import Path

from tools.tidy import (
    commit_rules, exceptions, format_rules, include_rules, room_rules, size_rules, text_rules, tree_rules)
from tools.tidy.source_tree import SourceFile, SourceTree, read_tree
from tools.tidy.tidy import find_violations

FILES_MIN = 300  # a scan that finds fewer looked in the wrong place


def source_root() -> Path:
    """The real top of the tree: the runfiles hold links to it, and only what the target names."""
    return Path(os.path.realpath("WORKSPACE")).parent


def rules(violations) -> list[str]:
    return [violation.rule for violation in violations]


class TreeTest(unittest.TestCase):
    """The tree itself."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.tree = read_tree(source_root())

    def expect_none(self, violations) -> None:
        found = [str(violation) for violation in violations]
        if found:
            self.fail(f"{len(found)} violations:\n" + "\n".join(found))

    def test_it_was_scanned(self) -> None:
        self.assertGreater(len(self.tree.files), FILES_MIN)
        self.assertGreater(len(list(self.tree.cpp())), FILES_MIN // 2)

    def test_it_keeps_the_rules(self) -> None:
        self.expect_none(find_violations(self.tree))

    @unittest.skipUnless(format_rules.available(), "clang-format is not installed")
    def test_it_is_formatted(self) -> None:
        self.expect_none(format_rules.check(self.tree))


class IncludeTest(unittest.TestCase):
    def test_headers_of_vendors_and_messages_have_homes(self) -> None:
        def check(path: str, included: str) -> list[str]:
            return rules(include_rules.check_file(SourceFile(path, f"#include {included}\n")))

        for path, included in (("common/memory/a.cc", "<cuda_runtime.h>"), ("sender_daemon/a.cc", "<zstd.h>"),
                               ("common/ledger/a.cc", "<grpcpp/grpcpp.h>"), ("common/model/a.h", "<absl/status/status.h>"),
                               ("common/base/status_log.cc", "<spdlog/spdlog.h>"),
                               ("common/ledger/a.cc", '"proto/delta.pb.h"'),
                               ("common/proto_convert/a.h", '"proto/sync.grpc.pb.h"')):
            self.assertEqual(check(path, included), ["header-home"], included)
        for path, included in (("common/delta/bits/checksum.cc", "<xxhash.h>"), ("common/base/a.cc", "<vector>"),
                               ("common/delta/objects/manifest.cc", '"proto/delta.pb.h"')):
            self.assertEqual(check(path, included), [], included)


class SizeTest(unittest.TestCase):
    def test_files(self) -> None:
        def check(path: str, lines: int, listed: dict) -> list:
            return rules(size_rules.check_file_size(SourceFile(path, "\n" * lines), listed))

        self.assertEqual(check("a.h", 200, {}), [])
        self.assertEqual(check("a.h", 201, {}), ["file-size"])
        self.assertEqual(check("a.cc", 500, {}), [])
        self.assertEqual(check("a.cc", 501, {}), ["file-size"])
        self.assertEqual(check("a.cc", 320, {"a.cc": 320}), [])
        self.assertEqual(check("a.h", 221, {"a.h": 220}), ["file-size"])
        self.assertEqual(check("a.cc", 501, {"a.cc": 600}), ["file-size"])

    def test_an_exception_that_is_not_needed_is_a_violation(self) -> None:
        tree = SourceTree(Path("."), [SourceFile("a.cc", "\n")], [])
        self.assertEqual(rules(size_rules.check(tree, {"a.cc": 400}, {})), ["stale-exception"])

    def test_methods_of_classes(self) -> None:
        def check(count: int, listed: dict) -> list:
            code = ("class A {\n public:\n  explicit A(int a) : a_(a) {}\n"
                    + "".join(f"  Result<int> F{n}(std::function<void(int)> f) const REQUIRES(m_);\n" for n in range(count - 1))
                    + " private:\n  struct Row {\n    int Size() const;\n  };\n  int a_ GUARDED_BY(m_) = 0;\n};\n")
            return rules(size_rules.check_classes(SourceTree(Path("."), [SourceFile("a.h", code)], []), listed))

        self.assertEqual(check(25, {}), [])
        self.assertEqual(check(26, {}), ["class-size"])
        self.assertEqual(check(26, {"A": 26}), [])
        self.assertEqual(check(27, {"A": 26}), ["class-size"])
        self.assertEqual(check(25, {"A": 26}), ["stale-exception"])

    def lengths(self, code: str) -> list:
        return [count for _, count, _ in size_rules.cpp_functions(SourceFile("a.cc", code).code)]

    def test_functions_are_found_in_namespaces_and_types(self) -> None:
        code = ("namespace a {\nclass B final : public C {\n public:\n  B() : x_(1) {}\n"
                "  int F() const {\n    if (x_) {\n    }\n  }\n  struct D { int y = 0; };\n};\n"
                "Result<int> G(\n    int a) {\n  auto f = [] {\n  };\n}\n}\n")
        self.assertEqual(self.lengths(code), [1, 4, 5])

    def test_braces_in_text_comments_and_macros_do_not_count(self) -> None:
        code = ('void F() {\n  // {\n  G("{", \'{\', 200\'000, 1\'0);\n}\n'
                '#define M(x) \\\n  void x() {\nvoid H() {\n}\n')
        self.assertEqual(self.lengths(code), [4, 2])

    def test_initialisers_are_no_functions(self) -> None:
        self.assertEqual(self.lengths("constexpr int kA[] = {\n1,\n};\nenum class E { kA };\n"), [])

    def test_long_functions(self) -> None:
        long = SourceFile("a.cc", "void F() {\n" + "\n" * 69 + "}\n")
        fits = SourceFile("a.cc", "void F() {\n" + "\n" * 68 + "}\n")
        self.assertEqual(rules(size_rules.check_functions(long)), ["function-size"])
        self.assertEqual(rules(size_rules.check_functions(fits)), [])
        python = SourceFile("a.py", "def f():\n" + "    x = 1\n" * 70)
        self.assertEqual(rules(size_rules.check_functions(python)), ["function-size"])


class TextTest(unittest.TestCase):
    def test_names(self) -> None:
        for code in ("class StreamManager {\n", "struct FooInfo;\nstruct FooInfo {\n",
                     "class ByteUtils final : B {\n", "using RowData = int;\n"):
            self.assertEqual(rules(text_rules.check_names(SourceFile("a.h", code))), ["names"], code)
        for code in ("class Informer {\n", "class Page : public VendorHandler {\n", "// class FooInfo {\n"):
            self.assertEqual(rules(text_rules.check_names(SourceFile("a.h", code))), [], code)
        self.assertEqual(
            rules(text_rules.check_names(SourceFile("a.py", "class TestHelper:\n    pass\n"))), ["names"])

    def test_calls(self) -> None:
        for code in ("std::this_thread::sleep_for(x);", "throw 1;", "absl::Mutex m;", "std::mutex m;"):
            self.assertEqual(rules(text_rules.check_calls(SourceFile("a.cc", code))), ["calls"], code)
        self.assertEqual(rules(text_rules.check_calls(SourceFile("a.cc", 'f("throw"); // throw'))), [])
        self.assertEqual(rules(text_rules.check_calls(SourceFile("common/base/threads/mutex.h", "std::mutex m;"))), [])

    def test_columns_of_comments(self) -> None:
        for text, wide in (("// " + "x" * 97, False), ("// " + "x" * 98, True), ("int x;  // " + "y " * 50, True),
                           ("    R\"(" + "// " * 40 + ")\",", False)):
            self.assertEqual(bool(list(text_rules.check_comment_columns(SourceFile("a.h", text + "\n")))), wide, text)

    def test_tops(self) -> None:
        good = "// What it is.\n#pragma once\n"
        self.assertEqual(rules(text_rules.check_top(SourceFile("a.h", good))), [])
        self.assertEqual(rules(text_rules.check_top(SourceFile("a.h", "#pragma once\n"))),
                         ["file-comment", "file-comment"])
        self.assertEqual(rules(text_rules.check_top(SourceFile("a.h", "// What it is.\n"))), ["file-comment"])
        self.assertEqual(rules(text_rules.check_top(SourceFile("a.py", "x = 1\n"))), ["file-comment"])
        self.assertEqual(rules(text_rules.check_top(SourceFile("a.cc", "int x;  // of all\n"))), ["file-comment"])
        self.assertEqual(rules(text_rules.check_top(SourceFile("a.cc", "int y;\n// Why.\nint x;\n"))), [])

    def test_words(self) -> None:
        for text in ("see /wo" + "rk/main", "fixes iss" + "ue 12", "from py" + "pi.org"):
            self.assertEqual(rules(text_rules.check_words(SourceFile("a.md", text))), ["foreign-words"])
        self.assertEqual(rules(text_rules.check_words(SourceFile("a.md", "the framework/library"))), [])


class TreeRulesTest(unittest.TestCase):
    def tree(self, files: dict, folders: list) -> SourceTree:
        return SourceTree(Path("."), [SourceFile(path, text) for path, text in files.items()], folders)

    def folders(self, files: dict) -> list:
        folders = {str(parent) for path in files for parent in Path(path).parents} - {"."}
        return [(violation.path, violation.message.split(":")[0])
                for violation in tree_rules.check_folders(self.tree(files, sorted(folders)))]

    def test_each_folder_says_what_is_in_it(self) -> None:
        silent = "says nowhere what is in it"
        files = {"a/BUILD.bazel": "# Things.\n#   deep/   more\nload()\n", "a/deep/x.cc": "",
                 "a/deep/deeper/y.cc": "", "b/README.md": "", "tests/a/BUILD.bazel": "load()"}
        self.assertEqual(self.folders(files), [])
        self.assertEqual(self.folders({**files, "a/new/z.cc": ""}), [("a/new", silent)])
        self.assertEqual(self.folders({**files, "c/BUILD.bazel": "load()"}), [("c", silent)])
        self.assertEqual(self.folders({**files, "tests/other/t.cc": ""}), [("tests/other", silent)])
        gone = self.folders({"a/BUILD.bazel": "# Things.\n#   gone/   more\n"})
        self.assertEqual(gone, [("a/BUILD.bazel", "`a/gone` is described and does not exist")])

    def test_public_targets_are_listed(self) -> None:
        build = {"a/BUILD.bazel": 'visibility = ["//visibility:' + 'public"],\n'}
        self.assertEqual(rules(tree_rules.check_visibility(self.tree(build, []), frozenset())), ["visibility"])
        self.assertEqual(rules(tree_rules.check_visibility(self.tree(build, []), frozenset({"a"}))), [])
        self.assertEqual(rules(tree_rules.check_visibility(self.tree({}, []), frozenset({"a"}))),
                         ["stale-exception"])

    def test_a_test_that_no_target_names_is_seen(self) -> None:
        files = {"tests/a/BUILD.bazel": '"x_test"', "tests/a/x_test.cc": "", "tests/a/y_test.cc": ""}
        found = list(tree_rules.check_tests_run(self.tree(files, [])))
        self.assertEqual([violation.path for violation in found], ["tests/a/y_test.cc"])

    def test_a_document_that_is_not_there_is_seen(self) -> None:
        tree = self.tree({"docs/here.md": "", "a.h": "// here.md, gone.md\n"}, [])
        found = list(tree_rules.check_documents(tree))
        self.assertEqual([violation.message for violation in found], ["there is no gone.md"])

    def test_a_quoted_test_that_is_not_there_is_seen(self) -> None:
        page = '"not a test"\n| rule | test |\n|---|---|\n| 1 | a_test "one"; b_test.py "two words", "gone" |\n\n"nor this"\n'
        tree = self.tree({"docs/protocol.md": page, "tests/a_test.cc": 'TEST_CASE(\n    "o"\n    "ne", "[x]")',
                          "tests/b_test.py": "def test_two_words(self):"}, [])
        found = list(tree_rules.check_quoted_tests(tree))
        self.assertEqual([violation.message for violation in found], ['no test is called "gone"'])


class CommitRulesTest(unittest.TestCase):
    def test_subjects(self) -> None:
        def check(subject: str) -> list:
            return rules(commit_rules.check_subject("c", subject))

        self.assertEqual(check("common/base: say why a file cannot be read"), [])
        self.assertEqual(check("receiver: " + "x" * 62), [])
        self.assertEqual(check("receiver: " + "x" * 63), ["commit-subject"])
        self.assertEqual(check("Mended things"), ["commit-subject"])


class RoomRulesTest(unittest.TestCase):
    def tree(self, files: dict) -> SourceTree:
        return SourceTree(Path("."), [SourceFile(path, text) for path, text in files.items()], [])

    def test_a_folder_of_layers_is_a_target_of_its_own(self) -> None:
        files = {"common/a/x.cc": "", "common/a/BUILD.bazel": "", "common/a/b/y.h": "", "tools/z.cc": ""}
        found = list(room_rules.check_targets(self.tree(files)))
        self.assertEqual([violation.path for violation in found], ["common/a/b"])
        files = {"common/a/x.cc": "", "common/a/BUILD.bazel": 'srcs = glob(["b/*.cc"])'}
        self.assertEqual(rules(room_rules.check_targets(self.tree(files))), ["folder-target"])

    def test_a_cycle_of_folders_of_tools_is_seen_over_any_way(self) -> None:
        files = {"tools/a/x.h": '#include "tools/b/y.h"\n', "tools/b/y.h": '#include "tools/c/z.h"\n', "tools/c/z.h": ""}
        self.assertEqual(rules(room_rules.check_cycles(self.tree(files))), [])
        files["tools/c/w.cc"] = '#include "tools/a/x.h"\n'
        self.assertEqual(rules(room_rules.check_cycles(self.tree(files))), ["cycles"])

    def test_a_folder_has_not_too_many_files(self) -> None:
        tree = self.tree({f"a/{n}.cc": "" for n in range(41)})
        self.assertEqual(rules(room_rules.check_folder_sizes(tree, {})), ["folder-size"])
        self.assertEqual(rules(room_rules.check_folder_sizes(tree, {"a": 41})), [])
        self.assertEqual(rules(room_rules.check_folder_sizes(self.tree({}), {"a": 41})), ["stale-exception"])

    def test_a_class_has_one_cc(self) -> None:
        one = "namespace dws {\nvoid Thing::Do() {\n  Other::Make();\n}\n}\n"
        two = "namespace dws {\nResult<int> Thing::Get(\n    int a) {}\nThing::~Thing() = default;\n}\n"
        tree = self.tree({"a/one.cc": one, "a/two.cc": two, "b/two.cc": two})
        self.assertEqual(rules(room_rules.check_classes(tree, frozenset())), ["one-class-one-cc"])
        self.assertEqual(rules(room_rules.check_classes(tree, frozenset({"Thing"}))), [])
        self.assertEqual(rules(room_rules.check_classes(self.tree({"a/one.cc": one}), frozenset({"Thing"}))),
                         ["stale-exception"])

    def test_a_test_names_events_that_exist(self) -> None:
        files = {
            "a/x.cc": 'LogInfo("here", {});\nLogWarning(\n    "there");\n{.failed_event = "else_where"}\n',
            "a/y.cc": 'Call("gone");\n',
            "tests/x_test.py": 'd.logged("here")\nd.logged(\n    "there")\nd.logged("else_where")\nd.logged("gone")\n'
                               'self.assertNotIn("here", d.log_tail(9))\nself.assertNotIn(f"{x}", log)\n'
                               '"here" not in log\n"else_where" in d.log_tail(9)\n"else_there" in d.log_tail(9)\n'
                               'd.log_tail(9).count(" else_there ")\nd.metric("a_metric") == 1, d.log_tail()\n'}
        found = list(text_rules.check_events(self.tree(files)))
        self.assertEqual([violation.line for violation in found], [5, 6, 8, 10, 11])

    def test_a_comment_names_files_that_are_there(self) -> None:
        files = {"a/x.h": "// here.h, a/here.cc, gone.h, cuda.h, *.h\nint gone;\n", "a/here.h": "", "a/here.cc": ""}
        found = list(room_rules.check_named_files(self.tree(files), frozenset({"cuda.h"})))
        self.assertEqual([violation.message for violation in found], ["there is no gone.h"])

    def test_sources_with_failpoints_are_listed(self) -> None:
        files = {"sender_daemon/BUILD.bazel": 'srcs = ["//sender_daemon/a:failpoint_srcs"]\n',
                 "sender_daemon/a/BUILD.bazel": '    failpoint_srcs = [\n        "with.cc",\n        "without.cc",\n    ],\n',
                 "sender_daemon/a/with.cc": 'DWS_KILLPOINT("x");\n', "sender_daemon/a/without.cc": '// DWS_KILLPOINT("x")\n',
                 "sender_daemon/a/other.cc": 'DWS_FAILPOINT("x");\n'}
        found = [violation.path for violation in room_rules.check_failpoints(self.tree(files))]
        self.assertEqual(found, ["sender_daemon/a/other.cc", "sender_daemon/a/without.cc"])
        files["sender_daemon/BUILD.bazel"] = ""
        found = [violation.path for violation in room_rules.check_failpoints(self.tree(files))]
        self.assertEqual(found, ["sender_daemon/a/other.cc", "sender_daemon/a/without.cc", "sender_daemon/BUILD.bazel"])


if __name__ == "__main__":
    unittest.main()
