"""kill -9 of a daemon: systemd starts it again, the engine goes on meanwhile and gets further versions."""

from __future__ import annotations

import time

from job import Job
from report import Report
from unit import Unit, run

_RESTART_SECONDS = 30.0


def check_crashes(report: Report, job: Job, sender: Unit, receiver: Unit) -> None:
    for unit in (receiver, sender):
        old, count, passes = unit.pid, unit.restarts, job.passes(receiver)
        unit.signal("KILL")
        time.sleep(0.5)
        report.check(job.passes(receiver) > passes, f"kill -9 of {unit.name}: the engine generates meanwhile")
        report.require(unit.restarted(old, _RESTART_SECONDS), f"systemd starts {unit.name} again", unit.show("ActiveState"))
        report.equal(unit.restarts, count + 1, "NRestarts counts one more")
        if unit is sender:
            lost = job.trainer.attempt("publish", job.newest + 1)
            report.check("RegistrationLostError" in lost.get("error", ""), "the trainer's next publish raises", lost)
            job.reconnect()
        report.check(job.generates(receiver, 30.0), "the engine generates afterwards")
        job.sync(report, f"after kill -9 of {unit.name}", 3)
    verified = run("dwsctl", "verify", f"--socket={receiver.socket}")
    report.equal(verified.returncode, 0, "dwsctl verify finds no difference")
