"""What a request's steps computed, and whether each is of one version. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

# The log probabilities of one step: those of the prompt's tokens, if it computed them, then the sampled token's.
Step = tuple[float, ...]


def steps_of(output: Any) -> list[Step]:
    """The steps in a vLLM RequestOutput: the prompt's step, then one for each further token. A speculating pass makes
    several of those."""
    prompt = [_only(entry) for entry in output.prompt_logprobs[1:]]
    sampled = [_only(entry) for entry in output.outputs[0].logprobs]
    return [(*prompt, sampled[0]), *((value,) for value in sampled[1:])]


def _only(entry: Any) -> float:
    """The log probability of the requested token, which comes first; the most likely token may follow it."""
    return float(next(iter(entry.values())).logprob)


@dataclasses.dataclass
class Tally:
    """Compares steps with what each version alone computes.

    Attributes:
      steps: how many steps were compared.
      torn: how many of them are no version's.
      versions: the indexes of `references` that were seen.
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
