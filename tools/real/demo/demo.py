"""The demo with a real vLLM: a policy-gradient loop whose weights travel through DWS only.

The trainer (this process) has a small Qwen3 of transformers, which learns to sort digits; vLLM samples, in a
process of its own, with weights that DWS patches between its steps. Prints a row for each version and a
verdict; the exit status is 0 only when every claim holds.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from typing import Any, Callable, Optional, Sequence

import torch
import transformers

import dws
from tests.integration.cluster import Cluster
from tools.demo.inbox import Inbox, as_batch
from tools.demo.learner import Learner
from tools.demo.publisher import Publisher, receiver_versions
from tools.demo.table import Table
from tools.demo.verdict import report
from tools.real.demo.answers import Answers
from tools.real.demo.engine import VllmOptions, answer_from_checkpoint, run_engine
from tools.real.demo.policy import Policy, write_config
from tools.real.demo.verdict import Findings, judge

JOB = "demo-vllm"
PROMPTS = 16
GROUP_SIZE = 8
# Rollouts may be sampled with the weights of this many versions before the newest.
LAG_MAX = 1
LEARNING_RATE = 1e-5
WARM_UP_LEARNING_RATE = 1e-3
START_SECONDS = 420.0
ROLLOUT_SECONDS = 60.0
END_SECONDS = 60.0
_CONTEXT = multiprocessing.get_context("spawn")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses arguments that tools/real/main.py has checked."""
    parser = argparse.ArgumentParser()
    for name in ("steps", "warm-up", "seed", "limit"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--stale-checkpoint", action="store_true")
    return parser.parse_args(arguments)


class Engine:
    """A process with vLLM in it. Lifecycle: made starting; end."""

    def __init__(self, run: Callable[..., None], options: VllmOptions, *arguments: Any) -> None:
        """Args:
        run: a function of engine.py; it gets options, arguments and, as the last argument, the pipe for answers.
        """
        self._log = options.log
        self._answers, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=run, args=(options, *arguments, theirs))
        self._process.start()
        theirs.close()

    def await_attached(self) -> None:
        """Returns when a version can be committed.

        Raises:
          RuntimeError: see `answers`.
        """
        self._receive(START_SECONDS)

    def answers(self, timeout: float) -> Answers:
        """Returns the next answers.

        Raises:
          RuntimeError: none in time; the message has the end of vLLM's log.
        """
        answers: Answers = self._receive(timeout)
        return answers

    def _receive(self, timeout: float) -> Any:
        with contextlib.suppress(EOFError):
            if self._answers.poll(timeout):
                return self._answers.recv()
        with open(self._log, errors="replace") as log:
            end = "".join(log.readlines()[-40:])
        raise RuntimeError(f"vLLM ended, or sent nothing for {timeout:g} s:\n{end}")

    def end(self) -> None:
        """Ends all processes of this vLLM, which are a group of their own."""
        self._process.join(END_SECONDS)
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()


class Demo:
    """One run, step by step. Call `finish` after a failure, too."""

    def __init__(self, options: argparse.Namespace, cluster: Cluster) -> None:
        self.options = options
        self.folder = cluster.folder
        torch.set_num_threads(1)  # several would spin at each other's barriers on a busy machine
        self.sender = cluster.start_sender().socket
        receiver = cluster.start_receiver("vllm").socket
        set_environment(self.folder, options.libraries)
        self.learner = Learner(Policy, options.seed, LEARNING_RATE, WARM_UP_LEARNING_RATE)
        self.tensors = dws.declare.from_module(self.learner.policy.model)
        self.publisher = Publisher([self.sender], JOB, self.weights())
        self.pipe, theirs = _CONTEXT.Pipe()
        config = os.path.join(self.folder, "config")
        write_config(config)
        live = VllmOptions(
            config,
            os.path.join(self.folder, "vllm.log"),
            seed=options.seed,
            receiver=receiver,
            prompts=PROMPTS,
            group_size=GROUP_SIZE,
        )
        self.engines = [Engine(run_engine, live, theirs)]
        theirs.close()
        self.inbox = Inbox([self.pipe], self.publisher.expected.tokens)

    def weights(self) -> dict[str, torch.Tensor]:
        """The cast weights, by the names of the checkpoint."""
        return {name: tensor.detach() for name, tensor in self.tensors.items()}

    def warm_up(self) -> None:
        print(
            f"Qwen3 of {self.learner.parameter_count / 1e6:.1f} M parameters; {self.options.warm_up} "
            f"supervised steps while vLLM starts, then {self.options.steps} of policy gradient",
        )
        started = time.monotonic()

        def report(step: int, loss: float) -> None:
            seconds = time.monotonic() - started
            print(f"  warm-up step {step}: loss {loss:.3f} after {seconds:.0f} s", flush=True)

        self.learner.warm_up(self.options.warm_up, report)

    def train(self) -> Findings:
        """Publishes the warmed-up weights as version 1 and a version after each step."""
        last = self.options.steps + 1
        self.engines[0].await_attached()
        published = self.publisher.publish(1, self.weights())
        first = self.engines[0].answers(ROLLOUT_SECONDS)
        table = Table(sum(w.nbytes for w in self.weights().values()), self.inbox)
        with concurrent.futures.ThreadPoolExecutor(1) as background:
            committed = background.submit(self.publisher.wait, 1)
            for version in range(2, last + 1):
                if version == last and self.options.stale_checkpoint:
                    self.save()
                oldest = max(1, version - 1 - LAG_MAX)
                rollouts = self.inbox.take(1, oldest, ROLLOUT_SECONDS)
                self.learner.improve(*as_batch(rollouts), GROUP_SIZE)
                table.add(published, committed.result())
                published = self.publisher.publish(version, self.weights())
                committed = background.submit(self.publisher.wait, version)
                table.show()
            table.add(published, committed.result())
        self.pipe.send(last)
        answers = self.engines[0].answers(ROLLOUT_SECONDS)
        self.inbox.wait_finished(1, ROLLOUT_SECONDS)
        table.show(everything=True)
        if not self.options.stale_checkpoint:
            self.save()
        return Findings(
            last_version=last,
            rewards=[self.inbox.reward(version) for version in range(1, last + 1)],
            first=first,
            last=answers,
            fresh=self.fresh_answers(last),
            receiver_versions=receiver_versions([self.sender]),
            accepted=self.inbox.accepted,
            rejected=self.inbox.rejected,
        )

    def save(self) -> None:
        transformers.utils.logging.disable_progress_bar()
        self.learner.policy.model.save_pretrained(os.path.join(self.folder, "checkpoint"))

    def fresh_answers(self, version: int) -> Answers:
        """The answers of another vLLM, which loads what `save` has written."""
        print("a fresh vLLM loads the trainer's checkpoint", flush=True)
        checkpoint = os.path.join(self.folder, "checkpoint")
        options = VllmOptions(checkpoint, os.path.join(self.folder, "fresh.log"))
        self.engines.append(Engine(answer_from_checkpoint, options, version))
        return self.engines[-1].answers(START_SECONDS)

    def finish(self) -> None:
        """Ends vLLM; asks it first, if it still listens."""
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        for engine in self.engines:
            engine.end()
        self.publisher.close()


def run(options: argparse.Namespace, cluster: Cluster) -> bool:
    """Returns whether every claim holds."""
    demo: Optional[Demo] = None
    try:
        demo = Demo(options, cluster)
        demo.warm_up()
        findings = demo.train()
    except Exception:  # not SystemExit: the daemons are not at fault
        print(cluster.logs(), file=sys.stderr)
        raise
    finally:
        if demo is not None:
            demo.finish()
    return report(judge(findings))


def set_environment(folder: str, libraries: str) -> None:
    """Sets the environment of vLLM's processes. `libraries` may have stand-ins for GPU libraries; daemons must not find
    them."""
    os.environ.update(
        {
            "HF_HUB_OFFLINE": "1",
            "LD_LIBRARY_PATH": libraries,
            "OMP_NUM_THREADS": "1",
            "VLLM_CACHE_ROOT": os.path.join(folder, "cache"),
            # Threads may outnumber processors here.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        }
    )


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    # Stopping the demo (timeout, a CI job) stops its daemons and engines, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    signal.signal(signal.SIGALRM, lambda number, frame: sys.exit(f"not done after {options.limit} s"))
    signal.alarm(options.limit)
    started = time.monotonic()
    options.libraries = os.environ.pop("LD_LIBRARY_PATH", "")
    with Cluster(JOB) as cluster:
        success = run(options, cluster)
    seconds = time.monotonic() - started
    print(f"{'SUCCESS' if success else 'FAILURE'}: the demo took {seconds:.0f} s")
    return 0 if success else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
