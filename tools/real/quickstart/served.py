"""The parts of docs/quickstart with a server: real vLLM as `vllm serve`, beside the trainer of the page."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Iterator

from dws import daemons
from tools.real.environment import Environment
from tools.real.quickstart.place import STEPS, CheckFailed, Place, compare, told
from tools.real.server import Server

RUN_DIR = "/tmp/dws-quickstart"  # as in the examples
SECONDS_MAX = 600.0
REQUEST = {
    **{"prompt": [3, 1, 4, 1, 5, 9, 2, 6], "max_tokens": 8, "temperature": 0.0},
    **{"ignore_eos": True, "detokenize": False, "return_token_ids": True},
}
_ON_CPU = ("--enforce-eager", "--worker-extension-cls", "vllm_on_cpu.WorkerExtension")
_TRL = ("--load-format", "dummy", "--max-model-len", "64", "--logprobs-mode", "processed_logprobs")
_VARIABLES = {
    **{"VLLM_SERVER_DEV_MODE": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"},
    **{"VLLM_CPU_KVCACHE_SPACE": "1", "TORCHDYNAMO_DISABLE": "1"},
}


@contextlib.contextmanager
def _served(vllm: Environment, place: Place, modules: list[str], *flags: str) -> Iterator[Server]:
    """`vllm serve` of the page's model; at the end it is ended. Raises RuntimeError: it does not listen."""
    server = Server(
        [os.path.join(vllm.path, "bin", "vllm"), "serve", os.path.join(place.folder, "model"), *_ON_CPU, *flags],
        {**vllm.variables([os.path.abspath("clients/examples"), *modules]), **_VARIABLES},
        "/version",
        vllm.python,
        place.log("engine"),
    )
    try:
        yield server
    finally:
        server.end()


def _version(server: Server) -> int:
    """The version that its worker has; 0: none."""
    status = server.post("/collective_rpc", {"method": "dws_status"})["results"][0]
    return status["version"] or 0


def run_serve(place: Place, vllm: Environment, modules: list[str]) -> str:
    """The page of vLLM: a server is attached to a receiver beside it. Raises CheckFailed, RuntimeError."""
    place.wait("model", place.start("model", ["serve_vllm.py", "model", "MODEL"]))
    answers: dict[int, str] = {}
    with _served(vllm, place, modules, "--skip-tokenizer-init") as server:
        trainer = place.start("trainer", ["serve_vllm.py", "train", "MODEL", f"--steps={STEPS}"])
        program = os.path.join(place.folder, "bin", "dws-receiver")
        sender = f"unix:{RUN_DIR}/vllm/sender-0/d.sock"
        with daemons.receiver("rollout-0", sender, "vllm", run_dir=RUN_DIR, program=program) as receiver:
            attach = {"method": "dws_attach", "kwargs": {"socket": receiver.socket, "timeout": SECONDS_MAX}}
            server.post("/collective_rpc", attach, SECONDS_MAX)
            deadline = time.monotonic() + SECONDS_MAX
            while max(answers, default=0) < STEPS:
                if time.monotonic() > deadline:
                    raise CheckFailed(f"vLLM is at version {_version(server)}, expected {STEPS}")
                version = _version(server)
                answer = server.post("/v1/completions", REQUEST)["choices"][0]["token_ids"]
                # A version that is committed meanwhile makes an answer of two versions.
                if version and _version(server) == version:
                    answers[version] = str(answer)
            server.post("/collective_rpc", {"method": "dws_detach"})
        place.wait("trainer", trainer)
    return compare(told(place.read("trainer")), answers, False)


def run_trl(place: Place, vllm: Environment, modules: list[str]) -> str:
    """The page of TRL: the server generates GRPO's completions. Raises CheckFailed, RuntimeError."""
    place.wait("model", place.start("model", ["train_trl.py", "model", "MODEL"]))
    with _served(vllm, place, modules, *_TRL) as server:
        trainer = place.start("trainer", ["train_trl.py", "train", "--vllm", server.url, f"--steps={STEPS}"])
        place.wait("trainer", trainer)
        published = sorted(told(place.read("trainer")))
        asked = place.read("engine").count("POST /v1/completions HTTP")
        found = f"the trainer published {published}, {asked} requests for completions, the server at version {_version(server)}"
        if published != list(range(1, STEPS + 2)) or asked < STEPS or _version(server) != published[-1]:
            raise CheckFailed(f"{found}, expected {STEPS} steps")
        return found
