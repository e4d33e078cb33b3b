"""Judges whether the demo with vLLM showed what it claims. Pure: findings in, sentences out."""

from __future__ import annotations

import dataclasses
from typing import Mapping, Sequence

from tools.demo.verdict import Outcome, reward_rises, rollouts_accepted
from tools.real.demo.answers import Answers

REWARD_GAIN_MIN = 0.2
# The share of log probabilities that may be equal with the first version's weights and with the last one's.
UNCHANGED_SHARE_MAX = 0.1


@dataclasses.dataclass(frozen=True)
class Findings:
    """Attributes:
    rewards: mean reward by version, in order; NaN where no rollout was sampled.
    first, last: vLLM's answers with the first version and with the last.
    fresh: the answers of a vLLM that loaded the trainer's checkpoint of the last version.
    receiver_versions: what the sender says each receiver has committed.
    """

    last_version: int
    rewards: Sequence[float]
    first: Answers
    last: Answers
    fresh: Answers
    receiver_versions: Mapping[str, int]
    accepted: int
    rejected: int


def judge(findings: Findings) -> list[Outcome]:
    """All claims; the demo succeeds when all hold."""
    return [
        _as_the_checkpoint(findings),
        _not_as_the_first(findings),
        reward_rises(findings.rewards, REWARD_GAIN_MIN),
        _receivers(findings),
        rollouts_accepted(findings.accepted, findings.rejected),
    ]


def _equal(ours: Sequence[float], theirs: Sequence[float]) -> int:
    return sum(a == b for a, b in zip(ours, theirs))


def _as_the_checkpoint(findings: Findings) -> Outcome:
    last, fresh = findings.last, findings.fresh
    tokens = sum(map(len, last.tokens))
    same_tokens = sum(_equal(a, b) for a, b in zip(last.tokens, fresh.tokens))
    same = _equal(last.logprobs, fresh.logprobs)
    count = max(len(last.logprobs), len(fresh.logprobs))
    holds = (
        last.version == findings.last_version
        and tokens > 0
        and count > 0
        and last.tokens == fresh.tokens
        and last.logprobs == fresh.logprobs
    )
    return Outcome(
        holds,
        f"a fresh vLLM with the trainer's checkpoint of version {findings.last_version} answers as vLLM with "
        f"version {last.version} by DWS: {same_tokens} of {tokens} greedy tokens and {same} of {count} log "
        "probabilities are equal, to the bit",
    )


def _not_as_the_first(findings: Findings) -> Outcome:
    same = _equal(findings.first.logprobs, findings.last.logprobs)
    count = len(findings.last.logprobs)
    return Outcome(
        findings.first.version == 1 and 0 < count and same <= UNCHANGED_SHARE_MAX * count,
        f"before, with version {findings.first.version}, it answered otherwise: {same} of {count} log "
        f"probabilities were equal, at most {UNCHANGED_SHARE_MAX:.0%} expected",
    )


def _receivers(findings: Findings) -> Outcome:
    versions = findings.receiver_versions
    text = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return Outcome(
        set(versions.values()) == {findings.last_version},
        f"the receiver is on the last version {findings.last_version}: {text or 'none'}",
    )
