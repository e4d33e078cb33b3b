"""Drills of docs/runbook.md that are no step of their own: a sender that stays away, a damaged ledger."""

from __future__ import annotations

import time
import urllib.error

from job import Job
from report import Report, until
from unit import Unit, run

# Above --stale-after of the receivers.
_STALE_SECONDS = 50


def check_absent_sender(report: Report, job: Job, sender: Unit, receiver: Unit) -> None:
    sender.order("stop")
    report.check(until(lambda: _readiness(receiver)[0] == 503, _STALE_SECONDS, 1.0), "a sender that stays away: /readyz is 503")
    said = _readiness(receiver)[1]
    report.check("no accepted sender for more than 30 s" in said and sender.socket in said, "it says why, with the sender's address", said)
    status = run("dwsctl", "status", f"--socket={receiver.socket}")
    report.check(status.returncode == 1 and "no accepted sender" in status.stdout, "dwsctl status says the same and exits with 1", status.stdout)
    line = receiver.show("StatusText")
    report.check("no accepted sender" in line, "so does systemctl status", line)
    report.check(job.generates(receiver), "the engine continues to generate")
    sender.order("start")
    job.reconnect()
    job.sync(report, "after the sender's return")
    report.check(until(lambda: _readiness(receiver)[0] == 200, 10), "/readyz is 200 again")


def _readiness(unit: Unit) -> tuple[int, str]:
    try:
        return 200, unit.page("/readyz")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def check_damaged_ledger(report: Report, job: Job, receiver: Unit) -> None:
    receiver.order("stop")
    ledger = receiver.state_folder / "receiver.ledger"
    damaged = bytearray(ledger.read_bytes())
    damaged[40] ^= 0xFF
    ledger.write_bytes(damaged)
    since = time.time()
    receiver.order("start")
    report.equal((receiver.show("ExecMainStatus"), receiver.active), ("3", False), "a damaged ledger: the receiver does not start, status 3")
    said = " ".join(str(line["MESSAGE"]) for line in receiver.events(since))
    report.check("start_failed" in said and str(ledger) in said, "the journal says start_failed with the file", said)
    report.check(job.generates(receiver), "while it is down the engine generates with its version")
    kept = receiver.environment.read_text() if receiver.environment.exists() else ""
    receiver.environment.write_text(kept + "DWS_QUARANTINE_DAMAGED_LEDGER=true\n")
    report.equal(receiver.order("start").returncode, 0, "with quarantine-damaged-ledger it starts")
    report.check((receiver.state_folder / "receiver.ledger.damaged-1").exists(), "the damaged file is set aside")
    job.sync(report, "after a damaged ledger")
    report.equal(run("dwsctl", "verify", f"--socket={receiver.socket}").returncode, 0, "dwsctl verify finds no difference")
    receiver.environment.unlink()
    if kept:
        receiver.environment.write_text(kept)
