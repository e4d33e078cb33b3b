"""Two engines, one behind an FP8 view, follow a job of training on demand, and one whose trainers and senders are all killed:
each has, at each version that it sees, the bits of the trainer's own cast.
"""

from __future__ import annotations

from tools.real.trainers.on_demand_fault_job import FAULT, RANKS, STEPS, Job, undisturbed

_KINDS = ("plain", "fp8")


def _await_last(job: Job) -> None:
    """Until all engines have the last version."""
    last = STEPS + 1
    newest = max(stream for stream, _ in job.casts)
    while not all((newest, last) in job.seen[kind] for kind in _KINDS):
        job.next()


def _compared(job: Job) -> int:
    """How many versions of engines have the trainer's bits: all that they have seen.

    Raises:
      AssertionError: one has not.
    """
    found = 0
    for kind in _KINDS:
        for at, sha256 in job.seen[kind].items():
            assert at in job.casts, f"{kind}: {at} was not published"
            assert sha256 == job.casts[at][kind], f"{kind}: other weights at {at}"
            found += 1
    return found


def engines_case() -> str:
    with Job("engines") as job:
        job.start_engines(_KINDS)
        job.start_ranks(digests=True)
        job.finish()
        _await_last(job)
        found = _compared(job)
        assert len({cast["fp8"] for cast in job.casts.values()}) == STEPS + 1, "nothing was trained"
    return f"engines in BF16 and FP8 had the bits of the trainer's cast at {found} versions, the last one too"


def whole_job_case() -> str:
    """Kills all ranks and senders in the middle of a minibatch; training goes on from a checkpoint before the last."""
    wanted = undisturbed()
    with Job("whole") as job:
        job.start_engines(_KINDS)
        job.start_ranks(digests=True, rank2=[f"push@{FAULT}"])
        job.at(RANKS - 1, "push")
        old = max(stream for stream, _ in job.casts)
        while not all((old, FAULT + 1) in job.seen[kind] for kind in _KINDS):
            job.next()
        for sender in job.cluster.senders:
            assert sender.process is not None
            sender.process.kill()
        job.end_ranks()
        for sender in job.cluster.senders:
            sender.kill()
            sender.start()
        first = FAULT - 1
        job.start_ranks(first=first, version=first + 1, digests=True)
        assert job.finish() == wanted, (job.results, wanted)
        _await_last(job)
        found = _compared(job)
        for kind in _KINDS:
            streams = [stream for stream, _ in job.seen[kind]]
            assert streams == sorted(streams), f"{kind}: the old incarnation came back: {streams}"
            assert streams[-1] > old
    return (
        f"all ranks and senders killed with version {FAULT + 1} out, and started again from version {first + 1}: {found} versions "
        "of engines have the trainer's bits, none of the old incarnation after the new one"
    )
