"""P26: version folders of slime's format, published and applied by DWS and by slime's way of doing it, with the same
weights, changes and number of threads. Both publish each version, one after the other, in turns first; both apply
the folder that slime's way published.

The reference is the writer and the reader of P5, whole tensors at a time as slime's own handle them, or with
--slime-source slime's own code. Like slime's, the reader keeps no redo record, checks a tensor only after it was changed,
and does not sync what it has written; the bars are against both with an fsync of each file they have written, because
ours is durable when it is done. CPU seconds are those of all threads.
"""

from __future__ import annotations

import argparse
import filecmp
import glob
import os
import shutil
import statistics
import sys
import tempfile
from contextlib import ExitStack
from typing import Any, Callable

import numpy as np

from tools.bench.daemons.report import Report
from tools.bench.end_to_end import model
from tools.bench.end_to_end import safetensors_file as files
from tools.bench.end_to_end.slime_reader import EntryReader
from tools.bench.end_to_end.slime_writer import ENCODINGS, SlimeWriter, write_checkpoint
from tools.bench.version_folders import cpu_time
from tools.bench.version_folders.checkout import CheckoutReader, CheckoutUnusable, CheckoutWriter
from tools.bench.version_folders.cpu_time import Took
from tools.bench.version_folders.ours import OurReader, OurWriter

_BAR = 1.0
_PIECE_BYTES = 2 << 20  # of an xor, in slime's reader
_ALLOWANCE_BYTES = 512 << 20


def _bytes_of(views: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of the weights, as a gather would make it."""
    return {name: view.reshape(-1).view(np.uint8).copy() for name, view in views.items()}


def _write_checkpoint(folder: str, tensors: dict[str, Any]) -> None:
    os.makedirs(folder)
    write_checkpoint(folder, tensors)


def _sync_files(folder: str, pattern: str = "*.safetensors") -> None:
    for path in glob.glob(os.path.join(folder, pattern)):
        handle = os.open(path, os.O_RDWR)
        os.fsync(handle)
        os.close(handle)


class _Run:
    """One encoding: the four sides, and what each round took."""

    def __init__(self, options: argparse.Namespace, encoding: str, folder: str) -> None:
        self._options = options
        self._encoding = encoding
        self._path = lambda name: os.path.join(folder, name)
        self.published: list[tuple[Took, Took, Took]] = []  # ours, theirs, their fsync
        self.applied: list[tuple[Took, Took, Took]] = []  # ours, theirs, their fsync

    def run(self) -> None:
        options, threads = self._options, self._options.threads
        specs = model.specs(int(options.gib * (1 << 30)))
        for name in ("ours", "theirs", "followed"):
            os.makedirs(self._path(name))
        with ExitStack() as stack:
            ours = stack.enter_context(
                OurWriter(specs, self._path("ours"), self._encoding, threads)
            )
            base = _bytes_of(ours.views)
            for local in ("our_local", "their_local"):
                _write_checkpoint(self._path(local), base)
            self._begin_state(self._path("their_local"))
            theirs = self._writer(base)
            stack.callback(theirs.close)
            their_reader = self._reader()
            our_reader = stack.enter_context(
                OurReader(self._path("followed"), self._path("our_local"), threads)
            )
            changes = model.Changes(ours.views, options.density)
            for turn in range(options.rounds + 1):
                changes.advance()
                self._publish(turn, ours, theirs)
                self._apply(turn, our_reader, their_reader)
            self._check(ours.views)

    def _begin_state(self, local: str) -> None:
        os.makedirs(os.path.join(local, ".weight_sync"))
        state = os.path.join(local, ".weight_sync", "state.json")
        files.write_atomically(state, lambda file: file.write(b'{"version": "000000"}'))

    def _writer(self, base: dict[str, Any]) -> Any:
        folder, source = self._path("theirs"), self._options.slime_source
        if source:
            return CheckoutWriter(source, folder, base, self._encoding)
        return SlimeWriter(folder, base, self._options.threads, 0, self._encoding)

    def _reader(self) -> Any:
        local, source = self._path("their_local"), self._options.slime_source
        if source:
            return CheckoutReader(source, self._path("theirs"), local)
        return EntryReader(self._path("theirs"), local, self._options.threads, _PIECE_BYTES)

    def _publish(self, turn: int, ours: OurWriter, theirs: Any) -> None:
        gathered = _bytes_of(ours.views)
        version = os.path.join(self._path("theirs"), f"weight_v{turn + 1:06d}")
        took: dict[str, Took] = {}
        for our_turn in (turn % 2 == 0, turn % 2 != 0):
            os.sync()
            if our_turn:
                took["ours"] = ours.publish(turn + 2)  # version 1 was the whole model
            else:
                took["theirs"] = cpu_time.timed(lambda: theirs.publish(turn + 1, gathered))
                took["sync"] = cpu_time.timed(lambda: _sync_files(version, "*"))
        self.published.append((took["ours"], took["theirs"], took["sync"]))

    def _apply(self, turn: int, ours: OurReader, theirs: Any) -> None:
        version = os.path.join(self._path("theirs"), f"weight_v{turn + 1:06d}")
        for_ours = os.path.join(self._path("theirs"), "copy", os.path.basename(version))
        shutil.copytree(version, for_ours)
        took: dict[str, Took] = {}
        for our_turn in (turn % 2 == 0, turn % 2 != 0):
            os.sync()
            if our_turn:
                took["ours"] = ours.apply(for_ours)
            else:
                took["theirs"] = cpu_time.timed(lambda: theirs.apply(turn + 1))
                took["sync"] = cpu_time.timed(lambda: _sync_files(self._path("their_local")))
        shutil.rmtree(version)
        self.applied.append((took["ours"], took["theirs"], took["sync"]))

    def _check(self, views: dict[str, Any]) -> None:
        """Raises RuntimeError if one of the local checkpoints does not have the trainer's weights."""
        expected = self._path("expected")
        _write_checkpoint(expected, _bytes_of(views))
        for local in ("our_local", "their_local"):
            for path in glob.glob(os.path.join(expected, "*.safetensors")):
                if not filecmp.cmp(path, self._path(f"{local}/{os.path.basename(path)}"), False):
                    raise RuntimeError(f"{local}: not the trainer's weights")


def bench(options: argparse.Namespace, encoding: str, folder: str, report: Report) -> None:
    run = _Run(options, encoding, folder)
    run.run()
    peer = "slime" if options.slime_source else "P5's"
    what = f"{encoding}; {options.gib:g} GiB; {options.density:.1%}; {options.threads} threads"

    def add(
        verb: str, ours: list[float], theirs: list[float], unit: str, at_most: Any = None
    ) -> None:
        # The ratio of each round, so that a change of the machine's load between rounds does not count.
        ratio = statistics.median(mine / their for mine, their in zip(ours, theirs))
        report.add(
            "P26", f"{verb}; {what}; {peer}", statistics.median(ours), statistics.median(theirs),
            ratio, unit, at_most=at_most,
        )  # fmt: skip

    published, applied = run.published[1:], run.applied[1:]
    for unit, of in (("s", lambda took: took.elapsed), ("CPU s", lambda took: took.cpu)):
        value: Callable[[Took], float] = of
        bar = _BAR if unit == "s" else None
        for verb, rounds in (("publish", published), ("apply", applied)):
            mine = [value(a) for a, _, _ in rounds]
            add(verb, mine, [value(b) for _, b, _ in rounds], unit)
            synced = [value(b) + value(c) for _, b, c in rounds]
            add(f"{verb} against {verb} and fsync", mine, synced, unit, bar)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/bench.sh slime", description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="weights (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="versions that are timed (%(default)s)"
    )
    parser.add_argument(
        "--density", type=float, default=0.01, help="share of changed elements (%(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)),
        help="threads of each side (default: the cores, %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--dir", default=tempfile.gettempdir(),
        help="a folder on the file system to measure (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--only", choices=ENCODINGS, help="one of the encodings")
    parser.add_argument(
        "--slime-source", metavar="PATH",
        help="a checkout of slime (github.com/THUDM/slime): compare with its own code",
    )  # fmt: skip
    options = parser.parse_args()
    if not 0 < options.gib <= 1024 or not 1 <= options.rounds <= 100 or options.threads < 1:
        parser.error("expected --gib above 0, --rounds from 1 to 100, --threads above 0")
    if not 0 < options.density <= 1:
        parser.error("expected --density above 0, at most 1")
    # Two local checkpoints, our first version, and at the end what they are compared with.
    needed = int(4 * options.gib * (1 << 30)) + _ALLOWANCE_BYTES
    if shutil.disk_usage(options.dir).free < needed:
        parser.error(
            f"{options.dir} has less than the required {needed >> 20} MiB free: "
            "name another with --dir"
        )
    return options


def main() -> int:
    options = parse_options()
    report = Report()
    print("id,case,ours,reference,ratio,unit", flush=True)
    for encoding in ENCODINGS:
        if options.only in (None, encoding):
            with tempfile.TemporaryDirectory(prefix="dws-bench-", dir=options.dir) as folder:
                try:
                    bench(options, encoding, folder, report)
                except CheckoutUnusable as unusable:
                    print(f"--slime-source: {unusable}", file=sys.stderr)
                    return 2
    report.print_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
