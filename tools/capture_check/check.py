"""Checks captured mappings against what a real engine loads: tools/capture_check.sh runs it with the engine's Python,
once for each engine. A rank is a process of its own, forked when the engine is imported."""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import logging
import multiprocessing
import os
import sys
import traceback
from typing import Any, Optional

from dws.plugins.checkpoint import CheckpointFiles
from tools.capture_check.cases import CASES, Case
from tools.capture_check.compare import Compared, compare
from tools.real_engines.server import free_port

RANK_SECONDS = 300.0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--checkpoints", required=True, help="folder for the models' checkpoints")
    parser.add_argument("--only", default="*", help="a pattern of cases")
    options = parser.parse_args()
    cases = [c for c in CASES if c.engine == options.engine and fnmatch.fnmatch(c.name, options.only)]
    checkpoints: Any = importlib.import_module("tools.capture_check.checkpoints")
    # Imported once; ranks are copies of this process.
    importlib.import_module(f"tools.capture_check.{options.engine}_rank")
    failed = 0
    for case in cases:
        wrong = check(case, checkpoints.make(options.checkpoints, case.model))
        failed += wrong is not None
        if wrong is not None:
            print(f"FAILED {case.name}: {wrong}", flush=True)
    print(f"{len(cases) - failed} of {len(cases)} cases of {options.engine} are as they should be")
    return 1 if failed or not cases else 0


def check(case: Case, folder: str) -> Optional[str]:
    """Runs all ranks of a case; what is wrong, in words."""
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()
    port = free_port()
    ranks = [
        context.Process(target=run_rank, args=(case, rank, folder, port, answers), daemon=True)
        for rank in range(case.ranks)
    ]
    for process in ranks:
        process.start()
    try:
        found = dict(answers.get(timeout=RANK_SECONDS) for _ in ranks)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    held: set[str] = set()
    for rank in sorted(found):
        answer = found[rank]
        if isinstance(answer, str):
            return f"rank {rank}: {answer}"
        if answer.wrong:
            return f"rank {rank}: {'; '.join(answer.wrong[:5])}"
        held |= answer.tensors
        print(
            f"ok {case.name} rank {rank}: {answer.mapped} parameters are to the bit what the mapping gathers; "
            f"{answer.how}; the engine's own: {len(answer.left)}",
            flush=True,
        )
    lost = sorted(set(CheckpointFiles(folder).canonical()) - held)
    return f"no rank has {lost[:5]}" if lost else None


def run_rank(case: Case, rank: int, folder: str, port: int, answers: Any) -> None:
    """In a process of its own. Answers a Compared, or what happened instead."""
    answer: Compared | str
    try:
        logging.disable(logging.WARNING)
        sys.stdout = open(os.devnull, "w")
        engine: Any = importlib.import_module(f"tools.capture_check.{case.engine}_rank")
        model, config, of = engine.load(case, rank, folder, port)
        answer = compare(model, config, of, folder)
    except BaseException as error:  # pylint: disable=broad-except
        traceback.print_exc()
        answer = f"{type(error).__name__}: {error}"
    answers.put((rank, answer))


if __name__ == "__main__":
    sys.exit(main())
