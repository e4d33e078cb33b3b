"""Runs the programs of docs/quickstart side by side, as their pages say, with few steps: tools/real.sh quickstart.

What both sides print must agree: digests of all weights, or versions. Without SGLang's environment in --engines the page of
slime is skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Optional, Sequence

from tools.real.environment import Environment, Interpreter
from tools.real.report import Report, matching
from tools.real.server import free_port
from tools.real.trainers.check import missing_packages

EXAMPLES = os.path.abspath("clients/examples")
PROGRAMS = ("sender_daemon/dws-sender", "receiver_daemon/dws-receiver")
STEPS = 4
SECONDS_MAX = 900.0  # of one page
END_SECONDS = 20.0
_SGLANG_ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph", "--skip-tokenizer-init"),
    *("--dtype", "bfloat16", "--max-total-tokens", "4096"),
)


class CheckFailed(Exception):
    """A program failed, did not end in time, or both do not agree."""


@dataclasses.dataclass(frozen=True)
class Page:
    """Two programs, which run at a time. `before`: one that runs first; `needs`: packages; MODEL stands for a folder."""

    trainer: Sequence[str]
    engine: Sequence[str]
    before: Sequence[str] = ()
    needs: Sequence[str] = ("torch",)


_RUN = "-m torch.distributed.run --standalone --nproc-per-node 2".split()
PAGES = {
    "fsdp2": Page([*_RUN, "train_fsdp2.py", "train"], ["train_fsdp2.py", "engine"]),
    "trl": Page(
        ["train_trl.py", "train"], ["train_trl.py", "engine"], needs=("torch", "transformers", "accelerate", "trl", "datasets")
    ),
    "vllm": Page(
        ["serve_vllm.py", "train", "MODEL"],
        ["serve_vllm.py", "engine", "MODEL"],
        ["serve_vllm.py", "model", "MODEL"],
        ("torch", "transformers", "vllm"),
    ),
}
NAMES = [*PAGES, "slime"]


class Place:
    """A folder for one page's files and logs, and the environment of its programs. Lifecycle: a context manager; its end ends
    the programs, each with all that it has started."""

    def __init__(self, python: str, variables: dict[str, str], logs: Optional[str]) -> None:
        self._python = python
        self._variables = variables
        self._stack = contextlib.ExitStack()
        self.folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dws-quickstart-"))
        self._logs = logs or self.folder
        os.makedirs(self._logs, exist_ok=True)
        programs = os.path.join(self.folder, "bin")
        os.mkdir(programs)
        for program in PROGRAMS:
            os.symlink(os.path.abspath(program), os.path.join(programs, os.path.basename(program)))
        self._variables["PATH"] = os.pathsep.join([programs, os.path.dirname(python), os.environ["PATH"]])

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *unused: object) -> None:
        self._stack.close()

    def start(self, name: str, words: Sequence[str], **more: str) -> subprocess.Popen[bytes]:
        """Starts a program of the examples; its log has that name."""
        words = [os.path.join(self.folder, "model") if word == "MODEL" else word for word in words]
        command = [self._python, *words] if not words[0].endswith(".sh") else ["bash", *words]
        log = self._stack.enter_context(open(self._log(name), "w"))
        process = subprocess.Popen(
            command, cwd=EXAMPLES, env={**self._variables, **more}, stdout=log, stderr=log, start_new_session=True
        )
        self._stack.callback(_end, process)
        return process

    def wait(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Raises CheckFailed unless it ends as it should."""
        try:
            status = process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise CheckFailed(f"the {name} did not end within {SECONDS_MAX:.0f} s") from error
        if status != 0:
            raise CheckFailed(f"the {name} ended with status {status}")

    def read(self, name: str) -> str:
        with open(self._log(name), errors="replace") as file:
            return file.read()

    def _log(self, name: str) -> str:
        return os.path.join(self._logs, f"{name}.log")

    def ends(self) -> str:
        """The ends of all logs."""
        logs = sorted(name for name in os.listdir(self._logs) if name.endswith(".log"))
        return "".join(f"--- {name}\n{self.read(name[:-4])[-6000:]}" for name in logs)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends its session's processes: by SIGINT, as ^C does, and by SIGKILL those that are left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def told(text: str) -> dict[int, str]:
    """What a program has printed of each version: its digest, or else all that follows the number."""
    found = {}
    for version, rest in re.findall(r"^version (\d+): (.*)$", text, re.M):
        digest = re.search(r"digest (\w+)$", rest)
        found[int(version)] = digest[1] if digest else rest
    return found


def compare(trainer: dict[int, str], engine: dict[int, str], digests: bool) -> str:
    """Returns what was found in words.

    Args:
      digests: whether both have printed them.

    Raises:
      CheckFailed: the engine does not have the trainer's last version, or had another version than the trainer.
    """
    if len(trainer) < STEPS or max(engine, default=0) != max(trainer):
        raise CheckFailed(f"the trainer published {sorted(trainer)}, the engine had {sorted(engine)}")
    if digests:
        wrong = [version for version, digest in engine.items() if trainer.get(version) != digest]
        if wrong:
            raise CheckFailed(f"digests differ at versions {wrong}")
        return f"equal digests at versions {sorted(engine)}"
    if len(set(engine.values())) < 2:
        raise CheckFailed(f"the engine gave the same answers at versions {sorted(engine)}")
    return f"answers of versions {sorted(engine)}"


def run_page(page: Page, place: Place) -> str:
    """Runs trainer and engine of a page. Raises CheckFailed."""
    if page.before:
        place.wait("model", place.start("model", page.before))
    steps = f"--steps={STEPS}"
    trainer = place.start("trainer", [*page.trainer, steps])
    engine = place.start("engine", [*page.engine, steps])
    place.wait("trainer", trainer)
    place.wait("engine", engine)
    return compare(told(place.read("trainer")), told(place.read("engine")), "digest" in place.read("trainer"))


def run_slime(place: Place) -> str:
    """A real SGLang beside version folders. Raises CheckFailed."""
    base, versions, local = (os.path.join(place.folder, name) for name in ("model", "versions", "local"))
    place.wait("model", place.start("model", ["write_slime_versions.py", "model", base]))
    port = str(free_port())
    engine = place.start("engine", ["follow_slime.sh", base, versions, local, *_SGLANG_ON_CPU], PORT=port)
    writer = place.start("trainer", ["write_slime_versions.py", "write", base, versions, f"--steps={STEPS}"])
    place.wait("writer of versions", writer)
    deadline = time.monotonic() + SECONDS_MAX
    version = ""
    while version != str(STEPS):
        if engine.poll() is not None or time.monotonic() > deadline:
            raise CheckFailed(f"SGLang is at version '{version}', expected {STEPS}")
        with contextlib.suppress(OSError, ValueError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/model_info", timeout=10) as answer:
                version = str(json.load(answer)["weight_version"])
        time.sleep(0.5)
    return f"SGLang serves version {version}"


def run(options: argparse.Namespace, python: Interpreter) -> int:
    """Returns the exit status."""
    report = Report("quickstarts")
    names = NAMES if options.only is None else matching(NAMES, options.only)
    sglang = Environment(os.path.abspath(options.engines), "sglang") if options.engines else None
    for name in names:
        say = report.skipped if options.only is None else report.failed
        if name == "slime":
            if sglang is None or sglang.version() is None:
                say(name, "no SGLang in --engines; tools/real.sh install makes it")
                continue
            program, variables = sglang.python, {**os.environ, **sglang.variables(options.modules), "PYTHON": sglang.python}
        else:
            if lacks := missing_packages(python, PAGES[name].needs):
                say(name, f"{', '.join(sorted(lacks))} missing")
                continue
            program, variables = python.path, python.variables(options.modules)
        variables.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", VLLM_NO_USAGE_STATS="1")
        _report(report, name, program, variables, options.logs)
    return report.end()


def _report(report: Report, name: str, program: str, variables: dict[str, str], logs: Optional[str]) -> None:
    started = time.monotonic()
    with Place(program, variables, os.path.join(logs, name) if logs else None) as place:
        try:
            found = run_slime(place) if name == "slime" else run_page(PAGES[name], place)
            report.ok(name, found, time.monotonic() - started)
        except CheckFailed as error:
            report.failed(name, str(error), time.monotonic() - started)
            print(place.ends(), file=sys.stderr)
