"""Daemons beside actors of a real Ray cluster, with several nodes on this machine: tools/real.sh ray."""

from __future__ import annotations

import argparse
import subprocess

from tools.real.environment import Interpreter

# All cases took 20 minutes on two cores that others used too, most of it to start processes.
_LIMIT_SECONDS = 2400.0


def run(options: argparse.Namespace, python: Interpreter) -> int:
    """The exit status."""
    command = [python.path, "-B", "-m", "tools.real.ray.run"]
    if options.only:
        command.append("--only=" + ",".join(options.only))
    if options.without_watch:
        command.append("--without-watch")
    variables = python.variables(options.modules)
    # Ray sends no statistics, and leaves CUDA_VISIBLE_DEVICES of actors without GPUs alone.
    variables.update(RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    with subprocess.Popen(command, env=variables) as process:
        try:
            return process.wait(_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"FAILED  ray: it did not end within {_LIMIT_SECONDS:g} s", flush=True)
            process.terminate()  # its exit ends the cluster
            return 1
