"""Runs the families, and the test of dws.declare, with the named Python: tools/real.sh declare."""

from __future__ import annotations

import argparse
import subprocess

from tools.real.environment import Interpreter


def run(options: argparse.Namespace, python: Interpreter) -> int:
    """The exit status."""
    variables = python.variables(options.modules)
    table = [options.table] if options.table else []
    statuses = [
        subprocess.run([python.path, "-m", *module], env=variables, check=False).returncode
        for module in (
            ["tools.real.declare.families", *table],
            ["tests.clients.python.declare.declare_test"],
            ["tests.clients.python.declare.conversion_test"],
        )
    ]
    return 1 if any(statuses) else 0
