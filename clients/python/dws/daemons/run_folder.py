"""The private folder of one daemon that a process starts, and the lock that says that a daemon uses it.

A folder has the names of the job and of the daemon's role, so that jobs do not meet and a daemon finds its state again
after a crash of its owner. The daemon holds the lock, by a descriptor that it inherits: no lock outlives it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from typing import Optional

from dws.errors import InvalidArgumentError, StateError

# What a unix socket's path may have; descriptors go over a second socket, whose name is longer.
_SOCKET_PATH_BYTES_MAX = 107
_LONGEST_NAME = "d.sock.handles"
_NAME_CHARACTERS_MAX = 24
_POLL_SECONDS = 0.05
_TRIES = 100


class RunFolder:
    """Lifecycle: make, `lock` before each start of the daemon, `remove` when it has ended. Threads: one."""

    def __init__(self, job_id: str, role: str, what: str, run_dir: Optional[str] = None) -> None:
        """Makes the folder.

        Args:
          role: unique in the job: "sender-0", "receiver-rollout-0".
          what: the daemon in words, for messages.
          run_dir: the folder above those of all jobs; by default one of this user's alone below $TMPDIR, or below /tmp
            where the paths of sockets would become too long.

        Raises:
          InvalidArgumentError: the path is too long for a unix socket, or the folder is not this user's alone.
          OSError: it cannot be made.
        """
        self.what = what
        below = os.path.join(_folder_name(job_id), _folder_name(role))
        if run_dir is not None:
            self.path = os.path.join(os.path.abspath(run_dir), below)
            _require_short(self.path)
        else:
            private = f"dws-{os.getuid()}"
            self.path = os.path.join(tempfile.gettempdir(), private, below)
            if _excess_bytes(self.path) > 0:
                self.path = os.path.join("/tmp", private, below)
        self._make(private=run_dir is None)

    def _make(self, private: bool) -> None:
        if private:
            _make_own(os.path.dirname(os.path.dirname(self.path)), 0o077, "remove it, or choose another with run_dir=")
        for last in range(_TRIES):
            try:
                self._make_folders()
                return
            except FileNotFoundError:  # another process has just removed the job's folder, which was empty
                if last + 1 == _TRIES:
                    raise

    def _make_folders(self) -> None:
        job = os.path.dirname(self.path)
        os.makedirs(os.path.dirname(job), exist_ok=True)
        for folder in (job, self.path):
            _make_own(folder, 0o022, "choose another run_dir")

    def lock(self, timeout: float) -> int:
        """Locks the folder, for a daemon that inherits the descriptor.

        Args:
          timeout: seconds to wait for a daemon whose owner has ended, and that is about to end too.

        Returns:
          A descriptor, which is the lock: the caller closes it when the daemon has it.

        Raises:
          StateError: a daemon uses the folder; the message says which.
        """
        deadline = time.monotonic() + timeout
        while True:
            descriptor = self._try_lock()
            if descriptor is not None:
                return descriptor
            owner, daemon = self._holder()
            if owner == os.getpid() or _exists(owner) or time.monotonic() > deadline:
                raise StateError(
                    f"{self.what} runs already on this machine: process {daemon}, started by process {owner}, in "
                    f"{self.path}. Stop it, or give this job another job_id or another run_dir"
                )
            time.sleep(_POLL_SECONDS)

    def write_holder(self, descriptor: int, daemon: int) -> None:
        """Writes who holds the lock into it: this process, and the daemon that it has started."""
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {daemon}\n".encode(), 0)

    def remove(self) -> None:
        """Removes the folder with all that is in it, unless a daemon of another process has begun to use it."""
        descriptor = self._try_lock()
        if descriptor is None:
            return
        try:
            # A process that starts a daemon meanwhile makes a folder of that name anew.
            removed = f"{self.path}.{os.getpid()}~"
            os.rename(self.path, removed)
            shutil.rmtree(removed, ignore_errors=True)
            with contextlib.suppress(OSError):  # it has folders of other daemons of the job
                os.rmdir(os.path.dirname(self.path))
        finally:
            os.close(descriptor)

    @property
    def _lock_path(self) -> str:
        return os.path.join(self.path, "lock")

    def _try_lock(self) -> Optional[int]:
        """The lock's descriptor; None if another one holds it."""
        for _ in range(_TRIES):
            try:
                self._make_folders()
                descriptor = os.open(
                    self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
                )
            except FileNotFoundError:  # removed meanwhile
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same_file(descriptor, self._lock_path):
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its last user has removed the folder meanwhile
        return None

    def _holder(self) -> tuple[int, int]:
        """The processes that the lock names, (0, 0) while it does not."""
        with contextlib.suppress(OSError, ValueError), open(self._lock_path) as file:
            owner, daemon = map(int, file.read(64).split())
            return owner, daemon
        return 0, 0


def _make_own(folder: str, forbidden: int, advice: str) -> None:
    """Makes the folder unless it is there.

    Raises:
      InvalidArgumentError: it is not a folder of this user, or its mode has bits of `forbidden`.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or mode & forbidden:
        raise InvalidArgumentError(
            f"{folder}: expected a folder of user {os.getuid()} with no permission of {forbidden:04o}, found one of user "
            f"{found.st_uid} with mode {mode:04o}: {advice}"
        )


def _folder_name(name: str) -> str:
    """A short name for a folder, of which different names have different ones."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_NAME_CHARACTERS_MAX].lstrip(".")
    if plain and plain == name and not re.search(r"-[0-9a-f]{8}$", name):
        return name
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f"{plain}-{digest[:8]}"


def _excess_bytes(folder: str) -> int:
    return len(os.fsencode(os.path.join(folder, _LONGEST_NAME))) - _SOCKET_PATH_BYTES_MAX


def _require_short(folder: str) -> None:
    excess = _excess_bytes(folder)
    if excess > 0:
        raise InvalidArgumentError(
            f"{folder}: a socket in it would have a path of {_SOCKET_PATH_BYTES_MAX + excess} bytes, expected at most "
            f"{_SOCKET_PATH_BYTES_MAX}: choose a run_dir that is shorter by {excess}"
        )


def _same_file(descriptor: int, path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        there, here = os.stat(path), os.fstat(descriptor)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
    return False


def _exists(process: int) -> bool:
    """Returns whether a process of that number runs; False for 0, when the lock names none, and for one that has
    ended and whose parent has not looked yet."""
    if process <= 0:
        return False
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
