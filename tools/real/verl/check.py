"""verl's own manager and workers with the checkpoint engine `dws`, on the CPU: tools/real.sh verl.

The program verl_run.py runs with verl's Python. It starts Ray for itself and reports each case as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile

from tests.integration.cluster import RECEIVER, SENDER
from tools.real.environment import Interpreter
from tools.real.report import Report

_SECONDS_MAX = 900.0  # Ray starts a process for each worker, and each imports verl


def run(options: argparse.Namespace, python: Interpreter) -> int:
    """The exit status."""
    report = Report("cases")
    here = os.path.dirname(os.path.abspath(__file__))
    program = os.path.join(here, "verl_run.py")
    # Ray's sockets are in it: a short path.
    with tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp") as folder:
        command = [python.path, program, folder, os.path.abspath(SENDER), os.path.abspath(RECEIVER)]
        environment = {**python.variables([*options.modules, here]), "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1",
                       "RAY_worker_niceness": "0"}  # fmt: skip
        environment.pop("RAY_ADDRESS", None)
        log = os.path.join(folder, "log")
        with open(log, "wb") as errors, subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as process:
            try:
                output, _ = process.communicate(timeout=_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                report.failed("verl/time", f"not done after {_SECONDS_MAX:.0f} s")
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # Ray's processes, which are of its group, too
        for line in output.splitlines():
            if line.startswith("{"):
                case = json.loads(line)
                (report.ok if case["ok"] else report.failed)(f"verl/{case['name']}", case["text"])
        if process.returncode != 0:
            with open(log, encoding="utf-8", errors="replace") as file:
                report.failed("verl/run", f"ended with status {process.returncode}:\n{file.read()[-4000:]}")
    return report.end()
