"""Runs the demo with the named Python: tools/real.sh demo."""

from __future__ import annotations

import argparse
import os

from tools.real.environment import Interpreter


def run(options: argparse.Namespace, python: Interpreter) -> int:
    """Continues as the demo."""
    command = [python.path, "-m", "tools.real.demo.demo"]
    command += [f"--{name}={getattr(options, name.replace('-', '_'))}" for name in ("steps", "warm-up", "seed", "limit")]
    command += ["--stale-checkpoint"] if options.stale_checkpoint else []
    os.execve(python.path, command, python.variables(options.modules))
