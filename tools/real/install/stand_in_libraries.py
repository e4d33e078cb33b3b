"""Stand-ins for the NVIDIA libraries that torch links: enough to import it and to run it on a CPU, in place of
2 GB of them.

Every function of a stand-in returns 100, the CUDA runtime's "no device", and those that return a text return one: torch puts it
into the error that it raises. Made with gcc, readelf and nm.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import subprocess
from typing import Iterable, Optional

_NO_DEVICE = 100
_TEXT = re.compile(r"(cuda|cudnn|cusparse|nccl|nvrtc|cublas(Lt)?)Get(Error|Status)(String|Name)|ncclGetLastError")
# The prefixes of the functions that each library provides.
_PROVIDED = {
    "libcublas.": r"cublas(?!Lt)",
    "libcublasLt.": r"cublasLt",
    "libcuda.": r"cu(?!File)[A-Z]",
    "libcudart.": r"cuda|__cuda",
    "libcudnn": r"cudnn",
    "libcufft": r"cufft",
    "libcufile": r"cuFile",
    "libcupti": r"cupti",
    "libcurand": r"curand",
    "libcusolver": r"cusolver",
    "libcusparse.": r"cusparse(?!Lt)",
    "libcusparseLt": r"cusparseLt",
    "libnccl": r"p?nccl",
    "libnvJitLink": r"nvJitLink",
    "libnvToolsExt": r"nvtx",
    "libnvrtc": r"nvrtc",
    "libnvshmem": r"nvshmem",
}


@dataclasses.dataclass(frozen=True)
class Symbol:
    """An undefined function of a library; `version` is empty where it names none."""

    name: str
    version: str


def needed_libraries(dynamic_section: str) -> list[str]:
    """Args:
    dynamic_section: as `readelf -d` prints it.
    """
    return re.findall(r"\(NEEDED\)[^\[]*\[([^\]]+)\]", dynamic_section)


def undefined_symbols(table: str) -> list[Symbol]:
    """Args:
    table: as `nm -D --undefined-only --with-symbol-versions` prints it.
    """
    found = []
    for line in table.splitlines():
        name, _, version = line.split()[-1].partition("@")
        found.append(Symbol(name, version.lstrip("@")))
    return found


def provider(symbol: Symbol, libraries: Iterable[str]) -> Optional[str]:
    """Returns which of NVIDIA's libraries provides the symbol; None: none of these."""
    for library in libraries:
        for beginning, functions in _PROVIDED.items():
            if library.startswith(beginning) and re.match(functions, symbol.name):
                return library
    return None


def is_stood_in_for(library: str) -> bool:
    return library.startswith(tuple(_PROVIDED))


def source_of(symbols: Iterable[Symbol]) -> str:
    names = sorted({symbol.name for symbol in symbols})
    functions = [
        f'const char* {name}(void) {{ return "a stand-in without function"; }}'
        if _TEXT.fullmatch(name)
        else f"long {name}(void) {{ return {_NO_DEVICE}; }}"
        for name in names
    ]
    return "\n".join([*functions, "int dws_stand_in;", ""])


def version_script(symbols: Iterable[Symbol]) -> str:
    """The linker's version script; empty if no symbol names a version."""
    by_version = collections.defaultdict(set)
    for symbol in symbols:
        if symbol.version:
            by_version[symbol.version].add(symbol.name)
    return "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n"
        for version, names in sorted(by_version.items())
    )


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def make(torch_libraries: str, folder: str) -> list[str]:
    """Makes `folder` with a stand-in for each of NVIDIA's libraries that those of torch need.

    Args:
      torch_libraries: the folder torch/lib of an environment.

    Returns:
      The names of the libraries.

    Raises:
      subprocess.CalledProcessError, OSError: a tool failed, or is missing.
    """
    os.makedirs(folder, exist_ok=True)
    needed: set[str] = set()
    undefined: set[Symbol] = set()
    for name in sorted(os.listdir(torch_libraries)):
        if ".so" in name:
            path = os.path.join(torch_libraries, name)
            needed.update(filter(is_stood_in_for, needed_libraries(_output("readelf", "-d", path))))
            table = _output("nm", "-D", "--undefined-only", "--with-symbol-versions", path)
            undefined.update(undefined_symbols(table))
    provided: dict[str, list[Symbol]] = {library: [] for library in sorted(needed)}
    for symbol in undefined:
        library = provider(symbol, provided)
        if library is not None:
            provided[library].append(symbol)
    for library, symbols in provided.items():
        _link(folder, library, symbols)
    return list(provided)


def _link(folder: str, library: str, symbols: list[Symbol]) -> None:
    path = os.path.join(folder, library)
    command = ["gcc", "-w", "-shared", "-fPIC", "-fno-builtin", "-x", "c", "-", "-o", path]
    command.append(f"-Wl,-soname,{library}")
    script = version_script(symbols)
    if script:
        with open(path + ".map", "w") as file:
            file.write(script)
        command.append(f"-Wl,--version-script={path}.map")
    subprocess.run(command, input=source_of(symbols), text=True, check=True)
