"""Tries what the hardening of the units forbids, and what daemons need; prints a JSON object: name -> "done" or errno.

Run by step_hardening.py as a service of its own. It changes nothing outside of /tmp and /var/lib/dws.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import socket
import tempfile
from typing import Callable

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _syscall(number: int, *arguments: int) -> None:
    _call("syscall", ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments))


def _open_socket(family: int, kind: int = socket.SOCK_DGRAM) -> None:
    socket.socket(family, kind).close()


def _set_user_id() -> None:
    """On a file of its own."""
    with tempfile.NamedTemporaryFile() as file:
        os.chmod(file.name, 0o4755)


def _make_code() -> None:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()


def _real_time() -> None:
    """With a priority that does not exist: the user may not have any, so that only the errors differ."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1000))


def _share_memory() -> None:
    """As trainers hand weights over: a sealed memfd, locked."""
    with open(os.memfd_create("w", os.MFD_ALLOW_SEALING), "r+b") as file:
        file.truncate(1 << 16)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        mmap.mmap(file.fileno(), 1 << 16).close()


def _read_proc() -> None:
    for name in ("cpuinfo", "meminfo", "self/maps"):
        with open(f"/proc/{name}", encoding="ascii") as file:
            file.read(1)


def _listen() -> None:
    path = "/run/dws/probe.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
    os.unlink(path)


def _write_state() -> None:
    path = "/var/lib/dws/probe"
    with open(path, "w", encoding="ascii") as file:
        os.fsync(file.fileno())
    os.unlink(path)


_PTRACE_TRACEME, _SYS_PTRACE = 0, 101
_CLONE_NEWUSER, _ADDR_NO_RANDOMIZE = 0x10000000, 0x0040000

TRIES: dict[str, Callable[[], object]] = {
    "needed: a file in the state folder": _write_state,
    "needed: memory of a trainer": _share_memory,
    "needed: a socket in /run/dws": _listen,
    "needed: TCP": lambda: _open_socket(socket.AF_INET, socket.SOCK_STREAM),
    "needed: modules and devices in /proc": _read_proc,
    "a file in /home (ProtectHome)": lambda: open("/home/dws-test-of-all").close(),
    "a file in /tmp of another service (PrivateTmp)": lambda: open("/tmp/dws-test-of-all").close(),
    "a file in /var/tmp of another service (PrivateTmp)": lambda: open("/var/tmp/dws-test-of-all").close(),
    "process 1 in /proc (ProtectProc)": lambda: open("/proc/1/status").close(),
    "a file that is writable for all (ProtectSystem)": lambda: open("/opt/dws-test-of-all", "a").close(),
    "the cgroups (ProtectControlGroups)": lambda: os.mkdir("/sys/fs/cgroup/dws-probe"),
    "a namespace of users (RestrictNamespaces)": lambda: _call("unshare", _CLONE_NEWUSER),
    "a file with the set-user-id bit (RestrictSUIDSGID)": _set_user_id,
    "memory to write and execute (MemoryDenyWriteExecute)": _make_code,
    "another personality (LockPersonality)": lambda: _call("personality", _ADDR_NO_RANDOMIZE),
    "a raw packet socket (RestrictAddressFamilies)": lambda: _open_socket(socket.AF_PACKET),
    "real-time scheduling (RestrictRealtime)": _real_time,
    "being traced (SystemCallFilter)": lambda: _syscall(_SYS_PTRACE, _PTRACE_TRACEME, 0, 0, 0),
    "the clock's settings (ProtectClock)": lambda: _call("adjtimex", ctypes.create_string_buffer(1024)),
    "another root (SystemCallFilter)": lambda: os.chroot("/none"),
    "a device that all may open (DevicePolicy)": lambda: os.close(os.open("/opt/dws-test-device", os.O_RDWR)),
}


def main() -> None:
    found = {}
    for name, attempt in TRIES.items():
        try:
            attempt()
            found[name] = "done"
        except OSError as error:
            found[name] = errno.errorcode.get(error.errno or 0, str(error))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
