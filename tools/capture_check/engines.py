"""Runs the check with the Python of each engine that is there: tools/capture_check.sh."""

from __future__ import annotations

import argparse
import fnmatch
import os
import subprocess
import sys

from tools.capture_check.cases import CASES
from tools.real_engines.install.environment import ENGINES, Environment


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", required=True, help="folder of the environments")
    parser.add_argument("--modules", required=True, help="PYTHONPATH")
    parser.add_argument("--checkpoints", required=True, help="folder for the models' checkpoints")
    parser.add_argument("--only", required=True, help="a pattern of cases")
    options = parser.parse_args()
    wanted = [case.engine for case in CASES if fnmatch.fnmatchcase(case.name, options.only)]
    if not wanted:
        parser.error(f"--only: {options.only!r} matches no case, expected for example {CASES[0].name}")
    failed = False
    for engine in (engine for engine in ENGINES if engine in wanted):
        environment = Environment(options.engines, engine)
        if environment.version() is None:
            print(f"skipped: {environment.path} has no {engine}; tools/real_engines.sh --install makes it")
            continue
        variables = environment.variables(options.modules.split(os.pathsep))
        command = [environment.python, "-m", "tools.capture_check.check", f"--engine={engine}"]
        command += [f"--checkpoints={options.checkpoints}", f"--only={options.only}"]
        print(f"{engine} {environment.version()}", flush=True)
        failed |= subprocess.run(command, env={**os.environ, **variables}).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
