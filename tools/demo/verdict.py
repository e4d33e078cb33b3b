"""Decides whether the demo showed what it claims. Pure: findings in, sentences out."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Mapping, Sequence

from tools.demo.rollout_engine import Check, Finished

REWARD_GAIN_MIN = 0.1
GENERATING_SHARE_MIN = 0.95
WINDOW = 10
CHECKED_VERSIONS_MIN = 3


@dataclasses.dataclass(frozen=True)
class Findings:
    """Attributes:
    rewards: mean reward by version, in order; NaN where no rollout was sampled.
    hashes: version -> SHA-256 of what each rank of an engine must have of the trainer's own cast.
    receiver_versions: what the senders say each receiver has committed.
    """

    engines: int
    last_version: int
    rewards: Sequence[float]
    hashes: Mapping[int, Sequence[str]]
    checks: Sequence[Check]
    finished: Sequence[Finished]
    receiver_versions: Mapping[str, int]
    accepted: int
    rejected: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One claim, whether it holds, and the figures."""

    holds: bool
    text: str


def judge(findings: Findings) -> list[Outcome]:
    """All claims; the demo succeeds when all hold."""
    return [
        _weights_equal(findings),
        reward_rises(findings.rewards, REWARD_GAIN_MIN),
        _generating(findings),
        _receivers(findings),
        rollouts_accepted(findings.accepted, findings.rejected),
    ]


def mean_reward(rewards: Sequence[float]) -> float:
    """Returns the mean of the known rewards."""
    known = [reward for reward in rewards if not math.isnan(reward)]
    return sum(known) / len(known) if known else float("nan")


def _weights_equal(findings: Findings) -> Outcome:
    versions: dict[str, set[int]] = {}
    ranks = 0
    for check in findings.checks:
        expected = findings.hashes.get(check.version, ())
        pairs = itertools.zip_longest(check.sha256, expected, fillvalue="none")
        for rank, (found, wanted) in enumerate(pairs):
            if found != wanted:
                owner = check.engine + (f" rank {rank}" if len(check.sha256) > 1 else "")
                return Outcome(
                    False,
                    f"SHA-256 of {owner}'s weights at version {check.version} is {found[:16]}…, "
                    f"the trainer's own cast has {wanted[:16]}…",
                )
        versions.setdefault(check.engine, set()).add(check.version)
        ranks = len(check.sha256)
    enough = len(versions) == findings.engines and all(
        findings.last_version in seen and len(seen) >= CHECKED_VERSIONS_MIN
        for seen in versions.values()
    )
    seen_text = ", ".join(f"{name} at {sorted(seen)}" for name, seen in sorted(versions.items()))
    held = f"all weights of each of {ranks} ranks" if ranks > 1 else "all weights"
    return Outcome(enough, f"SHA-256 of {held} equals the trainer's own cast: {seen_text}")


def reward_rises(rewards: Sequence[float], gain_min: float) -> Outcome:
    """Args:
    rewards: of each version.
    gain_min: of the last WINDOW versions over the first.
    """
    window = min(WINDOW, len(rewards) // 2)
    first = mean_reward(rewards[:window])
    last = mean_reward(rewards[-window:])
    gain = last - first
    return Outcome(
        gain >= gain_min,
        f"mean reward of the last {window} versions {last:.3f}, of the first {window} {first:.3f}: "
        f"{gain:+.3f}, at least {gain_min:+.3f} expected",
    )


def _generating(findings: Findings) -> Outcome:
    shares = {end.engine: end.generating_share for end in findings.finished}
    text = ", ".join(f"{name} {share:.1%}" for name, share in sorted(shares.items()))
    return Outcome(
        len(shares) == findings.engines and min(shares.values()) >= GENERATING_SHARE_MIN,
        f"time spent generating: {text}; at least {GENERATING_SHARE_MIN:.0%} expected",
    )


def _receivers(findings: Findings) -> Outcome:
    versions = findings.receiver_versions
    text = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return Outcome(
        len(versions) == findings.engines
        and all(version == findings.last_version for version in versions.values()),
        f"every receiver on the last version {findings.last_version}: {text}",
    )


def rollouts_accepted(accepted: int, rejected: int) -> Outcome:
    return Outcome(
        rejected == 0 and accepted > 0,
        f"{accepted} rollouts named a published pair of version and digest, "
        f"{rejected} did not and were rejected",
    )


def report(outcomes: Sequence[Outcome]) -> bool:
    """Prints each claim. Returns whether all hold."""
    for outcome in outcomes:
        print(f"{'ok  ' if outcome.holds else 'FAIL'} {outcome.text}")
    return all(outcome.holds for outcome in outcomes)
