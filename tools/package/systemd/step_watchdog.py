"""The watchdog: a daemon that is stopped is killed and started again, and the engine goes on."""

from __future__ import annotations

import time

from job import Job
from report import Report
from unit import Unit

# Instead of the unit's 30 s.
_WATCHDOG_SECONDS = 4
_RESTART_SECONDS = 30.0


def check_watchdog(report: Report, job: Job, sender: Unit, receiver: Unit) -> None:
    for unit in (sender, receiver):
        unit.drop_in(f"WatchdogSec={_WATCHDOG_SECONDS}")
        unit.order("restart")
        if unit is sender:
            job.reconnect()
    job.sync(report, "after a restart of both daemons")
    time.sleep(2.5 * _WATCHDOG_SECONDS)
    report.equal((sender.restarts, receiver.restarts), (0, 0), "a daemon that runs feeds the watchdog")
    for unit in (sender, receiver):
        _stop_one(report, unit)
        if unit is sender:
            job.reconnect()
        report.check(job.generates(receiver, 30.0), f"the engine generates after the watchdog restarted {unit.name}")
        job.sync(report, f"after the watchdog restarted {unit.name}")
    for unit in (sender, receiver):
        unit.drop_in()
        unit.order("restart")
    job.reconnect()
    job.sync(report, "with the unit's own WatchdogSec again")


def _stop_one(report: Report, unit: Unit) -> None:
    old, count, since = unit.pid, unit.restarts, time.time()
    unit.signal("STOP")
    started = time.monotonic()
    back = unit.restarted(old, _RESTART_SECONDS)
    took = time.monotonic() - started
    report.require(back, f"SIGSTOP of {unit.name}: restarted by the watchdog", unit.show("ActiveState"))
    print(f"     it was active again after {took:.1f} s, of which WatchdogSec {_WATCHDOG_SECONDS} s, RestartSec 2 s")
    report.equal(unit.restarts, count + 1, "NRestarts counts one more")
    said = [str(line["MESSAGE"]) for line in unit.journal(since)]
    report.check(any("Watchdog timeout" in line for line in said), "the journal says Watchdog timeout", said)
