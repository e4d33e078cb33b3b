"""Compares the quantisation recipes with the libraries that define them, with the named Python: tools/real.sh quantise."""

from __future__ import annotations

import argparse
import subprocess

from tools.real.environment import Interpreter


def run(options: argparse.Namespace, python: Interpreter) -> int:
    """The exit status."""
    # Eager: what is compared is each library's own arithmetic, not a compiler's of it.
    variables = {**python.variables(options.modules), "TORCHDYNAMO_DISABLE": "1"}
    command = [python.path, "-W", "ignore", "-m", "tools.real.quantise.libraries"]
    command += ["--verbose"] if options.verbose else []
    return subprocess.run(command, env=variables, check=False).returncode
