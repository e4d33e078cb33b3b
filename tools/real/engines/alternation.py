"""Requests while two versions alternate: the part of a run that is the same for every engine."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, Callable

from tools.real.engines.publisher import Publisher
from tools.real.engines.steps import Step, Tally


def parser_of_run(description: str | None) -> argparse.ArgumentParser:
    """Makes the parser of the options that check.py gives to a run with any engine."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--sender", required=True, help="the sender's unix socket")
    parser.add_argument("--receiver", required=True, help="the receiver's unix socket")
    parser.add_argument("--job-id", required=True)
    parser.add_argument("--model", required=True, help="a folder to write the model's files to")
    parser.add_argument("--kind", default="qwen3", help="of the model: of CONFIGS")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    return parser


def alternation(
    publisher: Publisher,
    request: Callable[[], list[Step]],
    seconds: float,
    committed: Callable[[int], None] = lambda version: None,
) -> dict[str, Any]:
    """What check.py judges: steps, commits, torn, versions.

    Args:
      request: makes one request; always the same one.
      seconds: of requests while versions alternate.
      committed: called with each version that is published by hand, after requests have run with it.

    Raises:
      RuntimeError: the engine computes other numbers with the same weights.
    """
    references: list[list[Step]] = []
    for which in (0, 1):
        publisher.publish(which)
        references.append(request())
        if request() != references[which]:
            raise RuntimeError("the same weights gave other numbers: steps cannot be compared")
        committed(publisher.version)
    tally = Tally(references)
    publisher.alternate()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        tally.add(request())
    commits = publisher.stop()
    return {
        "steps": tally.steps,
        "commits": commits,
        "torn": tally.torn,
        "versions": len(tally.versions),
    }


def print_result(result: dict[str, Any]) -> None:
    """Prints the result as the last line on stdout."""
    print(f"\n{json.dumps(result)}", flush=True)
