"""The rule for comments finds fragments, and lets sentences pass."""

import unittest
from pathlib import Path

from tools.tidy import prose_rules
from tools.tidy.source_tree import SourceFile, SourceTree


def found(path: str, *lines: str) -> list[tuple[int, str]]:
    violations = prose_rules.check_file(SourceFile(path, "\n".join(lines) + "\n"))
    return [(violation.line, violation.message.split("'")[1]) for violation in violations]


class ProseTest(unittest.TestCase):
    def test_fragments_in_cpp(self) -> None:
        self.assertEqual(found("a.h", "// Of `all` the rank does not count."),
                         [(1, "Of `all` the rank does not count.")])
        self.assertEqual(found("a.h", "int a = 0;  // Whether it did."), [(1, "Whether it did.")])
        self.assertEqual(found("a.cc", "// Adds one.", "// Likewise for two."), [(1, "Likewise for two.")])
        self.assertEqual(found("a.cc", "// As Engine::Attach."), [(1, "As Engine::Attach.")])
        self.assertEqual(found("a.proto", "// The same for a view."), [(1, "The same for a view.")])
        self.assertEqual(found("a.cu", "// 1. Waits.", "// 2. Who waits is counted."), [(2, "Who waits is counted.")])
        self.assertEqual(found("a.h", "// Its versions cannot be had any more."),
                         [(1, "any more"), (1, "be had")])

    def test_fragments_in_python_and_shell(self) -> None:
        self.assertEqual(found("a.py", "def f():", '    """Whether it did."""'), [(2, "Whether it did.")])
        self.assertEqual(found("a.py", "x = 1  # Of the rank."), [(1, "Of the rank.")])
        self.assertEqual(found("a.sh", "#!/bin/bash", "# Of the rank."), [(2, "Of the rank.")])

    def test_sentences_and_code_are_let_pass(self) -> None:
        self.assertEqual(found("a.h", "// Returns whether it did. The same bytes give the same digest.",
                               "// As in protobuf, the last field counts.", 'Log("Whether it did.");'), [])
        self.assertEqual(found("a.py", 'text = "Of the rank."', "x = 1  # of the rank"), [])
        self.assertEqual(found("a.md", "Of the rank."), [])

    def test_a_listed_folder_may_have_them_as_long_as_it_does(self) -> None:
        tree = SourceTree(root=Path(), folders=[], files=[SourceFile("old/a.h", "// Of it.\n")])
        self.assertEqual(list(prose_rules.check(tree, ("old/",))), [])
        self.assertEqual([violation.rule for violation in prose_rules.check(tree, ("old/", "new/"))],
                         ["stale-exception"])


if __name__ == "__main__":
    unittest.main()
