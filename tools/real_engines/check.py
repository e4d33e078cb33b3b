"""Runs real vLLM and SGLang beside real daemons: tools/real_engines.sh.

Each configuration is compared with engines that were started with the checkpoint of the same version, to the bit:
greedy tokens, log probabilities of sampled and of prompt tokens, and every parameter. torn.py searches for passes
that a commit has torn.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
import tempfile
import time
import traceback
from typing import Callable, Optional

from tools.real_engines import torn
from tools.real_engines.cells import CONFIGURATIONS, PAUSE_MODES, Configuration, chosen
from tools.real_engines.follower import FollowedEngine
from tools.real_engines.install.environment import ENGINES, Environment
from tools.real_engines.live import LiveEngine, check_transfer
from tools.real_engines.results import Result, read_results, table, write_results
from tools.real_engines.scene import Scene


def cell_names(packages: list[str]) -> list[str]:
    """Of the engines that are there, in the order in which they run."""
    names = []
    for package in packages:
        for one in CONFIGURATIONS:
            if one.package == package:
                names += [f"{one.name}/{check}" for check in one.checks]
        names += [f"{package}/torn/{mode}" for mode in torn.MODES[package]]
    return names


class Run:
    """Runs cells and keeps what they found. Cells that are reached after `minutes` are not run."""

    def __init__(self, module_paths: list[str], logs: str, seconds: float, minutes: float) -> None:
        self.results: dict[str, Result] = {}
        self._module_paths = module_paths
        self._logs = logs
        self._seconds = seconds
        self._deadline = time.monotonic() + 60 * minutes

    def _cell(self, name: str, check: Callable[[], str], logs: Callable[[], str]) -> None:
        if time.monotonic() > self._deadline:
            print(f"{name}: not run, the time is over", flush=True)
            return
        started = time.monotonic()
        try:
            result = Result(True, check())
        except Exception as error:
            result = Result(False, f"{type(error).__name__}: {error}"[:2000])
            traceback.print_exc()
            print(logs(), file=sys.stderr)
        self._keep(name, result, started)

    def _keep(self, name: str, result: Result, started: float) -> None:
        self.results[name] = result
        print(f"{name}: {result.shown} ({time.monotonic() - started:.0f} s)", flush=True)

    def configuration(
        self, one: Configuration, environment: Environment, checks: list[str]
    ) -> None:
        """Each check that cannot begin fails."""
        if time.monotonic() > self._deadline:
            return
        scene = Scene(one, environment, self._logs, self._module_paths)
        started = time.monotonic()
        left = list(checks)
        try:
            self._live(scene, left)
            if "transfer" in left:
                left.remove("transfer")
                self._cell(f"{one.name}/transfer", lambda: check_transfer(scene), str)
            self._followed(scene, left)
        except Exception as error:
            traceback.print_exc()
            for check in left:
                self._keep(f"{one.name}/{check}", Result(False, f"not begun: {error}"), started)
        finally:
            scene.close()

    def _live(self, scene: Scene, left: list[str]) -> None:
        one = scene.configuration
        checks = [check for check in left if check == one.checks[0] or check.startswith("kill-")]
        if not checks:
            return
        with LiveEngine(scene) as engine:
            for check in checks:
                left.remove(check)
                act = engine.check_versions if check == one.checks[0] else None
                self._cell(
                    f"{one.name}/{check}",
                    act or (lambda: engine.check_kill(check)),
                    engine.logs,
                )

    def _followed(self, scene: Scene, left: list[str]) -> None:
        one = scene.configuration
        checks = [check for check in left if check.startswith("follow-")]
        if not checks:
            return
        modes = PAUSE_MODES[one.package]
        with FollowedEngine(scene) as engine:
            for check in checks:
                left.remove(check)
                mode = check.removeprefix("follow-")
                self._cell(
                    f"{one.name}/{check}",
                    (lambda: engine.check_mode(mode))
                    if mode in modes
                    else (lambda: engine.check_kill(check, modes[0])),
                    engine.logs,
                )

    def torn(self, mode: str, environment: Environment) -> None:
        name = f"{environment.engine}/torn/{mode}"
        if time.monotonic() > self._deadline:
            print(f"{name}: not run, the time is over", flush=True)
            return
        started = time.monotonic()
        result = torn.run(mode, environment, self._module_paths, self._logs, self._seconds)
        self._keep(name, result, started)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/real_engines.sh", description=__doc__)
    parser.add_argument("--engines", required=True, help="the folder that --install has made")
    parser.add_argument("--modules", required=True, help="folders for PYTHONPATH")
    parser.add_argument("--only", help="patterns of cells, with commas")
    parser.add_argument("--all", action="store_true", help="every cell")
    parser.add_argument("--list", action="store_true", help="print the chosen cells, run none")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the search for torn passes")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no cell begins")
    parser.add_argument("--results", help="a file: what this run finds is added to what is there")
    parser.add_argument("--logs", help="a folder for the engines' logs, which then stay")
    return parser.parse_args()


def _terminated(*unused: object) -> None:
    raise SystemExit("real_engines.sh: terminated")


def main() -> int:
    options = arguments()
    # The processes that were started are ended on the way out.
    signal.signal(signal.SIGTERM, _terminated)
    found = {name: Environment(options.engines, name) for name in ENGINES}
    versions = {name: one.version() or "" for name, one in found.items() if one.version()}
    if not versions:
        print(f"skipped: {options.engines} has neither vLLM nor SGLang; --install makes it")
        return 0
    names = cell_names(list(versions))
    try:
        wanted = chosen(names, options.only.split(",") if options.only else None, options.all)
    except ValueError as error:
        print(f"real_engines.sh: {error}", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(wanted))
        return 0
    logs: Optional[str] = options.logs
    if logs is not None:
        os.makedirs(logs, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dws-") as folder:
        run = Run(options.modules.split(os.pathsep), logs or folder, options.seconds, options.minutes)
        for name in versions:
            for one in CONFIGURATIONS:
                checks = [c for c in one.checks if one.package == name and f"{one.name}/{c}" in wanted]
                if checks:
                    run.configuration(one, found[name], checks)
            for mode in torn.MODES[name]:
                if f"{name}/torn/{mode}" in wanted:
                    run.torn(mode, found[name])
    known = dict(run.results)
    if options.results:
        known = {**read_results(options.results, versions), **known}
        write_results(options.results, known, versions)
    print("\n" + table(known, names, versions, datetime.date.today().isoformat()), flush=True)
    # A cell that was wanted and has no result was not reached in time.
    return 0 if all(one.good for one in run.results.values()) and len(run.results) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
