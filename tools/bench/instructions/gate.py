"""What a delta costs in figures that are the same from run to run, against committed ones: bytes, and instructions
of each stage as callgrind counts them.

Fails for any byte, and for more than 3 % more instructions. Instructions are compared only with those of the same
compiler, libraries and kind of build; bytes are always compared. CSV (kind,case,committed,found,elements,changed) on
stdout, a table on stderr.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterable, Optional

PROGRAM = Path("tools/bench/gate_stages")
COUNTS = Path("tools/bench/instructions/counts.csv")
EXCERPT = Path("tests/data/rl_trace_excerpt/excerpt.py")
HEAD = ["kind", "case", "value", "elements", "changed"]
INSTRUCTIONS_MORE_MAX = 0.03
_TIMEOUT_SECONDS = 3600
# Callgrind does not know AVX-512. The variable makes that the program's own choice.
INSTRUCTION_SET = "avx2"
_STABLE = {
    # The dynamic linker's work is no stage's.
    "LD_BIND_NOW": "1",
    # `rep movsb` would count as one instruction a byte: copies by vectors instead.
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-ERMS",
}
_UPDATE = "tools/bench.sh gate --update"


class GateError(Exception):
    """Nothing could be compared; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Figure:
    value: int
    elements: int
    changed: int


@dataclasses.dataclass
class Figures:
    """Figures by kind, "bytes" or "instructions", and case; and what they were made `made_with`."""

    made_with: dict[str, str] = dataclasses.field(default_factory=dict)
    by_kind: dict[str, dict[str, Figure]] = dataclasses.field(
        default_factory=lambda: {"bytes": {}, "instructions": {}})

    def other_than(self, other: Figures) -> list[str]:
        """What differs in how both were made, in words."""
        names = sorted(self.made_with.keys() | other.made_with.keys())
        return [f"{name} {other.made_with.get(name, 'unknown')}, committed with {self.made_with.get(name, 'unknown')}"
                for name in names if self.made_with.get(name) != other.made_with.get(name)]


def read_figures(lines: Iterable[str], counts: Optional[dict[str, int]] = None) -> Figures:
    """Reads counts.csv, or the program's output; for the latter, `counts` are the instructions of
    its stages."""
    figures = Figures()
    for row in csv.reader(line for line in lines if line.strip() and not line.startswith("#")):
        if len(row) != len(HEAD):
            raise GateError(f"'{','.join(row)}' has {len(row)} fields, expected {','.join(HEAD)}")
        if row == HEAD:
            continue
        kind, case, value, elements, changed = row
        try:
            if kind == "with":
                figures.made_with[case] = value
            elif kind == "stage" and (value or counts is not None):
                count = int(value) if value else (counts or {})[case]
                figures.by_kind["instructions"][case] = Figure(count, int(elements), int(changed))
            elif kind in figures.by_kind:
                figures.by_kind[kind][case] = Figure(int(value), int(elements), int(changed))
            elif kind != "stage":
                raise GateError(f"'{','.join(row)}' is of the unknown kind '{kind}'")
        except KeyError:
            raise GateError(f"callgrind dumped no counts for the stage '{case}'") from None
        except ValueError:
            raise GateError(f"'{','.join(row)}' does not have numbers after its case") from None
    return figures


def write_figures(path: Path, figures: Figures) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# What `tools/bench.sh gate` compares with, written by `{_UPDATE}`.\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for name, value in figures.made_with.items():
            writer.writerow(["with", name, value, "", ""])
        for kind, cases in figures.by_kind.items():
            for case, figure in cases.items():
                writer.writerow([kind, case, figure.value, figure.elements, figure.changed])


def _complaint(kind: str, case: str, committed: Optional[Figure], found: Optional[Figure]) -> Optional[str]:
    """Returns what is wrong with one figure; None: nothing."""
    where = f"{case}: "
    if committed is None or found is None:
        there, value = ("found", found) if committed is None else ("committed", committed)
        return f"{where}{value.value if value else 0:,} {kind} {there} only. If cases were added, removed or " \
               f"renamed: {_UPDATE}"
    ratio = found.value / max(committed.value, 1)
    differ = f"{found.value:,} {kind}, committed {committed.value:,} ({found.value - committed.value:+,}, x {ratio:.4f})"
    if kind == "bytes" and found.value != committed.value:
        return f"{where}{differ}. Bytes have to be equal: mend it, or run {_UPDATE} and say in the commit why"
    if kind == "instructions" and ratio > 1 + INSTRUCTIONS_MORE_MAX:
        return f"{where}{differ}, allowed x {1 + INSTRUCTIONS_MORE_MAX:.2f}. Mend it, or run {_UPDATE} and say in " \
               "the commit why it has to cost more"
    return None


def compare(committed: Figures, found: Figures, kinds: Iterable[str]) -> list[str]:
    """What fails, one line each."""
    failures = []
    for kind in kinds:
        old, new = committed.by_kind[kind], found.by_kind[kind]
        for case in {**old, **new}:
            complaint = _complaint(kind, case, old.get(case), new.get(case))
            if complaint is not None:
                failures.append(complaint)
    return failures


def judge(committed: Figures, found: Figures, bytes_only: bool = False) -> tuple[list[str], list[str]]:
    """What fails, and what there is to say."""
    kinds, notes = ["bytes"], []
    other = committed.other_than(found)
    if bytes_only:
        notes.append("instructions were not counted (--bytes-only)")
    elif other:
        notes.append(f"INSTRUCTIONS WERE NOT COMPARED, they are not of the same make: {'; '.join(other)}. "
                     f"If that is here to stay: {_UPDATE}")
    else:
        kinds.append("instructions")
        new = found.by_kind["instructions"]
        for case, figure in committed.by_kind["instructions"].items():
            if case in new and new[case].value < figure.value * (1 - INSTRUCTIONS_MORE_MAX):
                notes.append(f"{case} costs x {new[case].value / figure.value:.3f}: {_UPDATE} keeps it so")
    failures = compare(committed, found, kinds)
    if not failures:
        notes.append(f"{' and '.join(kinds)} are as committed")
    return failures, notes


def _run(command: list[str], environment: dict[str, str]) -> str:
    ran = subprocess.run(command, check=False, capture_output=True, text=True, env=environment,
                         timeout=_TIMEOUT_SECONDS)
    if ran.returncode != 0:
        raise GateError(f"{' '.join(command)}: status {ran.returncode}\n{ran.stderr}")
    return ran.stdout


def measure_bytes() -> Figures:
    """By the program alone, with the best instructions of this processor."""
    with tempfile.TemporaryDirectory() as steps:
        _run([sys.executable, str(EXCERPT), "unpack", steps], dict(os.environ))
        return read_figures(_run([str(PROGRAM), steps], dict(os.environ)).splitlines())


def read_counts(folder: Path) -> dict[str, int]:
    """Instructions by stage, of callgrind's dumps in `folder`."""
    counts = {}
    for dump in folder.glob("callgrind.out.*"):
        text = dump.read_text(encoding="utf-8", errors="replace")
        trigger = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.M)
        # The summary is not used, because it is a difference of two dumps.
        total = re.search(r"^totals: (\d+)", text, re.M)
        if trigger and total:
            counts[trigger[1]] = int(total[1])
    return counts


def measure_instructions(profile: Optional[str]) -> Figures:
    """By callgrind, whose dumps stay in the folder `profile` if it is given."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise GateError("valgrind is not installed: tools/install.sh installs it. Bytes alone: --bytes-only")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(profile or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("callgrind.out.*"):
            old.unlink()
        environment = {"PATH": os.defpath, "DWS_INSTRUCTION_SET": INSTRUCTION_SET, **_STABLE}
        printed = _run([valgrind, "--tool=callgrind", "--instr-atstart=no", "--quiet",
                        f"--callgrind-out-file={folder}/callgrind.out.stages", str(PROGRAM)], environment)
        figures = read_figures(printed.splitlines(), read_counts(folder))
    figures.made_with["valgrind"] = _run([valgrind, "--version"], environment).strip()
    return figures


def measure_natively(kib: int) -> Figures:
    """By single steps, with the best instructions of this processor; fewer stages."""
    return read_figures(_run([str(PROGRAM), "--steps", str(kib)], {**os.environ, **_STABLE}).splitlines())


def measure(options: argparse.Namespace) -> Figures:
    figures = measure_bytes()
    if options.bytes_only:
        return figures
    counted = measure_instructions(options.profile)
    for case, figure in counted.by_kind["bytes"].items():
        native = figures.by_kind["bytes"][case]
        if native != figure:
            raise GateError(f"{case}: {native.value} bytes on this processor, {figure.value} with {INSTRUCTION_SET}: "
                            "kernels of two instruction sets disagree; mend them")
    figures.made_with = counted.made_with
    figures.by_kind["instructions"] = counted.by_kind["instructions"]
    return figures


def report(committed: Figures, found: Figures) -> None:
    print("kind,case,committed,found,elements,changed")
    table = [f"{'':<52}{'committed':>14}{'found':>14}{'ratio':>9}{'/ element':>11}{'/ changed':>11}"]
    for kind, cases in found.by_kind.items():
        for case, figure in cases.items():
            old = committed.by_kind[kind].get(case)
            print(f"{kind},{case},{old.value if old else ''},{figure.value},{figure.elements},{figure.changed}")
            each = f"{figure.value / max(figure.elements, 1):>11.3f}"
            each += f"{figure.value / figure.changed:>11.2f}" if figure.changed else ""
            before = f"{old.value:>14,}{figure.value:>14,}{figure.value / max(old.value, 1):>9.4f}" if old else \
                f"{'-':>14}{figure.value:>14,}{'-':>9}"
            table.append(f"{kind + ': ' + case:<52}{before}{each}")
    print("\n".join(table), file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/bench.sh gate", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write what was found to the committed counts")
    parser.add_argument("--bytes-only", action="store_true", help="without callgrind")
    parser.add_argument("--native", metavar="KIB", type=int, nargs="?", const=512,
                        help="print what stages cost with this processor's best instructions, which callgrind may not "
                             "know, by single steps, with so much of weights (a multiple of 128; default 512, which takes "
                             "minutes); nothing is compared")
    parser.add_argument("--profile", metavar="FOLDER",
                        help="keep callgrind's dumps there, one a stage, for callgrind_annotate")
    parser.add_argument("--counts", metavar="FILE", help=f"compare with these; default: {COUNTS}")
    options = parser.parse_args()
    if options.update and options.bytes_only:
        parser.error("--update needs the instructions, too: not with --bytes-only")
    return options


def main() -> int:
    options = _options()
    # In runfiles a link to the file in the tree.
    counts = Path(options.counts) if options.counts else COUNTS.resolve()
    try:
        if options.native is not None:
            report(Figures(), measure_natively(options.native))
            return 0
        committed = read_figures(counts.read_text(encoding="utf-8").splitlines()) if counts.exists() else Figures()
        found = measure(options)
    except GateError as error:
        print(f"gate: {error}", file=sys.stderr)
        return 1
    report(committed, found)
    if options.update:
        write_figures(counts, found)
        print(f"gate: wrote {counts}", file=sys.stderr)
        return 0
    failures, notes = judge(committed, found, options.bytes_only)
    for line in notes + [f"FAILED: {failure}" for failure in failures]:
        print(f"gate: {line}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
