"""Daemons whose state folder is a disk of its own, small or read-only, in a mount namespace. Needs no rights of root where users may
make namespaces.
"""

from __future__ import annotations

import os
import subprocess
import tempfile

from tests.integration.cluster import Daemon

# Shell text for on_disk.
SMALL_DISK = f'mount -t tmpfs -o size={64 << 10} none "$0" && exec "$@"'
READ_ONLY_DISK = 'mount -t tmpfs -o ro none "$0" && exec "$@"'


def on_disk(disk: str, folder: str, command: list[str]) -> list[str]:
    """The command, to run with such a disk as `folder`, which exists."""
    return ["unshare", "-rm", "sh", "-c", disk, folder, *command]


def can_mount() -> bool:
    folder = tempfile.mkdtemp()
    try:
        return subprocess.run(on_disk(SMALL_DISK, folder, ["true"]), capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
    finally:
        os.rmdir(folder)


def fill(daemon: Daemon, folder: str) -> str:
    """Fills the disk of a daemon that runs. Returns the path of the file that does it, for the caller to remove."""
    assert daemon.process is not None
    # The folder as the daemon sees it.
    path = f"/proc/{daemon.process.pid}/root{folder}/filler"
    with open(path, "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 512)
        except OSError:
            return path
