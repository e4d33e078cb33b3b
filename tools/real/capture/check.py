"""Compares the mappings that attaching makes with what real engines load, with random weights: tools/real.sh capture. Each
parameter has to be, to the bit, what its mapping gathers from the checkpoint."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from typing import Mapping

from tools.real.capture.cases import CASES
from tools.real.environment import Environment
from tools.real.report import matching


def run(options: argparse.Namespace, engines: Mapping[str, Environment]) -> int:
    """The exit status."""
    names = [case.name for case in CASES]
    wanted = matching(names, options.only or ["*"])
    failed = False
    with tempfile.TemporaryDirectory(prefix="dws-") as checkpoints:
        for engine in dict.fromkeys(case.engine for case in CASES if case.name in wanted):
            if engine not in engines:
                print(f"skipped {engine}: tools/real.sh install makes it")
                continue
            environment = engines[engine]
            print(f"{engine} {environment.version()}", flush=True)
            command = [environment.python, "-m", "tools.real.capture.ranks", f"--engine={engine}"]
            command += [f"--checkpoints={checkpoints}", *(name for name in wanted if name.startswith(engine))]
            variables = {**os.environ, **environment.variables(options.modules)}
            failed |= subprocess.run(command, env=variables, check=False).returncode != 0
    return 1 if failed else 0
