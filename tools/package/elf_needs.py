"""Checks what programs need of the machine they run on, and prints the oldest glibc that has it:

    elf_needs.py GLIBC PROGRAM...

GLIBC, as 2.35, is the newest that they may need. They may need no other library than glibc's own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Sequence

_OF_GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2")

Version = tuple[int, ...]


def version_of(text: str) -> Version:
    """2.35 as (2, 35)."""
    return tuple(map(int, text.split(".")))


def needed_libraries(program: str) -> list[str]:
    """The names of the shared libraries that the loader looks for."""
    return re.findall(r"^ +NEEDED +(\S+)$", _objdump("-p", program), re.M)


def needed_symbols(program: str) -> dict[str, Version]:
    """The symbols of glibc that the program uses, each with the version that brought it."""
    found = re.findall(r"\*UND\*\s+[0-9a-f]+\s+\(?GLIBC_([\d.]+)\)?\s+(\S+)$", _objdump("-T", program), re.M)
    return {symbol: version_of(version) for version, symbol in found}


def mistakes_of(program: str, glibc: Version) -> list[str]:
    """What the program needs and must not, a sentence each."""
    name = program.rpartition("/")[2]
    limit = ".".join(map(str, glibc))
    mistakes = [
        f"{name} needs {library}: expected no library but glibc's own. Link it statically (--config=static)"
        for library in needed_libraries(program)
        if library not in _OF_GLIBC
    ]
    symbols = needed_symbols(program)
    if not symbols:
        mistakes.append(f"{name} uses no symbol of glibc: expected a program that objdump can read, linked to libc.so.6")
    for symbol, version in sorted(symbols.items()):
        if version > glibc:
            found = ".".join(map(str, version))
            mistakes.append(
                f"{name} uses {symbol} of GLIBC_{found}: expected at most GLIBC_{limit}. Build where glibc is older, or do "
                "without that function"
            )
    return mistakes


def _objdump(option: str, program: str) -> str:
    done = subprocess.run(["objdump", option, program], capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    if done.returncode != 0:
        raise SystemExit(f"elf_needs.py: {done.stderr.strip()}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 2:
        raise SystemExit("usage: elf_needs.py GLIBC PROGRAM...")
    glibc, programs = version_of(arguments[0]), arguments[1:]
    mistakes = [mistake for program in programs for mistake in mistakes_of(program, glibc)]
    for mistake in mistakes:
        print(f"elf_needs.py: {mistake}", file=sys.stderr)
    if mistakes:
        return 1
    print(".".join(map(str, max(version for program in programs for version in needed_symbols(program).values()))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
