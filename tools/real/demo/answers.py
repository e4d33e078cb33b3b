"""What vLLM answers to fixed questions, greedily: tokens, and the log probabilities of all tokens. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

QUESTIONS = 32


@dataclasses.dataclass(frozen=True)
class Answers:
    """Attributes:
    version: the version of the weights.
    tokens: the tokens of each answer.
    logprobs: the log probability of every token of the vocabulary at each place of each answer, in order.
    """

    version: int
    tokens: list[list[int]]
    logprobs: list[float]


def answers_of(version: int, outputs: Sequence[Any]) -> Answers:
    """The answers in vLLM's RequestOutputs."""
    tokens, logprobs = [], []
    for output in outputs:
        completion = output.outputs[0]
        tokens.append(list(completion.token_ids))
        for place in completion.logprobs:
            logprobs += [float(place[token].logprob) for token in sorted(place)]
    return Answers(version, tokens, logprobs)
