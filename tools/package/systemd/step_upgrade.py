"""An upgrade under daemons that run: they go on, and are restarted when the operator says so."""

from __future__ import annotations

from pathlib import Path

from job import Job
from report import Report
from unit import Unit, run

_UPGRADE = "/packages/upgrade"


def check_upgrade(report: Report, job: Job, sender: Unit, receiver: Unit) -> None:
    before = sender.pid, receiver.pid, job.passes(receiver)
    old = run("dpkg-query", "-W", "-f", "${Version}", "dws").stdout
    done = run("apt-get", "-y", "-o", "Dpkg::Use-Pty=0", "install",
               *(str(path) for path in sorted(Path(_UPGRADE).glob("*.deb"))), timeout=600)
    new = run("dpkg-query", "-W", "-f", "${Version}", "dws").stdout
    report.require(done.returncode == 0 and new != old, f"apt upgrades {old} to {new}", done.stdout + done.stderr)
    report.check("keep the old program until they are restarted" in done.stdout, "it says that daemons keep the old program", done.stdout)
    report.equal((sender.pid, receiver.pid), before[:2], "no daemon was restarted")
    program = str(Path(f"/proc/{receiver.pid}/exe").readlink())
    report.check("deleted" in program, "the running program is the old one", program)
    report.check(job.passes(receiver) > before[2] and job.generates(receiver), "the engine generated meanwhile, and goes on")
    job.sync(report, "old daemons after the upgrade")

    drained = run("dwsctl", "drain", f"--socket={receiver.socket}")
    report.equal(drained.returncode, 0, "dwsctl drain of the receiver")
    receiver.order("restart")
    job.sync(report, "a new receiver, an old sender")
    report.check(_drain_sender(sender), "dwsctl drain of the sender")
    refused = job.trainer.attempt("publish", job.newest + 1)
    report.check("error" in refused, "a drained sender takes no version", refused)
    sender.order("restart")
    job.reconnect()
    job.sync(report, "a new receiver, a new sender")
    for unit in (sender, receiver):
        report.equal(str(Path(f"/proc/{unit.pid}/exe").readlink()), f"/usr/bin/{unit.program}", f"{unit.name} runs the new program")
    report.equal(run("dwsctl", "verify", f"--socket={receiver.socket}").returncode, 0, "dwsctl verify finds no difference")


def _drain_sender(sender: Unit) -> bool:
    return run("dwsctl", "drain", f"--socket={sender.socket}").returncode == 0
