"""Every hardening option of the units, as systemd applies it: its properties, the kernel's view of the process, and a
probe that tries what is forbidden under the same settings (probe.py)."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

from report import Report
from unit import Unit, run, systemctl

EXPOSURE_MAX = 3.0
_UNITS = Path("/usr/lib/systemd/system")
# Options whose property has another name, or is shown in another way.
_NAMES = {"WatchdogSec": "WatchdogUSec", "TimeoutStartSec": "TimeoutStartUSec", "TimeoutStopSec": "TimeoutStopUSec",
          "RestartSec": "RestartUSec", "StartLimitIntervalSec": "StartLimitIntervalUSec"}
_SHOWN = {"30": "30s", "2": "2s", "90": "1min 30s", "45": "45s", "60": "1min", "EPERM": "1"}
# Shown in a form of their own, checked below or by the steps that use them.
_OTHERWISE = {"ExecStart", "ExecReload", "Environment", "EnvironmentFile", "SystemCallFilter", "DeviceAllow",
              "RestrictAddressFamilies", "RestrictNamespaces", "RestartPreventExitStatus", "LimitNOFILE", "LimitMEMLOCK"}


# Files and a device that every user may use. probe.py names them too.
_FILES = [Path(folder) / "dws-test-of-all" for folder in ("/home", "/opt", "/tmp", "/var/tmp")]
_DEVICE = Path("/opt/dws-test-device")


def _put_baits() -> None:
    for path in _FILES:
        path.write_text("for all\n")
        path.chmod(0o666)
    minors = {line.split()[1]: int(line.split()[0]) for line in Path("/proc/misc").read_text().splitlines()}
    minor = next(minors[name] for name in ("fuse", "tun", "loop-control") if name in minors)
    os.mknod(_DEVICE, stat.S_IFCHR | 0o666, os.makedev(10, minor))
    _DEVICE.chmod(0o666)


def settings_of(unit: Unit) -> list[tuple[str, str]]:
    """The settings of [Service], in their order."""
    text = (_UNITS / f"{unit.program}@.service").read_text().partition("[Service]")[2].partition("\n[")[0]
    return re.findall(r"^(\w+)=(.*)$", text, re.M)


def check_properties(report: Report, unit: Unit) -> None:
    shown = dict(line.partition("=")[::2] for line in systemctl("show", "--all", unit.name).stdout.splitlines())
    wrong, compared = {}, 0
    for option, value in settings_of(unit):
        if option in _OTHERWISE:
            continue
        found = shown.get(_NAMES.get(option, option), "no such property")
        compared += 1
        if found != (_SHOWN.get(value, value)):
            wrong[option] = found
    report.check(not wrong and compared > 30, f"{unit.name}: {compared} settings are in force as systemctl show says", wrong)
    families = set(shown["RestrictAddressFamilies"].split())
    report.equal(families, {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}, "RestrictAddressFamilies is in force")
    report.equal((shown["RestrictNamespaces"], shown.get("DeviceAllow")), ("yes", "char-nvidia* rw"),
                 "RestrictNamespaces and DeviceAllow are in force")
    calls = set(shown["SystemCallFilter"].split())
    report.check("sendmsg" in calls and not calls & {"mount", "ptrace", "bpf", "setuid", "reboot", "kexec_load"},
                 f"SystemCallFilter allows {len(calls)} calls, none of them privileged", sorted(calls)[:9])
    security = run("systemd-analyze", "--no-pager", "security", f"{unit.name}.service").stdout
    level = re.search(r"Overall exposure level for .*: ([0-9.]+) ", security)
    report.check(level and float(level[1]) <= EXPOSURE_MAX,
                 f"systemd-analyze security: exposure {level[1] if level else '?'}, at most {EXPOSURE_MAX}", security[-300:])


def check_process(report: Report, unit: Unit) -> None:
    """What the kernel says of the daemon's process."""
    status = dict(line.partition(":\t")[::2] for line in Path(f"/proc/{unit.pid}/status").read_text().splitlines())
    report.equal((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"), f"{unit.name}: NoNewPrivs, Seccomp filters")
    sets = {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    report.check(not any(sets.values()), "all five sets of capabilities are empty", sets)
    user = run("id", "-u", "dws").stdout.strip()
    report.equal((set(status["Uid"].split()), status["Umask"]), ({user}, "0027"), "all its user ids are those of dws, umask 0027")
    own, first = (Path(f"/proc/{pid}/ns/mnt").readlink() for pid in (unit.pid, 1))
    report.check(own != first, "it has a namespace of mounts of its own")
    report.equal(Path(f"/proc/{unit.pid}/ns/user").readlink(), Path("/proc/1/ns/user").readlink(), "and systemd's namespace of users")
    names = [Path(f"/proc/{pid}/ns/uts").readlink() for pid in (unit.pid, 1)]
    report.check(names[0] != names[1], "and a host name of its own (ProtectHostname)")
    _check_mounts(report, unit)
    limits = Path(f"/proc/{unit.pid}/limits").read_text()
    most = {line[:26].strip(): line[26:].split()[:2] for line in limits.splitlines()[1:]}
    _check_limit(report, "Max open files", most["Max open files"], "65536")
    _check_limit(report, "Max locked memory", most["Max locked memory"], "unlimited")


def _check_limit(report: Report, name: str, found: list[str], wanted: str) -> None:
    """In some containers process 1 may not raise limits. Then its own hard limit is the highest
    available one."""
    status = Path("/proc/1/status").read_text()
    effective = re.search(r"^CapEff:\t(\w+)", status, re.M)
    assert effective is not None
    may_raise = int(effective[1], 16) >> 24 & 1  # CAP_SYS_RESOURCE
    hard = re.search(rf"^{name} +\S+ +(\S+)", Path("/proc/1/limits").read_text(), re.M)
    assert hard is not None
    expected = wanted if may_raise else hard[1]
    note = "" if may_raise else " (process 1 of this container may not raise it)"
    report.equal(found, [expected, expected], f"{name} is {expected}{note}")


def _check_mounts(report: Report, unit: Unit) -> None:
    mounts: dict[str, tuple[set[str], set[str]]] = {}
    for line in Path(f"/proc/{unit.pid}/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split()
        mounts[words[4]] = set(words[5].split(",")), set(rest.split()[2].split(","))
    read_only = [path for path in ("/", "/proc/sys", "/sys/fs/cgroup") if "ro" not in mounts.get(path, (set(), set()))[0]]
    report.check(not read_only, "/, /proc/sys and /sys/fs/cgroup are mounted read-only for it", read_only)
    writable = [path for path in ("/var/lib/dws", "/run/dws", "/tmp", "/var/tmp") if "rw" not in mounts.get(path, (set(), set()))[0]]
    report.check(not writable, "/var/lib/dws, /run/dws and private /tmp, /var/tmp are writable for it", writable)
    report.check("hidepid=invisible" in mounts["/proc"][1], "/proc hides other users' processes", mounts["/proc"])


def check_probe(report: Report, unit: Unit) -> None:
    """The probe under the unit's settings, and beside it as the same user without them: what the second may do and
    the first may not is what the options forbid."""
    left_out = {"Type", "NotifyAccess", "ExecStart", "ExecReload", "Restart", "RestartSec", "RestartPreventExitStatus",
                "WatchdogSec", "EnvironmentFile", "Environment"}
    hardened = [f"--property={option}={value}" for option, value in settings_of(unit) if option not in left_out]
    _put_baits()
    may, plain = _probe(hardened), _probe(["--property=User=dws", "--property=Group=dws"])
    for bait in (*_FILES, _DEVICE):
        bait.unlink()
    report.require(len(may) == len(plain) > 12, f"the probe runs under the settings of {unit.program}, and without them", (may, plain))
    needed = {name for name in may if name.startswith("needed: ")}
    report.check(all(may[name] == "done" for name in needed), f"what the daemons need is allowed: {len(needed)} things",
                 {name: may[name] for name in needed})
    for name in sorted(set(may) - needed):
        # If the user may not do it anyway, the answers must differ: otherwise nothing was shown.
        report.check(may[name] != "done" and may[name] != plain[name],
                     f"forbidden: {name} ({may[name]}; without the settings: {plain[name]})", f"{may[name]}, {plain[name]}")


def _probe(properties: list[str]) -> dict[str, str]:
    done = run("systemd-run", "--quiet", "--pipe", "--wait", "--collect", *properties,
               "/usr/bin/python3", "-B", "/packages/systemd/probe.py")
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {"failed": done.stderr}
