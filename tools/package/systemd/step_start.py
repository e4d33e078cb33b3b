"""Enabling and starting: readiness, the status line, a daemon that cannot start."""

from __future__ import annotations

import socket
import time

from job import Job
from report import Report, until
from unit import Unit, run, systemctl


def check_start(report: Report, sender: Unit, receivers: list[Unit]) -> None:
    """Starts them as the documentation says."""
    for unit in [sender, *receivers]:
        started = systemctl("enable", "--now", unit.name)
        answers = run("dwsctl", "status", f"--socket={unit.socket}")
        report.require(started.returncode == 0 and unit.active, f"systemctl enable --now {unit.name}: active",
                       started.stderr + unit.show("ActiveState"))
        report.equal(systemctl("is-enabled", unit.name).stdout.strip(), "enabled", f"{unit.name} is enabled")
        report.check(answers.returncode == 1 and "not ready" in answers.stdout,
                     f"{unit.name} answers dwsctl as soon as it is active: 1, not ready, and why",
                     f"{answers.returncode} {answers.stdout[:200]}{answers.stderr}")
        report.equal(unit.show("Type"), "notify", f"{unit.name} is Type=notify")
    names = [f"{socket.gethostname()}-{unit.name.partition('@')[2]}" for unit in receivers]
    report.equal([unit.status()["receiver"]["receiver_id"] for unit in receivers], names,
                 "receiver ids are host and instance")
    line = sender.show("StatusText")
    report.check(line.startswith("not ready: waiting for trainer rank 0"), "systemctl status says what is missing", line)


def check_readiness(report: Report, sender: Unit) -> None:
    """Active means that the daemon has reported itself, not that its process exists."""
    sender.order("stop")
    sender.drop_in("ExecStart=", "ExecStart=/bin/sh -c 'sleep 4; exec /usr/bin/dws-sender --config=/etc/dws/sender.toml'")
    systemctl("start", "--no-block", sender.name)
    until(lambda: sender.pid, 5)
    time.sleep(1)
    report.equal(sender.show("ActiveState"), "activating", "a daemon that has not reported itself yet is activating")
    systemctl("start", sender.name)  # waits for the job under way
    answers = run("dwsctl", "status", f"--socket={sender.socket}")
    report.check(sender.active and answers.returncode == 1, "once it is active it answers", answers.stderr)
    sender.order("stop")
    sender.drop_in()
    sender.order("start")


def check_mistakes(report: Report) -> None:
    """A daemon that cannot start: the unit fails, with the reason in the journal, and is not tried again."""
    unit = Unit("dws-sender@7", "")
    unit.environment.write_text("DWS_RETAIN_VERSIONS=many\n")
    since = time.time()
    report.check(unit.order("start").returncode != 0 and unit.show("ActiveState") == "failed",
                 "a mistaken configuration: systemctl start fails", unit.show("ActiveState"))
    report.equal((unit.show("ExecMainStatus"), unit.restarts), ("2", 0), "exit status 2, and no restart")
    said = " ".join(str(line["MESSAGE"]) for line in unit.events(since))
    report.check("RETAIN_VERSIONS" in said and "many" in said, "the journal names the setting", said)
    systemctl("reset-failed", unit.name)
    unit.environment.write_text("DWS_HTTP=127.0.0.1:7757\n")
    unit.state_folder.mkdir()
    (unit.state_folder / "sender.ledger").write_text("this is no ledger")
    run("chown", "-R", "dws:dws", str(unit.state_folder))
    unit.order("start")
    report.equal((unit.show("ExecMainStatus"), unit.restarts), ("3", 0), "a damaged ledger: exit status 3, and no restart")
    systemctl("reset-failed", unit.name)
    unit.environment.unlink()
    run("rm", "-r", str(unit.state_folder))


def check_first_sync(report: Report, job: Job, sender: Unit, receivers: list[Unit]) -> None:
    job.sync(report, "a trainer and two engines", 3)
    for unit in [sender, *receivers]:
        answers = run("dwsctl", "status", f"--socket={unit.socket}")
        report.equal(answers.returncode, 0, f"{unit.name} is ready for dwsctl")
        line = f"version {job.newest}, "
        report.check(until(lambda: unit.show("StatusText").startswith(line), 5),
                     f"systemctl status of {unit.name} has its version", unit.show("StatusText"))
