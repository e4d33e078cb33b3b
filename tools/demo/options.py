"""The demo's options, and the Python that it needs for them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import subprocess
import sys
from typing import Sequence

from tools.demo import task
from tools.demo.policy import PolicyConfig

CONFIG = PolicyConfig(vocabulary=task.VOCABULARY, context=task.CONTEXT)
_VARIABLE = "DWS_TRAINERS_PYTHON"
_NEEDED = "torch 2.6 or newer (fully_shard), numpy, grpcio and protobuf"
_TEST = "import google.protobuf, grpc, numpy; from torch.distributed.fsdp import fully_shard"


def parse(arguments: Sequence[str], description: str = "") -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/demo.sh", description=description)
    parser.add_argument("--steps", type=int, default=80, help="policy-gradient steps (80)")
    parser.add_argument("--warm-up", type=int, default=80, help="supervised steps before (80)")
    parser.add_argument("--engines", type=int, default=2, help="rollout engines (2)")
    parser.add_argument("--ranks", type=int, default=1, help="trainer ranks, each owns rows (1)")
    parser.add_argument(
        "--trainer",
        choices=("plain", "fsdp2"),
        default="plain",
        help="plain: one process has all ranks; fsdp2: each rank is a process of FSDP2 (plain)",
    )
    parser.add_argument(
        "--python",
        default=os.environ.get(_VARIABLE, ""),
        help=f"for fsdp2: a Python with {_NEEDED} (${_VARIABLE})",
    )
    parser.add_argument(
        "--engine-tp",
        type=int,
        default=1,
        help="tensor-parallel ranks of each engine, a process each, with slices of the weights (1)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the daemons running")
    parser.add_argument(
        "--flip-bit",
        action="store_true",
        help="flip one bit of one engine's weights without DWS: the demo must fail",
    )
    options = parser.parse_args(arguments)
    least_of = {"steps": 4, "warm_up": 1, "engines": 1, "ranks": 1, "engine_tp": 1}
    for name, least in least_of.items():
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}")
    if CONFIG.heads % options.engine_tp:
        parser.error(f"--engine-tp must divide the policy's {CONFIG.heads} attention heads")
    if options.trainer == "fsdp2" and options.ranks < 2:
        parser.error("--trainer fsdp2 needs --ranks 2 or more: it shards the weights over them")
    return options


def run_with_fsdp2(python: str, arguments: Sequence[str]) -> None:
    """Returns if this Python has FSDP2. Otherwise the named one continues in its place.

    Raises:
      SystemExit: none is named, or it lacks needed packages.
    """
    with contextlib.suppress(Exception):  # torch 1.13 cannot even import it with Python 3.11
        if hasattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard"):
            return
    if not python:
        sys.exit(
            f"--trainer fsdp2 needs a Python with {_NEEDED}, and {sys.executable} has no "
            f"fully_shard: name one with --python or {_VARIABLE}"
        )
    expected = f"{python} (--python or {_VARIABLE}): expected a Python with {_NEEDED}, found"
    try:
        subprocess.run([python, "-c", _TEST], check=True, capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"{expected}: {error.strerror}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"{expected}: " + error.stderr.strip().rpartition("\n")[2])
    os.execv(python, [python, *sys.argv[:1], *arguments])
