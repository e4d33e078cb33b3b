"""The trainer's learning: FP32 master weights, AdamW, a BF16 cast for everything else.

The cast is the policy that computes; it is this object's own memory, no shared one.
"""

from __future__ import annotations

from typing import Callable

import torch
from torch import nn
from torch.nn.utils.clip_grad import clip_grad_norm_

from tools.demo import task

# As in reinforcement learning of language models, an update moves a weight by about a millionth.
LEARNING_RATE = 1e-6
WARM_UP_LEARNING_RATE = 3e-4
WARM_UP_BATCH = 96
WRONG_DEMONSTRATIONS = 0.6
CLIP = 0.2
_BETAS = (0.9, 0.95)


class Learner:
    """Owns masters, optimiser and cast. One thread."""

    def __init__(
        self,
        make_policy: Callable[[], nn.Module],
        seed: int,
        learning_rate: float = LEARNING_RATE,
        warm_up_learning_rate: float = WARM_UP_LEARNING_RATE,
    ) -> None:
        """Args:
        make_policy: called with torch seeded; a module from tokens [batch, length] to logits
          [batch, length, task.VOCABULARY].
        """
        torch.manual_seed(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._learning_rate = learning_rate
        self._warm_up_learning_rate = warm_up_learning_rate
        self.policy, self._masters = self._prepared(make_policy())
        self._optimiser = self._fresh_optimiser(learning_rate)
        self._cast()

    @property
    def parameter_count(self) -> int:
        return sum(master.numel() for master in self._masters)

    def weights(self) -> dict[str, torch.Tensor]:
        """The BF16 cast by name, detached."""
        return {name: p.detach() for name, p in self.policy.named_parameters()}

    def warm_up(self, steps: int, report: Callable[[int, float], None]) -> None:
        """Supervised steps on demonstrations; the optimiser's state is dropped at the end.

        Args:
          report: called with the step and its loss, now and then.
        """
        self._optimiser = self._fresh_optimiser(self._warm_up_learning_rate)
        for step in range(1, steps + 1):
            # Up in 20 steps, down over the last third.
            scale = min(step / 20, 1.0, max(0.05, 3 * (steps - step) / steps))
            for group in self._optimiser.param_groups:
                group["lr"] = self._warm_up_learning_rate * scale
            questions = task.prompts(WARM_UP_BATCH, self._generator)
            answers = task.demonstrations(questions, WRONG_DEMONSTRATIONS, self._generator)
            loss = -self._logprobs(questions[self._rows], answers[self._rows]).mean()
            self._step(loss)
            if step % 20 == 0 or step == steps:
                report(step, loss.item())
        self._optimiser = self._fresh_optimiser(self._learning_rate)

    def improve(
        self,
        questions: torch.Tensor,
        answers: torch.Tensor,
        behaviour: torch.Tensor,
        group_size: int,
    ) -> None:
        """One clipped policy-gradient step.

        Args:
          questions, answers: [batch, ...]; groups of `group_size` rows share a question.
          behaviour: [batch, DIGITS], log-probabilities under the weights that sampled the answers.
        """
        rewards = task.rewards(questions, answers).view(-1, group_size)
        advantages = rewards - rewards.mean(1, keepdim=True)
        advantages = (advantages / (advantages.std() + 1e-4)).view(-1, 1)
        advantages, behaviour = advantages[self._rows], behaviour[self._rows]
        ratio = (self._logprobs(questions[self._rows], answers[self._rows]) - behaviour).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        self._step(-torch.minimum(ratio * advantages, clipped * advantages).mean())

    def _logprobs(self, questions: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        """[batch, DIGITS]: of each answer's tokens, float32."""
        logits: torch.Tensor = self.policy(torch.cat([questions, answers[:, :-1]], 1))
        logprobs = logits[:, task.PROMPT_LENGTH - 1 :].float().log_softmax(-1)
        return logprobs.gather(2, answers[:, :, None])[:, :, 0]

    def _step(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        self._hand_over_gradients()
        clip_grad_norm_(self._masters, 1.0)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._cast()

    # What a learner of several processes does otherwise.

    # The rows of each batch that this process computes.
    _rows = slice(None)

    def _prepared(self, policy: nn.Module) -> tuple[nn.Module, list[nn.Parameter]]:
        """The module that computes, and the masters."""
        masters = [nn.Parameter(p.detach().clone()) for p in policy.parameters()]
        return policy.to(torch.bfloat16), masters

    def _hand_over_gradients(self) -> None:
        """From the module to the masters."""
        for parameter, master in zip(self.policy.parameters(), self._masters):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
            parameter.grad = None

    @torch.no_grad()
    def _cast(self) -> None:
        for parameter, master in zip(self.policy.parameters(), self._masters):
            parameter.copy_(master)

    def _fresh_optimiser(self, learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self._masters, lr=learning_rate, betas=_BETAS, weight_decay=0.01)
