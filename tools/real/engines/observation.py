"""What an engine computes with a version, and what its parameters are. Pure."""

from __future__ import annotations

import dataclasses
from typing import Optional

# The log probabilities of one pass: those of the prompt's tokens and of the sampled token.
Probe = tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one greedy request returned.

    Attributes:
      prompt_logprobs: empty if they were not asked for.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_logprobs: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Observation:
    """Attributes:
    probe: what a request of one pass computed.
    prompted: the result of a request that asks for the prompt's log probabilities, too.
    plain: the result of one that does not, and so may use the prefix cache; its prompt is longer.
    parameters: the engine's own checksum of each parameter, by name and rank.
    """

    probe: Probe
    prompted: Sample
    plain: Sample
    parameters: dict[str, str]


def difference(found: Observation, expected: Observation) -> Optional[str]:
    """Describes the first difference, to the bit; None: there is none."""
    names = sorted(found.parameters.keys() ^ expected.parameters.keys())
    if names:
        return f"parameters of one engine only: {', '.join(names[:3])}"
    names = [name for name, value in sorted(found.parameters.items()) if value != expected.parameters[name]]
    if names:
        return f"{len(names)} of {len(found.parameters)} parameters differ: {', '.join(names[:3])}"
    if not found.parameters:
        return "the engine named no parameters"
    if found.probe != expected.probe:
        return f"a pass computed {found.probe}, expected {expected.probe}"
    for name in ("prompted", "plain"):
        one, other = getattr(found, name), getattr(expected, name)
        for field in dataclasses.fields(Sample):
            values = getattr(one, field.name), getattr(other, field.name)
            if values[0] != values[1]:
                return f"{name} request: {field.name} {values[0]}, expected {values[1]}"
    return None
