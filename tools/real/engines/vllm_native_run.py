"""One way to run vLLM, in a process of its own: a server with the weight transfer backend "dws", requests one
after the other, and a trainer that drives vLLM's API between them, while tokens are generated.

Its last line on stdout is a JSON object: steps, commits, torn, versions."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from typing import Any

from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

import dws
import dws.vllm
from tools.real.engines.alternation import print_result
from tools.real.engines.model import NEXT_TOKEN, version_weights, write_config, write_tokenizer
from tools.real.engines.steps import Step, Tally
from tools.real.engines.vllm_run import PROMPT, TOKENS, arguments
from tools.real.server import Server

REQUEST = {
    "prompt": PROMPT,
    "max_tokens": TOKENS,
    "temperature": 0.0,
    "logprobs": 0,
    "prompt_logprobs": 0,
    "allowed_token_ids": [NEXT_TOKEN],
    "ignore_eos": True,
}


def start_server(options: argparse.Namespace) -> Server:
    write_config(options.model, options.kind)
    write_tokenizer(options.model)
    command = [
        *("-m", "vllm.entrypoints.openai.api_server", "--model", options.model),
        *("--load-format", "dummy", "--dtype", "bfloat16"),
        *("--enforce-eager", "--no-enable-prefix-caching"),
        *("--kv-cache-memory-bytes", str(32 << 20), "--max-model-len", "256"),
        *("--tensor-parallel-size", str(options.tp)),
        *("--weight-transfer-config", json.dumps({"backend": "dws"})),
        # Only for what importing it does.
        *("--worker-extension-cls", "tools.real.engines.worker.WorkerExtension"),
    ]
    return Server(command, {"VLLM_SERVER_DEV_MODE": "1"}, "/weight_info")


class Trainer:
    """Publishes by vLLM's own trainer side, one version after the other.

    Lifecycle: made with the engine initialised; `alternate` once, on a thread; `stop`.
    """

    def __init__(self, options: argparse.Namespace, server: Server) -> None:
        self._server = server
        self._weights = [version_weights(options.kind, which) for which in (0, 1)]
        self._trainer = dws.Trainer(options.sender, options.job_id)
        self._views = self._trainer.register(self._weights[0])
        dws.vllm.register()
        from dws.trainers.vllm import DwsTrainerInit

        self._vllm = WeightTransferTrainerFactory.trainer_init(
            DwsTrainerInit(rank=0, trainer=self._trainer, socket=options.receiver, timeout=60.0),
            client=HTTPVLLMWeightSyncClient(server.url),
        )
        self._stopping = threading.Event()
        self.commits = 0

    def send(self, which: int) -> None:
        for name, view in self._views.items():
            view.copy_(self._weights[which][name])
        # Running requests are kept, and go on with the new weights.
        self._server.post("/pause?mode=keep", {})
        self._vllm.send_weights()
        self._server.post("/resume", {})
        told = self._server.get("/weight_info")
        if told != {"weight_version": str(self._trainer.last_version)}:
            raise RuntimeError(f"/weight_info says {told}, expected {self._trainer.last_version}")

    def alternate(self) -> None:
        while not self._stopping.is_set():
            self.send(self._trainer.last_version % 2)
            self.commits += 1

    def stop(self) -> None:
        self._stopping.set()


def request(server: Server) -> list[Step]:
    """Makes one request; returns what each of its steps computed."""
    choice: Any = server.post("/v1/completions", REQUEST)["choices"][0]
    prompt = [float(next(iter(entry.values()))["logprob"]) for entry in choice["prompt_logprobs"][1:]]
    sampled = [float(value) for value in choice["logprobs"]["token_logprobs"]]
    if len(sampled) != TOKENS:
        raise RuntimeError(f"{len(sampled)} tokens were sampled, expected {TOKENS}")
    return [(*prompt, sampled[0]), *((value,) for value in sampled[1:])]


def fail(server: Server) -> None:
    """Makes an update that fails, because its version is not published: the weights stay unchanged."""
    before = request(server)
    server.post("/start_weight_update", {})
    update = {"update_info": {"version": 1 << 40, "timeout": 0.5}}
    try:
        server.post("/update_weights", update)
    except RuntimeError as error:
        print(f"as expected: {error}", flush=True)
    else:
        raise RuntimeError(f"{update} succeeded")
    if request(server) != before:
        raise RuntimeError("an update that failed changed the weights")


def main() -> int:
    options = arguments()
    server = start_server(options)
    trainer = Trainer(options, server)
    fail(server)  # nothing is published yet
    references = []
    for which in (0, 1):
        trainer.send(which)
        references.append(request(server))
        if request(server) != references[which]:
            raise RuntimeError("the same weights gave other numbers: steps cannot be compared")
    fail(server)
    tally = Tally(references)
    thread = threading.Thread(target=trainer.alternate, daemon=True)
    thread.start()
    end = threading.Timer(options.seconds, trainer.stop)
    end.start()
    while thread.is_alive():
        tally.add(request(server))
    if not end.finished.is_set():
        raise RuntimeError("the trainer failed: its error is above")
    server.end()
    print_result(
        {
            "steps": tally.steps,
            "commits": trainer.commits,
            "torn": tally.torn,
            "versions": len(tally.versions),
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
