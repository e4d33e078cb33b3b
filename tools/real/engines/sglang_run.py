"""One way to run SGLang, in a process of its own: a server, and requests one after the other while versions
alternate. /model_info must name each version, and meta_info.weight_versions those that the log probabilities prove.

Its last line on stdout is a JSON object: steps, commits, torn, versions."""

from __future__ import annotations

import argparse
import json
import sys
import time

import dws.sglang
from tools.real.engines.alternation import alternation, parser_of_run, print_result
from tools.real.engines.model import NEXT_TOKEN, write_config
from tools.real.engines.publisher import Publisher
from tools.real.engines.steps import Step
from tools.real.server import Server

PROMPT = [3, 77, 130, 5, 9, 212, 41]
TOKENS = 4
TOLD_SECONDS = 30.0


def arguments() -> argparse.Namespace:
    parser = parser_of_run(__doc__)
    parser.add_argument("--engine", type=json.loads, default=[], help="more arguments of the server")
    return parser.parse_args()


def start_server(options: argparse.Namespace) -> Server:
    write_config(options.model, options.kind)
    command = [
        *("-m", "sglang.launch_server", "--model-path", options.model, "--load-format", "dummy"),
        *("--dtype", "bfloat16", "--skip-tokenizer-init", "--skip-server-warmup"),
        *("--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph"),
        *("--max-total-tokens", "4096", "--disable-radix-cache", "--tp-size", str(options.tp)),
        *options.engine,
    ]
    return Server(command, {dws.sglang.SOCKET_VARIABLE: options.receiver}, "/model_info")


def request(server: Server, named: dict[tuple[int, Step], set[int]], overlaps: bool) -> list[Step]:
    """Makes one request; returns what each of its steps computed.

    Args:
      named: is added, for what a step computed: which of the two weights SGLang says it was computed with.
      overlaps: SGLang names the newer version for the token of the pass in flight, too.
    """
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
    steps = [(*prompt, float(sampled[0][0])), *((float(entry[0]),) for entry in sampled[1:])]
    for span in found["weight_versions"]:
        for number in range(span["start"] + overlaps, span["end"]):
            named.setdefault((number, steps[number]), set()).add(int(span["version"]) % 2)
    return steps


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
    publisher = Publisher(options.sender, options.job_id, options.kind)
    server = start_server(options)
    named: dict[tuple[int, Step], set[int]] = {}
    overlaps = "--disable-overlap-schedule" not in options.engine
    result = alternation(
        publisher,
        lambda: request(server, named, overlaps),
        options.seconds,
        lambda version: require_told(server, version),
    )
    require_told(server, publisher.version)
    server.end()
    if wrong := [step for step, versions in named.items() if len(versions) > 1]:
        raise RuntimeError(f"SGLang named both versions for the same log probabilities: {wrong}")
    print_result(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
