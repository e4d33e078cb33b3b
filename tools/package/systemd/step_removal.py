"""Removal and purge, with daemons enabled and running."""

from __future__ import annotations

import subprocess
from pathlib import Path

from report import Report
from unit import Unit, run, systemctl

_BEFORE = Path("/packages/before")
# The same list as in in_systemd.sh.
_LIST = r"find / -xdev \( -path /proc -o -path /var/cache -o -path /packages -o -path /tmp \) -prune -o -print | LC_ALL=C sort"
# The user stays, and systemd's journal is not the package's.
_KEPT = ("/var/log/",)


def _apt(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("apt-get", "-y", "-o", "Dpkg::Use-Pty=0", *arguments, timeout=300)


def check_removal(report: Report, units: list[Unit]) -> None:
    pids = [unit.pid for unit in units]
    report.check(all(pids), f"{len(pids)} daemons run before the removal", pids)
    done = _apt("remove", "dws", "python3-dws")
    report.require(done.returncode == 0, "apt removes the packages", done.stdout + done.stderr)
    report.check(not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "the daemons were stopped")
    links = sorted(str(path) for path in Path("/etc/systemd/system").rglob("*dws*"))
    report.check(not links, "their instances are disabled", links)
    left = systemctl("list-units", "--all", "--plain", "--no-legend", "dws-*").stdout.strip()
    report.check(not left, "systemd knows no unit of them, failed ones neither", left)
    report.check(Path("/etc/dws/sender.toml").exists() and Path("/var/lib/dws").exists(), "configuration and state stay")
    # What the test's operator made, which a purge may not remove.
    run("rm", "-r", "/etc/dws/tls", *(str(path) for path in Path("/etc/dws").glob("*.env")))
    done = _apt("purge", "dws", "python3-dws")
    report.require(done.returncode == 0, "apt purges the packages", done.stdout + done.stderr)
    before = set(_BEFORE.read_text().splitlines())
    after = subprocess.run(_LIST, shell=True, text=True, capture_output=True, timeout=120, check=False).stdout.splitlines()
    left_files = [path for path in after if path not in before and "dws" in path and not path.startswith(_KEPT)]
    report.check(not left_files, "a purge leaves no file", left_files)
    gone = [path for path in ("/run/dws", "/var/lib/dws", "/etc/dws", "/var/lib/private/dws") if Path(path).exists()]
    report.check(not gone, "nor a folder in /run, /var/lib, /etc", gone)
    known = run("dpkg-query", "-W", "-f", "${db:Status-Status}\n", "dws", "python3-dws")
    report.check("installed" not in known.stdout and "config-files" not in known.stdout, "dpkg knows neither package", known.stdout)
