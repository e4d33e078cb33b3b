"""docs/python.md is made of the signatures and docstrings in the sources, and each public name says what it does."""

from __future__ import annotations

import inspect
import os
import re
import tempfile
import unittest
from pathlib import Path

import dws
import dws.balance
import dws.declare
import dws.on_demand

from tools.docs.python_api import DOCUMENT, MODULES, document, without_docstring

TOP = Path(os.path.realpath("WORKSPACE")).parent
SOURCE = '''"""A module."""
from dws.inner import Shown as Renamed, helper
__all__ = ["Renamed", "LIMIT", "helper"]
LIMIT = 3
'''
INNER = '''
class Base:
    def __init__(self, *args): pass
    def inherited(self, x: int = 1) -> "int":
        """Returns x."""
class Shown(Base):
    """A class.

    With two lines.
    """
    size: int
    _hidden: int
    @property
    def p(self) -> str:
        """A property."""
    def _private(self): pass
    def bare(self): pass
    def to_proto(self): pass
def helper(one: "A very long annotation, in words" = None, two: "another long annotation, which has many words" = None, *, three=(1, 2)):
    """Helps."""
'''


class DocumentTest(unittest.TestCase):
    def test_the_document_is_what_the_sources_say(self) -> None:
        self.maxDiff = None
        self.assertEqual((TOP / DOCUMENT).read_text("utf-8"), document(TOP), "run: python3 -m tools.docs.python_api --write")

    def test_every_public_name_has_a_docstring(self) -> None:
        self.assertEqual(without_docstring(TOP), [])

    def test_what_is_imported_and_what_is_written_are_the_same(self) -> None:
        """Independent of how the sources are read: public names and methods of the packages that can be imported here."""
        text = (TOP / DOCUMENT).read_text("utf-8")
        for module in (dws, dws.balance, dws.declare, dws.on_demand):
            for name in module.__all__:
                value = getattr(module, name)
                if inspect.ismodule(value) or name.startswith("__"):
                    continue
                with self.subTest(f"{module.__name__}.{name}"):
                    entry = re.search(rf"(?ms)^### {re.escape(module.__name__)}\.{name}$(.*?)(?=^##|\Z)", text)
                    assert entry is not None
                    if not inspect.isclass(value):
                        continue
                    for method in vars(value):
                        if inspect.isfunction(vars(value)[method]) and not method.startswith("_") and not method.endswith("_proto"):
                            self.assertRegex(entry[1], rf"(?m)^    (async )?def {method}\(")

    def test_no_name_of_the_protocol_is_in_it(self) -> None:
        self.assertNotRegex((TOP / DOCUMENT).read_text("utf-8"), r"def \w+_proto\(")


class StubsTest(unittest.TestCase):
    def made(self) -> str:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in MODULES:
            path = folder / "clients/python" / name.replace(".", "/") / "__init__.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'"""{name}."""\n')
        (folder / "clients/python/dws/__init__.py").write_text(SOURCE)
        (folder / "clients/python/dws/inner.py").write_text(INNER)
        self.folder = folder
        return document(folder)

    def test_names_are_followed_through_imports_to_their_definition(self) -> None:
        text = self.made()
        self.assertIn('### dws.Renamed\n\n```python\nclass Shown(Base):\n    """A class.\n\n    With two lines.\n    """\n    size: int\n', text)
        self.assertIn('\n    @property\n    def p(self) -> str:\n        """A property."""\n', text)
        self.assertIn("    def inherited(self, x: int=1) -> 'int':\n        \"\"\"Returns x.\"\"\"\n", text)
        self.assertIn("### dws.LIMIT\n\n```python\nLIMIT = 3\n", text)
        for absent in ("_hidden", "_private", "to_proto", "__init__"):
            self.assertNotIn(absent, text)

    def test_a_long_head_has_a_line_for_each_argument(self) -> None:
        self.assertIn("def helper(\n    one: 'A very long annotation, in words'=None,\n"
                      "    two: 'another long annotation, which has many words'=None,\n    *,\n    three=(1, 2),\n):\n", self.made())

    def test_what_has_no_docstring_is_named(self) -> None:
        self.made()
        self.assertEqual(without_docstring(self.folder), ["dws.Renamed.bare"])

    def test_a_name_without_a_definition_is_an_error(self) -> None:
        self.made()
        (self.folder / "clients/python/dws/__init__.py").write_text('__all__ = ["gone"]\n')
        with self.assertRaisesRegex(ValueError, r"dws\.gone: expected a definition"):
            document(self.folder)


if __name__ == "__main__":
    unittest.main()
