"""Runs real vLLM and SGLang beside real daemons: tools/real.sh engines.

Each configuration is compared with engines that were started with the checkpoint of the same version, to the bit:
greedy tokens, log probabilities of sampled and of prompt tokens, and every parameter. torn.py searches for passes
that a commit has torn, drafts.py checks draft models that follow.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from typing import Any, Callable, Collection, Mapping, Optional

from tools.real.engines import drafts, torn
from tools.real.engines.cells import CONFIGURATIONS, PAUSE_MODES, Configuration, chosen
from tools.real.engines.follower import FollowedEngine
from tools.real.engines.live import LiveEngine, check_transfer
from tools.real.engines.results import Result
from tools.real.engines.scene import Scene
from tools.real.environment import Environment
from tools.real.report import Report


LATE = "not run, the time is over"
# Cells that are a script each, by group, package and mode.
SCRIPTED: dict[str, dict[str, dict[str, Any]]] = {"torn": torn.MODES, "draft": dict(drafts.MODES)}


def cell_names(packages: list[str]) -> list[str]:
    """The cells of the engines that are installed, in the order in which they run."""
    names = []
    for package in packages:
        for one in CONFIGURATIONS:
            if one.package == package:
                names += [f"{one.name}/{check}" for check in one.checks]
        names += [f"{package}/{group}/{mode}" for group, modes in SCRIPTED.items() for mode in modes[package]]
    return names


class Run:
    """Runs cells and keeps what they found. Cells that are reached after `minutes` are not run."""

    def __init__(
        self, module_paths: list[str], logs: str, seconds: float, minutes: float, compares: bool = False
    ) -> None:
        """Args:
        compares: engines attach with the option `checkpoint`.
        """
        self.results: dict[str, Result] = {}
        self.report = Report("real engines")
        self._module_paths = module_paths
        self._logs = logs
        self._seconds = seconds
        self._compares = compares
        self._deadline = time.monotonic() + 60 * minutes

    def _cell(self, name: str, check: Callable[[], str], logs: Callable[[], str]) -> None:
        if time.monotonic() > self._deadline:
            self.report.failed(name, LATE)
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
        say = self.report.ok if result.good else self.report.failed
        say(name, result.text, time.monotonic() - started)

    def configuration(
        self, one: Configuration, environment: Environment, checks: list[str]
    ) -> None:
        """Runs a configuration's checks in groups, each with an engine of its own. Checks that cannot begin fail."""
        if time.monotonic() > self._deadline:
            for check in checks:
                self.report.failed(f"{one.name}/{check}", LATE)
            return
        followed = [check for check in checks if check.startswith("follow-")]
        transfer = [check for check in checks if check == "transfer"]
        live = [check for check in checks if check not in (*followed, *transfer)]
        scene = Scene(one, environment, self._logs, self._module_paths, self._compares)
        try:
            for group, run in (
                (live, self._live),
                (transfer, self._transfer),
                (followed, self._followed),
            ):
                self._group(scene, group, run)
        finally:
            scene.close()

    def _group(
        self, scene: Scene, checks: list[str], run: Callable[[Scene, list[str]], None]
    ) -> None:
        """Args:
        run: takes the checks that it has begun from the list.
        """
        if not checks:
            return
        started = time.monotonic()
        try:
            run(scene, checks)
        except Exception as error:
            traceback.print_exc()
            for check in checks:
                name = f"{scene.configuration.name}/{check}"
                self._keep(name, Result(False, f"not begun: {error}"), started)

    def _live(self, scene: Scene, checks: list[str]) -> None:
        with LiveEngine(scene) as engine:
            while checks:
                check = checks.pop(0)
                kills = check.startswith("kill-")
                act = (lambda: engine.check_kill(check)) if kills else engine.check_versions
                self._cell(f"{scene.configuration.name}/{check}", act, engine.logs)

    def _transfer(self, scene: Scene, checks: list[str]) -> None:
        name = f"{scene.configuration.name}/{checks.pop()}"
        self._cell(name, lambda: check_transfer(scene), str)

    def _followed(self, scene: Scene, checks: list[str]) -> None:
        modes = PAUSE_MODES[scene.configuration.package]
        with FollowedEngine(scene) as engine:
            while checks:
                check = checks.pop(0)
                mode = check.removeprefix("follow-")
                act = (
                    (lambda: engine.check_mode(mode))
                    if mode in modes
                    else (lambda: engine.check_kill(check, modes[0]))
                )
                self._cell(f"{scene.configuration.name}/{check}", act, engine.logs)

    def cells(self, wanted: Collection[str], environments: Mapping[str, Environment]) -> None:
        for package, environment in environments.items():
            for one in CONFIGURATIONS:
                checks = [check for check in one.checks if f"{one.name}/{check}" in wanted]
                if one.package == package and checks:
                    self.configuration(one, environment, checks)
            for group, modes in SCRIPTED.items():
                for name, mode in modes[package].items():
                    if f"{package}/{group}/{name}" in wanted:
                        self.scripted(f"{package}/{group}/{name}", mode, environment)

    def scripted(self, name: str, mode: Any, environment: Environment) -> None:
        """Runs a cell of SCRIPTED."""
        if time.monotonic() > self._deadline:
            self.report.failed(name, LATE)
            return
        started = time.monotonic()
        log = name.replace("/", "-")
        result = torn.run(log, mode, environment, self._module_paths, self._logs, self._seconds)
        self._keep(name, result, started)


def _terminated(*unused: object) -> None:
    raise SystemExit("terminated")


def run(options: argparse.Namespace, engines: Mapping[str, Environment]) -> int:
    """Returns the exit status."""
    # On the way out, the processes that were started are ended.
    signal.signal(signal.SIGTERM, _terminated)
    names = cell_names(list(engines))
    wanted = chosen(names, options.only, options.all)
    if options.list:
        print("\n".join(wanted))
        return 0
    logs: Optional[str] = options.logs
    if logs is not None:
        os.makedirs(logs, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dws-") as folder:
        cells = Run(options.modules, logs or folder, options.seconds, options.minutes, options.compare)
        cells.cells(wanted, engines)
    return cells.report.end()
