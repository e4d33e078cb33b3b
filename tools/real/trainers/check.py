"""Runs real trainers beside real daemons and compares the bits of what an engine got: tools/real.sh
trainers.

In each case a trainer publishes through a sender for each of its ranks, and an engine of plain torch, a process
of its own, reports the digest of all of its weights at each version.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from typing import IO, Collection, Optional

from tests.integration.cluster import Cluster
from tools.real.environment import Interpreter
from tools.real.report import Report, matching

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS_MAX = 600.0  # of one case
END_SECONDS = 10.0
_ROUNDS = 100
_MARK = "DWS_REAL_CASE"  # in the environment of a case's processes
# One thread, because the results of sums may depend on the number of threads.
_ENVIRONMENT = {
    "PYTHONFAULTHANDLER": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """`run`: the trainer's program; `kind`: of models.py; `dtype`: of the engine; `ranks`: by torchrun if
    there are several; `senders`: one for each rank that publishes; `options`: of the program; `engine`: whether there is one of plain torch;
    `engine_parts`: in how many tensors it holds a weight; `peers`: whether the senders train on demand with each other; `needs`: packages.
    """

    run: str
    kind: str = "qwen3"
    dtype: str = "float32"
    ranks: int = 1
    senders: int = 1
    options: tuple[str, ...] = ()
    engine: bool = True
    engine_parts: int = 1
    peers: bool = False
    needs: tuple[str, ...] = ("torch", "transformers", "accelerate")

    def command(self, python: str) -> list[str]:
        program = os.path.join(HERE, self.run)
        if self.ranks == 1:
            return [python, program]
        launcher = [python, "-m", "torch.distributed.run", "--standalone"]
        return [*launcher, f"--nproc-per-node={self.ranks}", program]


_FSDP = ("torch",)
_TRL = ("torch", "transformers", "accelerate", "trl", "datasets")


def _mesh(layout: str, ranks: int, engine_parts: int = 1) -> Case:
    return Case(
        "mesh_run.py",
        kind="wide",
        ranks=ranks,
        senders=ranks,
        options=(f"--layout={layout}",),
        engine_parts=engine_parts,
        needs=_FSDP,
    )


def _flat(layout: str, ranks: int, kind: str = "uneven", dtype: str = "float32") -> Case:
    return Case(
        "flat_run.py",
        kind=kind,
        dtype=dtype,
        ranks=ranks,
        senders=ranks,
        options=(f"--layout={layout}", f"--kind={kind}"),
        engine_parts=3,
        needs=("torch", "deepspeed") if layout.startswith("zero") else _FSDP,
    )


def _megatron(layout: str, kind: str) -> Case:
    return Case(
        "megatron_run.py",
        kind=kind,
        ranks=4,
        senders=4,
        options=(f"--layout={layout}",),
        needs=("torch", "transformers", "megatron"),
    )


def _on_demand(run: str, senders: int, ranks: int, *options: str) -> Case:
    return Case(run, ranks=ranks, senders=senders, options=options, engine=False, peers=True, needs=_FSDP)


def _faults(case: str) -> Case:
    """It has daemons of its own."""
    return Case("on_demand_faults.py", senders=0, options=(f"--case={case}",), engine=False, needs=_FSDP)


def _names(model: str, via: str, *more: str) -> Case:
    """The engine is vLLM.

    Args:
      more: packages that the model needs.
    """
    needs = ("torch", "transformers", "vllm", *{"hf": ("accelerate",), "grpo": _TRL}.get(via, ()), *more)
    options = (f"--model={model}", f"--via={via}")
    return Case("names_run.py", senders=2 if via == "fsdp2" else 1, options=options, engine=False, needs=needs)


def _adapter(layout: str, ranks: int = 1, dtype: str = "float32", needs: tuple[str, ...] = ("torch", "transformers", "accelerate")) -> Case:
    options = (f"--layout={layout}",)
    return Case("adapter_run.py", dtype=dtype, ranks=ranks, senders=ranks, options=options, engine=False, needs=(*needs, "peft"))


CASES = {
    "hf": Case("hf_run.py"),
    "hf-bfloat16": Case("hf_run.py", dtype="bfloat16"),
    "hf-ddp": Case("hf_run.py", ranks=2, senders=2),
    "hf-zero3": Case(
        "hf_run.py",
        dtype="bfloat16",
        ranks=2,
        senders=2,
        options=("--zero3",),
        needs=("torch", "transformers", "accelerate", "deepspeed"),
    ),
    "hf-adapter": _adapter("hf", dtype="bfloat16"),
    "fsdp2": Case("fsdp_run.py", kind="uneven", ranks=2, senders=2, needs=_FSDP),
    "fsdp2-bfloat16": Case(
        "fsdp_run.py", kind="uneven", dtype="bfloat16", ranks=2, senders=2, needs=_FSDP
    ),
    "listed": Case("listed_run.py", kind="wide", dtype="bfloat16", needs=("torch", "triton")),
    "ddp": _mesh("ddp", 2),
    "hsdp": _mesh("hsdp", 4),
    "tp": _mesh("tp", 2),
    "fsdp2-tp": _mesh("fsdp2-tp", 4),
    "fsdp2-tp-by-rows": _mesh("fsdp2-tp-by-rows", 4),
    "fsdp2-to-tp": _mesh("fsdp2", 4, engine_parts=3),
    "experts": _mesh("experts", 4),
    "fsdp1": _flat("fsdp1", 3, kind="wide", dtype="bfloat16"),
    "fsdp1-flat": _flat("fsdp1-flat", 3),
    "fsdp1-hybrid": _flat("fsdp1-hybrid", 4, kind="wide"),
    "zero3": _flat("zero3", 3, dtype="bfloat16"),
    "zero3-offload": _flat("zero3-offload", 3, kind="wide", dtype="bfloat16"),
    "zero2": _flat("zero2", 2, dtype="bfloat16"),
    "megatron": _megatron("qwen3", "qwen3"),
    "megatron-tp4": _megatron("qwen3-tp4", "qwen3"),
    "megatron-moe": _megatron("qwen3-moe", "qwen3-moe"),
    "megatron-moe-etp": _megatron("qwen3-moe-etp", "qwen3-moe"),
    "on_demand": _on_demand("on_demand_run.py", 3, 3),
    "on_demand-2": _on_demand("on_demand_run.py", 2, 2, "--steps=40"),
    "on_demand-killed": _on_demand("on_demand_killed_run.py", 3, 1),
    "on_demand-engines": _faults("engines"),
    "on_demand-leader": _faults("leader"),
    "on_demand-proxy": _faults("proxy"),
    "on_demand-publish": Case("on_demand_publish.py", senders=0, engine=False, needs=_FSDP),
    "on_demand-ranks": _faults("ranks"),
    "on_demand-silent": _faults("silent"),
    "on_demand-staged": _on_demand("on_demand_run.py", 2, 2, "--steps=40", "--staged"),
    "on_demand-stopped": _faults("stopped"),
    "on_demand-whole": _faults("whole"),
    "names-qwen3-moe": _names("qwen3_moe", "fsdp2"),
    "names-granitemoe": _names("granitemoe", "fsdp2"),
    "names-olmoe": _names("olmoe", "publisher"),
    "names-mixtral": _names("mixtral", "fsdp2"),
    "names-gpt-neox": _names("gpt_neox", "publisher"),
    "names-qwen2-moe-hf": _names("qwen2_moe", "hf"),
    "names-qwen3-moe-grpo": _names("qwen3_moe", "grpo"),
    "names-deepseek-v3": _names("deepseek_v3", "publisher"),  # vLLM casts the bias of its router to FP32
    "names-qwen3-next": _names("qwen3_next", "publisher"),
    "names-gemma3-vl": _names("gemma3", "publisher", "torchvision"),  # vLLM asks transformers for its processor of images
    "names-afmoe": _names("afmoe", "fsdp2"),  # vLLM casts its router and the bias of that to FP32
    "names-ernie4-5-moe": _names("ernie4_5_moe", "publisher"),  # the bias of its router has a dimension more than vLLM's
    "fsdp2-adapter": _adapter("fsdp2", ranks=2),
    "grpo": Case("grpo_run.py", needs=_TRL),
    "grpo-adapter": _adapter("grpo", needs=_TRL),
    "grpo-async": Case("grpo_async_run.py", needs=(*_TRL, "requests", "aiohttp")),
    "grpo-vllm": Case("grpo_vllm_run.py", engine=False, needs=(*_TRL, "vllm")),
}


def missing_packages(python: Interpreter, packages: Collection[str]) -> set[str]:
    """Those of `packages` that the Python does not have."""
    program = "import importlib.util, json, sys; print(json.dumps([n for n in sys.argv[1:] if not importlib.util.find_spec(n)]))"
    command = [python.path, "-c", program, *packages]
    answer = subprocess.run(command, env=python.variables([]), check=True, stdout=subprocess.PIPE, text=True)
    return set(json.loads(answer.stdout))


def marked(mark: str) -> list[int]:
    """The processes in whose environment _MARK is `mark`: those that a case has started, and all that these have started,
    whatever session or parent they have now."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            with open(f"/proc/{entry}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(entry))
    return found


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Ends the process, which has END_SECONDS to end what it has started, and then all that are marked."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    for _ in range(_ROUNDS):  # one may start another meanwhile
        if not (left := marked(mark)):
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    process.wait()


def run_case(
    case: Case, python: Interpreter, modules: list[str], log_folder: Optional[str]
) -> tuple[Optional[str], str]:
    """Returns the trainer's last line if it succeeded, and the ends of all logs.

    Args:
      modules: for PYTHONPATH.
      log_folder: where logs of trainer and engine stay.
    """
    environment = {**python.variables(modules), **_ENVIRONMENT}

    def start(command: list[str], log: IO[str]) -> subprocess.Popen[bytes]:
        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            command, env={**environment, _MARK: mark}, stdout=log, stderr=log, start_new_session=True
        )
        stack.callback(_end, process, mark)
        return process

    with Cluster("trainers-check") as cluster, contextlib.ExitStack() as stack:
        folder = cluster.folder
        sockets = [f"unix:{folder}/sender-{rank}/d.sock" for rank in range(case.senders)]
        flags = [f"--train-peers={','.join(sockets)}"] if case.peers else []
        for rank in range(case.senders):
            cluster.start_sender(rank, *flags)
        receiver = os.path.join(folder, "engine", "d.sock")
        if case.senders:
            cluster.start_receiver("engine")
        seen = os.path.join(folder, "seen")
        logs = {
            name: os.path.join(log_folder or folder, f"{name}.log")
            for name in ("engine", "trainer")
        }
        files = {name: stack.enter_context(open(path, "w")) for name, path in logs.items()}
        engine = [python.path, os.path.join(HERE, "engine.py"), f"--receiver={receiver}"]
        engine += [f"--kind={case.kind}", f"--dtype={case.dtype}", f"--seen={seen}"]
        engine += [f"--parts={case.engine_parts}"]
        if case.engine:
            start(engine, files["engine"])
        command = [
            *case.command(python.path),
            *case.options,
            f"--sender={folder}/sender-{{rank}}/d.sock",
            f"--seen={seen}",
        ]
        command += [f"--receiver={receiver}", f"--job-id={cluster.job_id}"]
        command += [f"--dtype={case.dtype}"]
        trainer = start(command, files["trainer"])
        with contextlib.suppress(subprocess.TimeoutExpired):
            trainer.wait(SECONDS_MAX)
        texts = {}
        for name, path in logs.items():
            with open(path, errors="replace") as log:
                texts[name] = log.read()
        lines = [line for line in texts["trainer"].splitlines() if line.startswith("ok: ")]
        good = trainer.returncode == 0 and bool(lines)
        texts["trainer"] += f"\nstatus {trainer.returncode}\n"
        everything = "".join(f"--- {k}\n{v[-6000:]}" for k, v in texts.items()) + cluster.logs()
        return (lines[-1] if good else None), everything


def run(options: argparse.Namespace, python: Interpreter) -> int:
    """Returns the exit status."""
    report = Report("real trainers")
    names = list(CASES) if options.only is None else matching(list(CASES), options.only)
    lacking = missing_packages(python, {package for name in names for package in CASES[name].needs})
    for name in names:
        if lacks := [package for package in CASES[name].needs if package in lacking]:
            say = report.skipped if options.only is None else report.failed
            say(name, f"{', '.join(lacks)} missing")
            continue
        log_folder = os.path.join(options.logs, name) if options.logs else None
        if log_folder:
            os.makedirs(log_folder, exist_ok=True)
        line, logs = run_case(CASES[name], python, options.modules, log_folder)
        if line is None:
            report.failed(name)
            print(logs, file=sys.stderr)
        else:
            report.ok(name, line.removeprefix("ok: "))
    return report.end()
