"""The daemons as packaged, under a real systemd: checks.py. The last line says how many checks passed.

Runs as root inside a booted container in which the packages have just been installed (in_systemd.sh).
"""

from __future__ import annotations

import platform
import sys
import time
import traceback
from typing import Callable

from job import Job
from report import CheckFailed, Report
from step_crash import check_crashes
from step_drills import check_absent_sender, check_damaged_ledger
from step_files import check_files, check_journal
from step_hardening import check_probe, check_process, check_properties
from step_reload import check_reload, set_up_tls
from step_removal import check_removal
from step_start import check_first_sync, check_mistakes, check_readiness, check_start
from step_stop import check_stops
from step_upgrade import check_upgrade
from step_watchdog import check_watchdog
from unit import Unit, run, systemctl

# Names that no other daemon has. One receiver runs beside the sender's socket, the other one gets
# TLS.
SENDER = Unit("dws-sender@0", "127.0.0.1:7750")
NEAR = Unit("dws-receiver@rollout-0", "127.0.0.1:7760")
FAR = Unit("dws-receiver@rollout-1", "127.0.0.1:7761")
UNITS = [SENDER, NEAR, FAR]


def prepare() -> None:
    for user in ("trainer", "engine"):
        run("useradd", "--no-create-home", "--gid=dws", user)
    FAR.environment.write_text(f"DWS_HTTP={FAR.http}\n")


def check_installed(report: Report) -> None:
    running = systemctl("list-units", "--all", "--plain", "--no-legend", "dws-*").stdout.strip()
    report.check(not running, "installing starts and enables nothing", running)


def check_with_a_job(report: Report) -> None:
    with Job(SENDER, [NEAR, FAR]) as job:
        check_first_sync(report, job, SENDER, [NEAR, FAR])
        for title, step in (
            ("the watchdog", lambda: check_watchdog(report, job, SENDER, NEAR)),
            ("stops", lambda: check_stops(report, job, SENDER, NEAR)),
            ("crashes", lambda: check_crashes(report, job, SENDER, NEAR)),
            ("a sender that stays away", lambda: check_absent_sender(report, job, SENDER, NEAR)),
            ("a damaged ledger", lambda: check_damaged_ledger(report, job, NEAR)),
            ("certificates", lambda: with_tls(report, job)),
            ("files and the journal", lambda: check_traces(report)),
            ("hardening", lambda: check_hardening(report, job)),
            ("an upgrade", lambda: check_upgrade(report, job, SENDER, NEAR)),
        ):
            part(report, title, step)


def with_tls(report: Report, job: Job) -> None:
    set_up_tls(report, SENDER, FAR)
    job.reconnect()
    check_reload(report, job, SENDER, FAR)


def check_traces(report: Report) -> None:
    check_files(report, UNITS)
    for unit in (SENDER, NEAR):
        check_journal(report, unit)


def check_hardening(report: Report, job: Job) -> None:
    for unit in (SENDER, NEAR):
        check_properties(report, unit)
        check_process(report, unit)
        check_probe(report, unit)
    job.sync(report, "through the hardened daemons", 3)


def part(report: Report, title: str, step: Callable[[], None]) -> None:
    """A step that cannot go on is a failure, and the next one is tried."""
    print(f"-- {title}", flush=True)
    try:
        step()
    except CheckFailed as failed:
        report.check(False, f"{title}: cannot go on", failed)
    except Exception:  # pylint: disable=broad-except
        report.check(False, f"{title}: the step raised", traceback.format_exc())


def main() -> int:
    report = Report()
    version = run("systemctl", "--version").stdout.splitlines()[0]
    print(f"{time.strftime('%Y-%m-%d')}, {version}, kernel {platform.release()}")
    prepare()
    part(report, "installed", lambda: check_installed(report))
    part(report, "start", lambda: check_start(report, SENDER, [NEAR, FAR]))
    part(report, "readiness", lambda: check_readiness(report, SENDER))
    part(report, "mistakes", lambda: check_mistakes(report))
    part(report, "a job", lambda: check_with_a_job(report))
    part(report, "removal", lambda: check_removal(report, UNITS))
    print(f"{report.passed} passed, {report.failed} failed", flush=True)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
