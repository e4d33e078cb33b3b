"""Runs the programs of docs/quickstart side by side, as their pages say, with few steps: tools/real.sh quickstart.

What both sides print must agree: digests of all weights, or versions. The pages of slime and of vLLM's server are skipped
without those engines' environments in --engines.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import time
import urllib.request
from typing import Callable, Optional, Sequence

from tools.real.environment import Environment, Interpreter
from tools.real.quickstart import served
from tools.real.quickstart.place import SECONDS_MAX, STEPS, CheckFailed, Place, compare, told
from tools.real.report import Report, matching
from tools.real.server import free_port
from tools.real.trainers.check import missing_packages

_SGLANG_ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph", "--skip-tokenizer-init"),
    *("--dtype", "bfloat16", "--max-total-tokens", "4096"),
)


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
# These run with a server of --engines; the packages are the trainer's.
SERVED: dict[str, tuple[Callable[[Place, Environment, list[str]], str], Sequence[str]]] = {
    "vllm-serve": (served.run_serve, ("torch", "transformers")),
    "trl-vllm": (served.run_trl, (*PAGES["trl"].needs, "vllm")),  # TRL asks for it
}
NAMES = [*PAGES, *SERVED, "slime"]


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
    for name in NAMES if options.only is None else matching(NAMES, options.only):
        say = report.skipped if options.only is None else report.failed
        engine = _engine(name, options)
        if engine is not None and engine.version() is None:
            say(name, f"no {engine.engine} in --engines; tools/real.sh install makes it")
            continue
        if name == "slime":
            assert engine is not None
            program, variables = engine.python, {**os.environ, **engine.variables(options.modules), "PYTHON": engine.python}
        else:
            if lacks := missing_packages(python, PAGES[name].needs if name in PAGES else SERVED[name][1]):
                say(name, f"{', '.join(sorted(lacks))} missing")
                continue
            program, variables = python.path, python.variables(options.modules)
        variables.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", VLLM_NO_USAGE_STATS="1")
        with Place(program, variables, os.path.join(options.logs, name) if options.logs else None) as place:
            _report(report, name, place, engine, options.modules)
    return report.end()


def _engine(name: str, options: argparse.Namespace) -> Optional[Environment]:
    """Where the page's server is; None: it has none."""
    if name in PAGES:
        return None
    return Environment(os.path.abspath(options.engines or "engines"), "sglang" if name == "slime" else "vllm")


def _report(report: Report, name: str, place: Place, engine: Optional[Environment], modules: list[str]) -> None:
    started = time.monotonic()
    try:
        if name in PAGES:
            found = run_page(PAGES[name], place)
        elif engine is None or name == "slime":
            found = run_slime(place)
        else:
            found = SERVED[name][0](place, engine, modules)
        report.ok(name, found, time.monotonic() - started)
    except (CheckFailed, RuntimeError) as error:
        report.failed(name, str(error), time.monotonic() - started)
        print(place.ends(), file=sys.stderr)
