"""vLLM, in a process of its own: samples answers with the weights that DWS puts into it, or answers from a checkpoint."""

from __future__ import annotations

import dataclasses
import os
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from tools.demo import task
from tools.demo.rollout_engine import Finished, Rollout
from tools.real.demo.answers import QUESTIONS, Answers, answers_of

# Long, because the trainer warms up in this time.
READY_SECONDS = 300.0
WORKER_EXTENSION = "tools.real.vllm_worker.WorkerExtension"


@dataclasses.dataclass(frozen=True)
class VllmOptions:
    """Attributes:
    model: a folder with a config, and with weights unless DWS brings them.
    log: a file for all that vLLM prints.
    receiver: the socket of its dws-receiver.
    prompts, group_size: a rollout has `prompts` questions, each answered `group_size` times.
    """

    model: str
    log: str
    seed: int = 0
    receiver: str = ""
    prompts: int = 0
    group_size: int = 0


def answer_from_checkpoint(options: VllmOptions, version: int, answers: Connection) -> None:
    """The process of a vLLM that loads a checkpoint as usual. Sends its Answers."""
    llm = _start(options, "auto")
    answers.send(_answer(llm, version))
    _end(llm)


def run_engine(options: VllmOptions, rollouts: Connection, answers: Connection) -> None:
    """The process of a vLLM that DWS keeps up to date.

    Sends None once it is attached, Answers with the first version, then Rollouts; a number from the trainer is
    the last version: when that is in memory, sends Answers with it, then Finished, and waits for a last message.
    """
    llm = _start(options, "dummy")
    attach = {"socket": options.receiver, "timeout": READY_SECONDS}
    llm.collective_rpc("dws_attach", kwargs=attach)
    answers.send(None)
    status = _status(llm)
    answers.send(_answer(llm, status["version"]))
    generator = torch.Generator().manual_seed(options.seed)
    paused, last_version = 0.0, None
    while status["version"] != last_version:
        rollouts.send(_rollout(llm, options, generator, status, paused))
        paused = status["paused_seconds"]
        status = _status(llm)
        if last_version is None and rollouts.poll():
            last_version = rollouts.recv()
    rollouts.send(_rollout(llm, options, generator, status, paused))
    answers.send(_answer(llm, status["version"]))
    longest = status["longest_pause_seconds"]
    rollouts.send(Finished("vllm", status["version"], 1.0, status["grants"], longest))
    rollouts.recv()  # stays attached until the trainer has counted the receivers
    _end(llm)


def _start(options: VllmOptions, load_format: str) -> Any:
    os.setsid()  # vLLM's own processes can be ended together with this one
    log = os.open(options.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from vllm import LLM

    return LLM(
        options.model,
        skip_tokenizer_init=True,
        load_format=load_format,
        dtype="bfloat16",
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=32 << 20,
        max_model_len=task.CONTEXT,
        seed=options.seed,
        worker_extension_cls=WORKER_EXTENSION,
    )


def _end(llm: Any) -> None:
    """Ends vLLM's processes; a process of multiprocessing runs nothing at its exit that would."""
    llm.llm_engine.engine_core.shutdown()


def _status(llm: Any) -> dict[str, Any]:
    """The worker's status, once it has a version: during a commit it has none."""
    while True:
        status: dict[str, Any] = llm.collective_rpc(
            "dws_wait_ready", kwargs={"timeout": READY_SECONDS}
        )[0]
        if status["version"] is not None:
            return status


def _generate(llm: Any, questions: torch.Tensor, **sampling: Any) -> Any:
    from vllm import SamplingParams

    parameters = SamplingParams(
        max_tokens=task.DIGITS, ignore_eos=True, detokenize=False, **sampling
    )
    prompts = [{"prompt_token_ids": question} for question in questions.tolist()]
    return llm.generate(prompts, parameters, use_tqdm=False)


def _rollout(
    llm: Any,
    options: VllmOptions,
    generator: torch.Generator,
    status: dict[str, Any],
    paused_before: float,
) -> Rollout:
    """Samples a rollout, named for the version that memory had before; a commit may fall between two of its tokens."""
    questions = task.prompts(options.prompts, generator)
    outputs = _generate(llm, questions, temperature=1.0, n=options.group_size, logprobs=0)
    sampled = [completion for output in outputs for completion in output.outputs]
    logprobs = [
        [place[token].logprob for place, token in zip(completion.logprobs, completion.token_ids)]
        for completion in sampled
    ]
    return Rollout(
        "vllm",
        status["version"],
        status["state_token"],
        status["paused_seconds"] - paused_before,
        questions.repeat_interleave(options.group_size, 0).numpy(),
        np.array([completion.token_ids for completion in sampled], np.int64),
        np.array(logprobs, np.float32),
    )


def _answer(llm: Any, version: int) -> Answers:
    questions = task.prompts(QUESTIONS, torch.Generator().manual_seed(7))
    outputs = _generate(llm, questions, temperature=0.0, logprobs=task.VOCABULARY)
    return answers_of(version, outputs)
