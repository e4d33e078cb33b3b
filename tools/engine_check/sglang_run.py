"""One way to run SGLang, in a process of its own: a server, and requests one after the other while versions
alternate. /model_info must name each version.

Its last line on stdout is a JSON object: steps, commits, torn, versions."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any, Optional

import dws.sglang
from tools.engine_check.alternation import alternation, print_result
from tools.engine_check.model import NEXT_TOKEN, write_config
from tools.engine_check.publisher import Publisher
from tools.engine_check.steps import Step

PROMPT = [3, 77, 130, 5, 9, 212, 41]
TOKENS = 4
START_SECONDS = 180.0
TOLD_SECONDS = 30.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sender", required=True, help="the sender's unix socket")
    parser.add_argument("--receiver", required=True, help="the receiver's unix socket")
    parser.add_argument("--job-id", required=True)
    parser.add_argument("--model", required=True, help="a folder to write the model's files to")
    parser.add_argument("--kind", default="qwen3", help="of the model: of CONFIGS")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--engine", type=json.loads, default=[], help="more arguments of the server")
    return parser.parse_args()


def free_port() -> int:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        return port


class Server:
    """Lifecycle: made listening; end."""

    def __init__(self, options: argparse.Namespace) -> None:
        write_config(options.model, options.kind)
        self.port = free_port()
        command = [
            *(sys.executable, "-m", "sglang.launch_server", "--model-path", options.model),
            *("--load-format", "dummy", "--dtype", "bfloat16", "--skip-tokenizer-init"),
            *("--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph"),
            *("--max-total-tokens", "4096", "--disable-radix-cache", "--skip-server-warmup"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--tp-size", str(options.tp)),
            *options.engine,
        ]
        variables = {dws.sglang.SOCKET_VARIABLE: options.receiver}
        self._process = subprocess.Popen(command, env={**os.environ, **variables})
        deadline = time.monotonic() + START_SECONDS
        while self.get("/model_info") is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server does not listen, status {self._process.poll()}")
            time.sleep(0.5)

    def get(self, path: str) -> Optional[Any]:
        """None: it does not listen."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            return None

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def request(server: Server) -> list[Step]:
    """What each of the steps of one request computed."""
    answer = server.post(
        "/generate",
        {
            "input_ids": PROMPT,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": TOKENS, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": 0,
        },
    )
    found = answer["meta_info"]
    sampled = found["output_token_logprobs"]
    if [entry[1] for entry in sampled] != [NEXT_TOKEN] * TOKENS:
        raise RuntimeError(f"sampled {sampled}: the sequence is not the expected one")
    prompt = [float(entry[0]) for entry in found["input_token_logprobs"][1:]]
    return [(*prompt, float(sampled[0][0])), *((float(entry[0]),) for entry in sampled[1:])]


def require_told(server: Server, version: int) -> None:
    """Raises RuntimeError: /model_info does not name the version."""
    deadline = time.monotonic() + TOLD_SECONDS
    while (named := (server.get("/model_info") or {}).get("weight_version")) != str(version):
        if time.monotonic() > deadline:
            raise RuntimeError(f"/model_info names version {named!r}, expected {version}")
        time.sleep(0.1)


def main() -> int:
    options = arguments()
    # A server that starts waits for the trainer's layout.
    publisher = Publisher(options.sender, options.job_id, options.kind, options.tp)
    server = Server(options)
    result = alternation(
        publisher,
        lambda: request(server),
        options.seconds,
        lambda version: require_told(server, version),
    )
    require_told(server, publisher.version)
    server.end()
    print_result(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
