"""Decides whether training on demand did what the demo claims. Pure: findings in, sentences out."""

from __future__ import annotations

import dataclasses
from typing import Mapping, Sequence

from tools.demo.on_demand.settings import AGAIN, FSDP2, LOCKSTEP, ON_DEMAND
from tools.demo.verdict import Outcome

_NOISES = 4.0  # how many times as far from FSDP2 as its own second run
_FLOOR = 1e-6  # of a loss: sums of FP32 losses, in other orders
_LEARNT = 0.9
_LOST_SECONDS = 5.0
_SEEN_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Lost:
    """What one rank said when another was killed. `seconds`: after that."""

    rank: int | None
    seconds: float
    reason: str


@dataclasses.dataclass(frozen=True)
class Findings:
    """Attributes:
    steps: that were wanted.
    losses: of each step that was done, by way.
    casts: version -> SHA-256 of the trainer's own cast.
    seen: (version, SHA-256) as the engine said them.
    victim: the rank that was killed.
    kill_step: in whose minibatch that was.
    lost: by each other rank.
    version_before: the last version of the first processes.
    version_after: the first version of the second ones, from the checkpoint.
    """

    steps: int
    losses: Sequence[Mapping[str, float]]
    casts: Mapping[int, str]
    seen: Sequence[tuple[int, str]]
    ranks: int
    victim: int
    kill_step: int
    lost: Mapping[int, Lost]
    version_before: int
    version_after: int


def judge(findings: Findings) -> list[Outcome]:
    """All claims; the demo succeeds when all hold."""
    return [
        _losses_agree(findings, LOCKSTEP),
        _losses_agree(findings, ON_DEMAND),
        _learnt(findings),
        _engine_equal(findings),
        _named(findings),
        _redone(findings),
    ]


def _apart(findings: Findings, way: str) -> float:
    """The largest distance from FSDP2's loss, as a part of it; infinite without losses."""
    return max((abs(each[way] - each[FSDP2]) / each[FSDP2] for each in findings.losses), default=float("inf"))


def _losses_agree(findings: Findings, way: str) -> Outcome:
    noise, apart = _apart(findings, AGAIN), _apart(findings, way)
    tolerance = max(_NOISES * noise, _FLOOR)
    return Outcome(
        len(findings.losses) == findings.steps and apart <= tolerance,
        f"{way}: the losses of {len(findings.losses)} steps are within {apart:.1e} of FSDP2's; allowed: {tolerance:.1e}, "
        f"{_NOISES:g} times the distance of a second run of FSDP2 with a microbatch for each sample",
    )


def _learnt(findings: Findings) -> Outcome:
    first, last = findings.losses[0][ON_DEMAND], findings.losses[-1][ON_DEMAND]
    return Outcome(last <= _LEARNT * first, f"the loss went from {first:.3f} to {last:.3f}; at most {_LEARNT:g} of it expected")


def _engine_equal(findings: Findings) -> Outcome:
    for version, sha256 in findings.seen:
        if sha256 != findings.casts.get(version):
            wanted = findings.casts.get(version, "nothing")
            return Outcome(
                False,
                f"SHA-256 of the engine's weights at version {version} is {sha256[:16]}…, "
                f"the trainer's own cast has {wanted[:16]}…",
            )
    versions = {version for version, _ in findings.seen}
    enough = max(findings.casts) in versions and len(versions) >= _SEEN_SHARE * len(findings.casts)
    return Outcome(
        enough,
        f"SHA-256 of the engine's weights equals the trainer's own cast, at {len(versions)} of {len(findings.casts)} "
        f"versions up to {max(versions, default=0)}; the last is {max(findings.casts)}",
    )


def _named(findings: Findings) -> Outcome:
    others = set(range(findings.ranks)) - {findings.victim}
    wrong = [rank for rank in sorted(others) if getattr(findings.lost.get(rank), "rank", None) != findings.victim]
    if wrong:
        said = {rank: each.reason for rank, each in findings.lost.items()}
        return Outcome(False, f"rank {findings.victim} was killed, and ranks {wrong} did not name it: {said}")
    slowest = max(each.seconds for each in findings.lost.values())
    return Outcome(
        slowest <= _LOST_SECONDS,
        f"rank {findings.victim} was killed in step {findings.kill_step}; the others named it within {slowest:.2f} s "
        f"(at most {_LOST_SECONDS:g}): {findings.lost[min(others)].reason}",
    )


def _redone(findings: Findings) -> Outcome:
    before, after = findings.casts.get(findings.version_before), findings.casts.get(findings.version_after)
    same = before is not None and before == after
    return Outcome(
        same and len(findings.losses) == findings.steps,
        f"all ranks started again from the checkpoint before that step: version {findings.version_after} is "
        f"{'' if same else 'not '}version {findings.version_before} to the bit; the step was done again with the same "
        f"samples, and {len(findings.losses)} of {findings.steps} steps are done",
    )
