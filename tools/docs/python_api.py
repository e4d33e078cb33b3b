"""docs/python.md: the public Python API, from signatures and docstrings. The sources are read, not imported, so that
no framework is needed.

  python3 -m tools.docs.python_api          prints the document
  python3 -m tools.docs.python_api --write  writes it

Public is what a module's __all__ names; without one, what it defines without a leading underscore. A class is shown
with its methods, properties and annotated fields that have no leading underscore, and __init__, also those of its bases in dws.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from pathlib import Path
from typing import Iterator, Optional, Union

DOCUMENT = Path("docs/python.md")
CLIENT = Path("clients/python")
MODULES = (
    "dws", "dws.adapters", "dws.trainers", "dws.trainers.hf", "dws.trainers.grpo", "dws.trainers.weight_transfer", "dws.trainers.module_weights",
    "dws.trainers.publisher", "dws.trainers.vllm", "dws.declare", "dws.daemons", "dws.balance", "dws.on_demand", "dws.ray",
    "dws.verl", "dws.vllm", "dws.sglang",
)
_INTRO = """\
# Python API

What trainers and engines call: signatures and docstrings, as the sources have them.
`python3 -m tools.docs.python_api --write` makes this page, and a test compares it with the sources.

Everything else below `dws` is internal.
Errors are subclasses of `dws.DwsError`; each call says which it raises.
[Trainers](trainers.md), [engines](engines.md) and [training on demand](on-demand.md) say how the calls fit together.
"""
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
Definition = Union[Function, ast.ClassDef]


@dataclasses.dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module

    @classmethod
    def load(cls, top: Path, name: str) -> "Module":
        """ValueError: there is no source of that name."""
        base = top / CLIENT / name.replace(".", "/")
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if path.exists():
                return cls(name, path, ast.parse(path.read_text("utf-8")))
        raise ValueError(f"{name}: expected {base}.py or {base}/__init__.py")

    def public(self) -> list[str]:
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == "__all__" for one in node.targets):
                return [str(name) for name in ast.literal_eval(node.value) if not str(name).startswith("__")]
        return [node.name for node in self.tree.body
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_")]


def find(top: Path, module: Module, name: str) -> Optional[tuple[Module, ast.stmt]]:
    """Where `name` of a module is defined, followed through imports. None: it is a module, or not of dws."""
    for node in module.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets):
            return module, node
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dws" and node.module != module.name:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    try:
                        return find(top, Module.load(top, str(node.module)), alias.name)
                    except ValueError:
                        return None
    return None


def _head(node: Function) -> str:
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    line = f"{kind} {node.name}({ast.unparse(node.args)}){returns}:"
    if len(line) <= 110:
        return line
    arguments = ast.unparse(node.args)
    parts, depth, begin, quote = [], 0, 0, ""
    for at, character in enumerate(arguments):
        if character in "'\"" and quote in ("", character):
            quote = "" if quote else character
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0 and not quote:
            parts.append(arguments[begin:at].strip())
            begin = at + 1
    parts.append(arguments[begin:].strip())
    return "\n".join([f"{kind} {node.name}(", *[f"    {part}," for part in parts], f"){returns}:"])


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))


def _doc(node: Definition) -> str:
    text = ast.get_docstring(node)
    return f'"""{text}"""' if text and "\n" not in text else f'"""{text}\n"""' if text else "..."


def _decorators(node: Definition) -> Iterator[str]:
    for decorator in node.decorator_list:
        text = ast.unparse(decorator)
        if text.split("(")[0] in ("property", "classmethod", "staticmethod", "contextlib.contextmanager", "dataclasses.dataclass", "dataclass",
                                  "functools.cached_property"):
            yield f"@{text}"


def function_stub(node: Function) -> str:
    return "\n".join([*_decorators(node), _head(node), _indent(_doc(node))])


def bases_of(top: Path, module: Module, node: ast.ClassDef) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Its bases that dws defines, the nearest first."""
    for base in node.bases:
        found = find(top, module, base.id) if isinstance(base, ast.Name) else None
        if found is not None and isinstance(found[1], ast.ClassDef):
            yield found[0], found[1]
            yield from bases_of(top, *((found[0], found[1])))


def members(node: ast.ClassDef) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for one in node.body:
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            # Messages of the protocol are not part of the API.
            if one.name == "__init__" or not one.name.startswith("_") and not one.name.endswith("_proto"):
                found.setdefault(one.name, one)
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not one.target.id.startswith("_"):
            found.setdefault(one.target.id, one)
        elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and not one.targets[0].id.startswith("_"):
            found.setdefault(one.targets[0].id, one)
    return found


def class_members(top: Path, module: Module, node: ast.ClassDef) -> dict[str, ast.stmt]:
    found = members(node)
    for _, base in bases_of(top, module, node):
        for name, one in members(base).items():
            # An __init__ that says nothing passes its arguments on.
            if name != "__init__" or isinstance(one, ast.FunctionDef) and ast.get_docstring(one):
                found.setdefault(name, one)
    return found


def class_stub(top: Path, module: Module, node: ast.ClassDef) -> str:
    bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    out = [*_decorators(node), f"class {node.name}{bases}:", _indent(_doc(node))]
    for one in class_members(top, module, node).values():
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            out += ["", _indent(function_stub(one))]
        else:
            out.append(_indent(ast.unparse(one)))
    return "\n".join(out)


def entry(top: Path, module: Module, name: str) -> Optional[str]:
    """The heading and the stub of a public name; None: it is a module with a section of its own."""
    found = find(top, module, name)
    if found is None:
        if f"{module.name}.{name}" in MODULES:
            return None
        raise ValueError(f"{module.name}.{name}: expected a definition in {module.path}, or an import of one")
    where, node = found
    if isinstance(node, ast.ClassDef):
        stub = class_stub(top, where, node)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        stub = function_stub(node)
    else:
        stub = ast.unparse(node)
    return f"### {module.name}.{name}\n\n```python\n{stub}\n```\n"


def document(top: Path) -> str:
    out = [_INTRO]
    for name in MODULES:
        module = Module.load(top, name)
        out.append(f"## {name}\n\n```text\n{ast.get_docstring(module.tree)}\n```\n")
        out += [text for public in module.public() if (text := entry(top, module, public)) is not None]
    return "\n".join(out)


def without_docstring(top: Path) -> list[str]:
    """Public functions, classes and methods that say nothing. An __init__ may leave it to its class."""
    found = []
    for name in MODULES:
        module = Module.load(top, name)
        for public in module.public():
            where = find(top, module, public)
            if where is None or not isinstance(where[1], (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            parts: list[tuple[str, ast.stmt]] = [(f"{name}.{public}", where[1])]
            if isinstance(where[1], ast.ClassDef):
                parts += [(f"{name}.{public}.{member}", one) for member, one in class_members(top, where[0], where[1]).items()
                          if member != "__init__"]
            found += [at for at, one in parts if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                      and not ast.get_docstring(one)]
    return found


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        DOCUMENT.write_text(document(Path(".")), "utf-8")
    elif not sys.argv[1:]:
        print(document(Path(".")), end="")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
