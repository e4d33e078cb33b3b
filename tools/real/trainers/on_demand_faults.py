"""Processes of a job of training on demand are killed and stopped in the middle of minibatches. Its losses and norms are those
of an undisturbed job to the bit, with exact sums; who was killed is named by the others.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from random import Random

from tests.integration.cluster import Daemon
from tools.real.trainers.on_demand_fault_engines import engines_case, whole_job_case
from tools.real.trainers.on_demand_fault_job import FAULT, RANKS, SAY_SECONDS, STEPS, Job, undisturbed

NAMED_SECONDS = 2.0
OWNER_SECONDS = 30  # that an owner's sender stands still
GROWTH_BYTES_MAX = 32 << 20  # of each sender meanwhile


def killed_rank(job: Job, point: str) -> float:
    """Kills the last rank at a point of a minibatch; then all ranks start again from the checkpoint. Returns the seconds after
    which all others had named it."""
    victim, survivors = RANKS - 1, range(RANKS - 1)
    holds = {f"rank{victim}": [f"{point}@{FAULT}"]}
    if point == "finish":
        holds["rank0"] = [f"finish@{FAULT}"]
    job.start_ranks(**holds)
    job.at(victim, point)
    time.sleep(0.3)
    killed = time.time()
    job.ranks[victim].popen.kill()
    if point == "decided":
        deadline = time.monotonic() + NAMED_SECONDS
        wanted = f"rank {victim}, which is not connected, to publish version"
        while wanted not in job.waits_for(victim):
            assert time.monotonic() < deadline, job.waits_for(victim)
            time.sleep(0.02)
        named = time.time() - killed
        assert not job.lost, job.lost  # a decided step is not abandoned
    else:
        if point == "finish":
            job.go_on(0)
        while {rank for rank, _ in job.lost} < set(survivors):
            job.next(may_end=victim)
        named = max(line["when"] for _, line in job.lost) - killed
        assert all(line["lost"] == victim for _, line in job.lost), job.lost
        assert FAULT not in job.results, job.results  # never half a gradient
    assert named <= NAMED_SECONDS, named
    job.end_ranks()
    job.start_ranks(first=FAULT, version=1)
    return named


def ranks_case() -> str:
    wanted, said = undisturbed(), []
    for point in ("gather", "push", "finish", "decided"):
        with Job(f"killed-{point}") as job:
            named = killed_rank(job, point)
            assert job.finish() == wanted, (point, job.results, wanted)
            said.append(f"{point} (named after {named:.2f} s)")
    return f"a rank killed in {', '.join(said)}; losses and norms of {STEPS} steps are those of an undisturbed job"


def held_at(daemon: Daemon, failpoint: str, number: int) -> str:
    """Starts the sender again, to wait when it reaches the failpoint for that time. Returns the file that it makes then."""
    held = os.path.join(daemon.folder, "held")
    daemon.stop()
    daemon.start_armed(DWS_FAILPOINT=f"{failpoint}:hold@{number}", DWS_FAILPOINT_HOLD=held)
    return held


def leader_case() -> str:
    """Kills the leader when its decision about a minibatch is told to nobody, or to some ranks."""
    wanted, said = undisturbed(), []
    for told in (0, 2):
        with Job(f"leader-{told}") as job:
            held = held_at(job.cluster.senders[0], "sender.train.before_step", told + 1)
            job.start_ranks()
            deadline = time.monotonic() + SAY_SECONDS
            while not os.path.exists(held):
                assert time.monotonic() < deadline, "the leader has not decided"
                time.sleep(0.01)
            time.sleep(0.3)  # what it has told arrives
            job.cluster.senders[0].kill()
            job.cluster.senders[0].start()
            assert job.finish() == wanted, (told, job.results, wanted)
            said.append(f"{told} ranks: {len(job.lost)} attempts given up")
    return f"the leader killed when its decision was told to {'; to '.join(said)}; losses and norms are the same"


def stopped_case() -> str:
    """Stops a rank, then an owner's sender, with SIGSTOP."""
    wanted = undisturbed()
    with Job("stopped") as job:
        job.start_ranks(rank2=[f"finish@{FAULT}"])
        job.at(2, "finish")
        job.ranks[2].popen.send_signal(signal.SIGSTOP)
        job.go_on(2)
        time.sleep(20)
        status = job.waits_for(0)
        job.ranks[2].popen.send_signal(signal.SIGCONT)
        assert "the leader waits for ranks 2: finish" in status, status
        assert not job.lost, job.lost
        job.until(lambda name, line: line.get("step") == FAULT)
        sender = job.cluster.senders[1].process
        assert sender is not None
        before = [each.own_bytes() for each in job.cluster.senders]
        sender.send_signal(signal.SIGSTOP)
        time.sleep(OWNER_SECONDS)
        more = max(each.own_bytes() - held for each, held in zip(job.cluster.senders, before))
        sender.send_signal(signal.SIGCONT)
        assert more < GROWTH_BYTES_MAX, more
        assert job.finish() == wanted, (job.results, wanted)
        # It is silent for longer than 20 s, and gRPC's keepalive takes a sender that stands still for 10 s for dead.
        assert all(line["lost"] == 1 for _, line in job.lost), job.lost
        assert len(job.lost) == len({rank for rank, _ in job.lost}), job.lost  # once each
    return (
        f"a rank stopped for 20 s, named in status, and nothing abandoned; a sender for {OWNER_SECONDS} s, abandoned at most once, "
        f"as {len(job.lost)} ranks said, with {more / (1 << 20):.1f} MiB more in a sender; the same losses and norms"
    )


def silent_case() -> str:
    """Stops an owner's sender on another host for longer than --train-peer-timeout."""
    wanted = undisturbed()
    with Job("silent", "--train-peer-timeout=3", between_hosts=True) as job:
        job.start_ranks(rank2=[f"finish@{FAULT}"])
        job.at(2, "finish")
        sender = job.cluster.senders[1].process
        assert sender is not None
        sender.send_signal(signal.SIGSTOP)
        job.until(lambda name, line: "lost" in line)
        time.sleep(2)
        sender.send_signal(signal.SIGCONT)
        job.go_on(2)
        assert job.finish() == wanted, (job.results, wanted)
        assert all(line["step"] == FAULT and line["lost"] == 1 for _, line in job.lost), job.lost
        assert len(job.lost) == len({rank for rank, _ in job.lost}), job.lost  # once each
    return f"a sender silent for longer than the timeout: abandoned once, as {len(job.lost)} ranks said; the same losses"


def proxy_case() -> str:
    """Cuts the connections between senders on different hosts again and again."""
    wanted, random = undisturbed(), Random(7)
    with Job("proxy", between_hosts=True) as job:
        for proxy in job.proxies:
            proxy.cut_after(*[random.randrange(2_000, 60_000) for _ in range(100)])
        job.start_ranks()
        assert job.finish() == wanted, (job.results, wanted)
        cuts = sum(proxy.cuts for proxy in job.proxies)
        assert cuts >= RANKS, cuts
    return f"{cuts} cuts between senders, {len(job.lost)} attempts given up; the same losses and norms"


CASES = {
    "proxy": proxy_case,
    "silent": silent_case,
    "engines": engines_case,
    "leader": leader_case,
    "ranks": ranks_case,
    "stopped": stopped_case,
    "whole": whole_job_case,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES, required=True)
    options, _ = parser.parse_known_args()  # other cases need more
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    print(f"ok: {CASES[options.case]()}")


if __name__ == "__main__":
    main()
