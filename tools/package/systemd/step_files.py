"""What daemons leave in the file system and in the journal: owners, modes, fields."""

from __future__ import annotations

import grp
import pwd
import re
import stat
import time
from pathlib import Path

from report import Report
from unit import Unit, run

_EVENT = re.compile(r"[a-z][a-z0-9_]*( [a-z_0-9]+=('[^']*'|\"[^\"]*\"|\S+))*$")


def _owned(path: Path) -> str:
    found = path.lstat()
    return f"{stat.S_IMODE(found.st_mode):o} {pwd.getpwuid(found.st_uid).pw_name} {grp.getgrgid(found.st_gid).gr_name}"


def check_files(report: Report, units: list[Unit]) -> None:
    report.equal(_owned(Path("/run/dws")), "755 dws dws", "/run/dws is 0755 of dws")
    report.equal(_owned(Path("/var/lib/dws")), "750 dws dws", "/var/lib/dws is 0750 of dws")
    for unit in units:
        sockets = [_owned(Path(unit.socket)), _owned(Path(unit.socket + ".handles"))]
        report.equal(sockets, ["660 dws dws"] * 2, f"{unit.socket} and .handles are 0660 of dws")
        report.equal(_owned(unit.state_folder), "750 dws dws", f"{unit.state_folder} is 0750 of dws")
        inside = {path.name: _owned(path) for path in unit.state_folder.iterdir()}
        report.check(inside and all(owned in ("640 dws dws", "600 dws dws", "750 dws dws", "700 dws dws") for owned in inside.values()),
                     f"nothing in it is for others: {', '.join(sorted(inside))}", inside)
    stranger = run("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups",
                   "dwsctl", "status", f"--socket={units[0].socket}")
    report.equal(stranger.returncode, 3, "a user outside of the group dws does not reach the socket")


def check_journal(report: Report, unit: Unit) -> None:
    since = time.time() - 3600
    lines = unit.events(since)
    report.check(lines, f"journalctl -u {unit.name} has its lines", "none")
    report.equal({line["_SYSTEMD_UNIT"] for line in lines}, {f"{unit.name}.service"}, "_SYSTEMD_UNIT is the unit")
    report.equal({line["_COMM"] for line in lines} - {unit.program}, set(), f"SYSLOG_IDENTIFIER and _COMM are {unit.program}")
    strange = [line["MESSAGE"] for line in lines if not _EVENT.match(str(line["MESSAGE"]))]
    report.check(not strange, f"all {len(lines)} messages are an event and its fields, without a prefix", strange[:3])
    found = {line["PRIORITY"] for line in lines}
    report.check("6" in found and found <= {"3", "4", "6"}, f"priorities are those of syslog: {sorted(found)}")
    warnings = run("journalctl", "-u", unit.name, "-p", "warning", "-o", "json", f"--since=@{since:.0f}", "-t", unit.program).stdout
    expected = sum(line["PRIORITY"] in ("3", "4") for line in lines)
    report.equal((warnings.count("\n"), expected > 0), (expected, True), f"journalctl -p warning shows the {expected} warnings and errors alone")
