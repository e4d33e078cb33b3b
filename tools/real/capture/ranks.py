"""Checks captured mappings against what a real engine loads: run with the engine's Python, once for each engine. A rank
is a process of its own, forked when the engine is imported. A model of several ranks is loaded in as many processes."""

from __future__ import annotations

import argparse
import importlib
import logging
import multiprocessing
import os
import sys
import traceback
from typing import Any

from dws.plugins.checkpoint import CheckpointFiles
from tools.real.capture.cases import CASES, Case
from tools.real.capture.compare import Compared, compare
from tools.real.report import Report
from tools.real.server import free_port

RANK_SECONDS = 300.0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--checkpoints", required=True, help="folder for the models' checkpoints")
    parser.add_argument("cases", nargs="+")
    options = parser.parse_args()
    report = Report(options.engine)
    checkpoints: Any = importlib.import_module("tools.real.capture.checkpoints")
    # Imported once; ranks are copies of this process.
    importlib.import_module(f"tools.real.capture.{options.engine}_rank")
    for case in CASES:
        if case.name in options.cases:
            check(case, checkpoints.make(options.checkpoints, case.model), report)
    return report.end()


def check(case: Case, folder: str, report: Report) -> None:
    """Runs all ranks of a case."""
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
    how: list[str] = []
    for rank in sorted(found):
        answer = found[rank]
        if isinstance(answer, str):
            return report.failed(case.name, f"rank {rank}: {answer}")
        if answer.wrong:
            return report.failed(case.name, f"rank {rank}: {'; '.join(answer.wrong[:5])}")
        held |= answer.tensors
        how.append(f"rank {rank}: {answer.mapped} parameters, {answer.how}; the engine's own: {len(answer.left)}")
    if lost := sorted(set(CheckpointFiles(folder).canonical()) - held):
        return report.failed(case.name, f"no rank has {lost[:5]}")
    return report.ok(case.name, "; ".join(how))


def run_rank(case: Case, rank: int, folder: str, port: int, answers: Any) -> None:
    """Runs one rank in a process of its own. Sends a Compared, or what happened instead."""
    answer: Compared | str
    try:
        logging.disable(logging.WARNING)
        sys.stdout = open(os.devnull, "w")
        engine: Any = importlib.import_module(f"tools.real.capture.{case.engine}_rank")
        model, config, of = engine.load(case, rank, folder, port)
        answer = compare(model, config, of, folder)
    except BaseException as error:  # pylint: disable=broad-except
        traceback.print_exc()
        answer = f"{type(error).__name__}: {error}"
    answers.put((rank, answer))


if __name__ == "__main__":
    sys.exit(main())
