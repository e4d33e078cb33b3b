"""Adapters of LoRA in real engines beside real daemons: tools/real.sh adapters.

Each step of each adapter is compared, to the bit, with an engine that has loaded the checkpoint of that step: greedy tokens, log
probabilities of prompt and tokens, and what is in the adapter's slot."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
import time
from typing import Any, Mapping, Optional

from tests.integration.cluster import Cluster
from tools.real.engines.torn import end_processes
from tools.real.environment import Environment
from tools.real.report import Report, matching

HERE = os.path.dirname(os.path.abspath(__file__))
RUN_SECONDS = 1200.0
# Ways to run an engine: the ranks, and more arguments of vllm.LLM, or of SGLang's server.
_SYNCHRONOUS = {"async_scheduling": False}
MODES: dict[str, tuple[int, Any]] = {
    "vllm/tp1": (1, _SYNCHRONOUS),
    "vllm/tp1-async": (1, {"async_scheduling": True}),
    "vllm/tp2": (2, {}),
    "sglang/tp1": (1, []),
    "sglang/tp1-synchronous": (1, ["--disable-overlap-schedule"]),
    "sglang/tp2": (2, []),
}
_DEFAULT = ("*/tp1/*", "*/tp2/*")
CASES = tuple(f"{mode}/{what}" for mode in MODES for what in ("equal", "torn"))
ADAPTERS = ("math", "code")


def run(options: argparse.Namespace, engines: Mapping[str, Environment]) -> int:
    """The exit status."""
    report = Report("adapters")
    for name in matching(CASES, options.only or list(_DEFAULT)):
        mode, _, what = name.rpartition("/")
        environment = engines.get(mode.partition("/")[0])
        if environment is None:
            report.skipped(name, "tools/real.sh install makes it")
            continue
        started = time.monotonic()
        try:
            found = {"equal": _equal, "torn": _torn}[what](Runner(options, environment, mode))
        except RuntimeError as error:
            report.failed(name, str(error), time.monotonic() - started)
        else:
            report.ok(name, found, time.monotonic() - started)
    return report.end()


def _equal(runner: "Runner") -> str:
    with runner.scene():
        found = runner.run("fresh")
        with open(os.path.join(runner.folder, "fresh.json"), "w") as file:
            json.dump(found, file)
        compared = runner.run("live")["compared"]
    if not compared:
        raise RuntimeError("nothing was compared")
    return f"{compared} times as a fresh engine"


def _torn(runner: "Runner") -> str:
    with runner.scene():
        found = runner.run("torn", "--seconds", str(runner.seconds))
    text = "; ".join(f"{name}: {one['steps']} passes, {one['commits']} commits, {one['torn']} torn" for name, one in found.items())
    # Without commits, and steps of both versions among them, nothing was tested.
    if any(one["torn"] or one["commits"] < 2 or one["versions"] != 2 for one in found.values()):
        raise RuntimeError(text)
    return text


class Runner:
    """Runs of vllm_run.py or sglang_run.py with one sender and one receiver for each adapter.

    Attributes:
      folder: for models, inside `scene`.
      seconds: how long requests run while versions alternate.
    """

    def __init__(self, options: argparse.Namespace, environment: Environment, mode: str) -> None:
        self.folder = ""
        self.seconds: float = options.seconds
        self._modules: list[str] = options.modules
        self._environment = environment
        self._ranks, self._engine = MODES[mode]
        self._daemons: dict[str, dict[str, str]] = {}

    @contextlib.contextmanager
    def scene(self) -> Any:
        """A block with daemons and a folder."""
        with contextlib.ExitStack() as stack:
            self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dws-"))
            for name in ADAPTERS:
                cluster = stack.enter_context(Cluster(f"real-{name}"))
                sender, receiver = cluster.start_sender(), cluster.start_receiver("engine")
                self._daemons[name] = {"sender": sender.socket, "receiver": receiver.socket, "job_id": cluster.job_id}
            yield

    def run(self, what: str, *more: str) -> Any:
        """The JSON that the run ends with.

        Raises:
          RuntimeError: it failed; with its last lines.
        """
        command = [self._environment.python, os.path.join(HERE, f"{self._environment.engine}_run.py"), what, "--folder", self.folder]
        command += ["--daemons", json.dumps(self._daemons), "--tp", str(self._ranks), "--engine", json.dumps(self._engine), *more]
        variables = {**os.environ, **self._environment.variables(self._modules)}
        variables["VLLM_CACHE_ROOT"] = os.path.join(self.folder, "cache")
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        log_path = os.path.join(self.folder, f"{what}.log")
        with open(log_path, "w") as log:
            process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
            try:
                code: Optional[int] = process.wait(RUN_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_processes(process)
        with open(log_path, errors="replace") as log:
            lines = log.readlines()
        if code != 0:
            raise RuntimeError(f"{what}: {'it did not end in time' if code is None else f'status {code}'}:\n{''.join(lines[-30:])}")
        return json.loads(next(line for line in reversed(lines) if line[:1] == "{"))
