"""What a request's steps computed, and whether each is of one version. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

# Log probabilities of one step: of the prompt's tokens where it computed them, then of the sampled token.
Step = tuple[float, ...]


def steps_of(output: Any) -> list[Step]:
    """Of a vLLM RequestOutput: the prompt's step, then one for each further token, of which a pass makes
    several when it speculates."""
    prompt = [_only(entry) for entry in output.prompt_logprobs[1:]]
    sampled = [_only(entry) for entry in output.outputs[0].logprobs]
    return [(*prompt, sampled[0]), *((value,) for value in sampled[1:])]


def _only(entry: Any) -> float:
    """Of the one token that was asked for; the most likely one may stand beside it, behind it."""
    return float(next(iter(entry.values())).logprob)


@dataclasses.dataclass
class Tally:
    """Compares steps with what each version alone computes.

    Attributes:
      steps: looked at.
      torn: those that are no version's.
      versions: indexes of `references` that were seen.
    """

    references: Sequence[list[Step]]
    steps: int = 0
    torn: int = 0
    versions: set[int] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        for number, (first, second) in enumerate(zip(*self.references)):
            if any(a == b for a, b in zip(first, second)):
                raise ValueError(f"step {number} does not tell the versions apart: {first}, {second}")

    def add(self, steps: Sequence[Step]) -> None:
        for number, step in enumerate(steps):
            found = [v for v, known in enumerate(self.references) if known[number] == step]
            self.steps += 1
            self.torn += not found
            self.versions.update(found)
