"""The engine of job_check.py: a process that runs forward passes without a pause, and notes when each asked for the weights,
had them, and ended. Times are of time.monotonic, which all processes of a machine share."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from tools.gpu_check.job.job_figures import Pass

ATTACH_SECONDS = 60.0
RUN_SECONDS = 60.0
ANSWER_SECONDS = 60.0
END_SECONDS = 20.0


class JobEngine:
    """The engine's process, from the trainer's side. Lifecycle: make it; wait until it has
    attached; ask it; close it in any case."""

    def __init__(self, socket: str, billions: float, device: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_run, args=(socket, billions, device, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def attached(self) -> float:
        """Waits until it has attached. Returns the seconds that the call took in it."""
        return float(self._answer(ATTACH_SECONDS + ANSWER_SECONDS))

    def digest(self) -> tuple[int, str]:
        """The version in its memory, and the digest of all weights."""
        version, of_all = self._asked("digest")
        return int(version), str(of_all)

    def passes(self) -> list[Pass]:
        """All passes so far."""
        return [Pass(*each) for each in self._asked("passes")]

    def close(self) -> None:
        """Ends it, by force if it does not answer."""
        try:
            self._pipe.send("stop")
        except OSError:
            pass  # it has ended
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _asked(self, question: str) -> Any:
        self._pipe.send(question)
        return self._answer(ANSWER_SECONDS)

    def _answer(self, seconds: float) -> Any:
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"the engine did not answer within {seconds:.0f} s")
        try:
            return self._pipe.recv()
        except EOFError:
            raise RuntimeError("the engine has ended, see above") from None


def _run(socket: str, billions: float, device: str, pipe: Any) -> None:
    """In its process."""
    import torch

    import dws
    from tools.gpu_check.job.llama_model import Llama, digest, shape_of, synchronize

    model = Llama(shape_of(billions), device).eval().requires_grad_(False)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.5)  # not the trainer's
    synchronize(device)
    engine = dws.Engine(socket)
    started = time.monotonic()
    engine.attach(model, timeout=ATTACH_SECONDS)
    pipe.send(time.monotonic() - started)
    tokens = torch.randint(0, model.shape.vocabulary, (8, 64), device=device)
    passes: list[Pass] = []
    question = ""
    with torch.no_grad():
        while question != "stop":
            asked = time.monotonic()
            with engine.running(timeout=RUN_SECONDS) as grant:
                began = time.monotonic()
                model(tokens)
                synchronize(device)
                passes.append(Pass(asked, began, time.monotonic(), grant.version))
                question = pipe.recv() if pipe.poll() else ""
                if question == "digest":
                    pipe.send((grant.version, digest(model.named_parameters())))
            if question == "passes":
                pipe.send(passes)
    engine.close()
