"""Why a daemon ended or could not be run, and what to do about it, in words."""

from __future__ import annotations

import errno
import os
import signal

# The daemons' exit statuses (--help: "Exit status"), and those of signals that have a usual reason.
_BY_STATUS = {
    0: "it was asked to stop, by another process or because its owner had ended",
    1: "it could not start or continue: the log says why",
    2: "its configuration has mistakes: the log names each, and where it is",
    3: "its files on disk are damaged: the log names them; --quarantine-damaged-ledger sets a ledger aside",
}
_BY_SIGNAL = {
    signal.SIGKILL: "somebody killed it, or the kernel did because memory ran out: see `dmesg` and memory.events of "
    "its control group",
    signal.SIGTERM: "it was asked to stop while it was starting",
}


def how_it_ended(code: int) -> str:
    """Args:
    code: as Popen.returncode: the exit status, or a signal's number below 0.
    """
    if code >= 0:
        return f"exit status {code}" + (f" ({_BY_STATUS[code]})" if code in _BY_STATUS else "")
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"signal {-code}"
    meaning = _BY_SIGNAL.get(number, "a fault of the program: report it with its log")
    return f"{number.name} ({meaning})"


def why_not_run(program: str, error: OSError) -> str:
    """What is wrong with a program that the kernel refused to run."""
    what = f"{program} cannot be run: {error.strerror}"
    if error.errno == errno.ENOENT and os.path.exists(program):
        return f"{what}, though it exists: expected a machine with glibc's loader, found none (musl?)"
    if error.errno == errno.ENOEXEC:
        return f"{what}: expected a Linux machine of x86-64, found {os.uname().sysname} of {os.uname().machine}"
    if error.errno == errno.EACCES:
        return f"{what}: expected an executable file on a file system that is not mounted noexec"
    return what
