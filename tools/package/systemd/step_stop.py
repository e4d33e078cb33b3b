"""`systemctl stop` while an operation is in progress: the daemon completes it and ends by itself,
before systemd kills it."""

from __future__ import annotations

import time

from job import Job
from report import Report, until
from unit import Unit, run

# Grace periods of the daemons (--stop-timeout) and of the units (TimeoutStopSec), with room for a
# loaded machine.
_GRACE_SECONDS = 20.0
_KILL_SECONDS = 45.0
# For a stop that waits for nobody, and for one that waits for its grace.
_AT_ONCE_SECONDS = 10.0
_WHOLE_GRACE_SECONDS = _GRACE_SECONDS + 5


def check_stops(report: Report, job: Job, sender: Unit, receiver: Unit) -> None:
    report.check(float(sender.show("TimeoutStopUSec").removesuffix("s")) == _KILL_SECONDS,
                 f"TimeoutStopSec in force is {_KILL_SECONDS:.0f} s", sender.show("TimeoutStopUSec"))
    _stop_receiver_in_a_transfer(report, job, sender, receiver)
    _stop_sender_in_a_transfer(report, job, sender, receiver)
    _stop_while_the_engine_does_not_pause(report, job, receiver)
    _stop_in_a_pause(report, job, receiver)


def _ends_by_itself(report: Report, unit: Unit, what: str, most: float) -> None:
    started = time.monotonic()
    unit.order("stop")
    took = time.monotonic() - started
    found = unit.show("ActiveState"), unit.show("Result"), unit.show("ExecMainStatus")
    report.check(took < most and found == ("inactive", "success", "0"),
                 f"systemctl stop {unit.name} {what}: ended by itself in {took:.1f} s (at most {most:.0f}), status 0", f"{found} after {took:.1f} s")


def _begin_transfer(report: Report, job: Job, receiver: Unit) -> None:
    """A new engine takes all weights; returns in the middle of that."""
    job.engines[receiver.name].close()
    job.engines[receiver.name] = job.begin_engine(receiver)

    def fetching() -> bool:
        found = receiver.status()["receiver"]
        return found["stage"] == "fetching" and 0 < int(found["stage_done_bytes"]) < int(found["stage_total_bytes"])

    report.require(until(fetching, 60, 0.002), f"{receiver.name} fetches in full for a new engine", receiver.status())


def _end_transfer(report: Report, job: Job, receiver: Unit, what: str) -> None:
    behind = job.behind()
    report.check(not behind, f"{what}: the engine gets the weights, SHA-256 equal", behind)


def _stop_receiver_in_a_transfer(report: Report, job: Job, sender: Unit, receiver: Unit) -> None:
    _begin_transfer(report, job, receiver)
    sender.signal("STOP")  # so that the transfer does not end before the order arrives
    stage = receiver.status()["receiver"]
    print(f"     stopped at {stage['stage_done_bytes']} of {stage['stage_total_bytes']} bytes")
    _ends_by_itself(report, receiver, "during a transfer, its peer frozen", _AT_ONCE_SECONDS)
    sender.signal("CONT")
    receiver.order("start")
    _end_transfer(report, job, receiver, "after its next start")


def _stop_sender_in_a_transfer(report: Report, job: Job, sender: Unit, receiver: Unit) -> None:
    _begin_transfer(report, job, receiver)
    receiver.signal("STOP")
    _ends_by_itself(report, sender, "during a transfer, its peer frozen", _AT_ONCE_SECONDS)
    receiver.signal("CONT")
    sender.order("start")
    job.reconnect()
    job.publish()
    _end_transfer(report, job, receiver, "after its next start and the trainer's reconnect")


def _stop_while_the_engine_does_not_pause(report: Report, job: Job, receiver: Unit) -> None:
    """The receiver waits for the end of a forward pass that takes longer than its grace."""
    engine = job.engines[receiver.name]
    engine.ask("hold", _GRACE_SECONDS + 15)
    job.publish()
    until(lambda: receiver.status()["receiver"]["stage"] == "committing", 30)
    report.equal(receiver.status()["receiver"]["stage"], "committing", "the commit waits for a long forward pass")
    _ends_by_itself(report, receiver, "while it waits for the engine's pause", _WHOLE_GRACE_SECONDS)
    receiver.order("start")
    behind = job.behind(120)
    report.check(not behind, "after its next start: the engine commits that version, SHA-256 equal", behind)


def _stop_in_a_pause(report: Report, job: Job, receiver: Unit) -> None:
    """The engine is paused: written, and its derived tensors are being made."""
    engine = job.engines[receiver.name]
    engine.ask("hook", 6)
    job.publish()
    report.check(engine.ask("in_hook", 60)["in_hook"], "the engine is in the pause of a commit")
    _ends_by_itself(report, receiver, "during a pause", _GRACE_SECONDS)
    state = engine.ask("state")
    report.check(state["version"] == job.newest or state["paused"], "afterwards the engine has the new version, or is paused", state)
    engine.ask("hook", 0)
    receiver.order("start")
    behind = job.behind()
    report.check(not behind, "after its next start: the engine goes on, SHA-256 equal", behind)
    verified = run("dwsctl", "verify", f"--socket={receiver.socket}")
    report.equal(verified.returncode, 0, "dwsctl verify finds no difference")
