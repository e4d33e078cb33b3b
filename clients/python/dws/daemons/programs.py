"""Finds the programs dws-sender and dws-receiver of this installation."""

from __future__ import annotations

import os
import shutil
import sysconfig
from typing import Optional

from dws.errors import DaemonUnavailableError


def find_program(name: str, path: Optional[str] = None) -> str:
    """The program that belongs to this package, else the first one on PATH.

    Args:
      name: "dws-sender", "dws-receiver" or "dwsctl".
      path: the program, if it is known.

    Raises:
      DaemonUnavailableError: there is none; the message says where it was looked for.
    """
    if path is not None:
        if not _is_program(path):
            raise DaemonUnavailableError(f"{path}: expected {name}, found no executable file there")
        return os.path.abspath(path)
    folders = _own_folders()
    for folder in folders:
        if _is_program(os.path.join(folder, name)):
            return os.path.join(folder, name)
    found = shutil.which(name)
    if found is None:
        raise DaemonUnavailableError(
            f"{name}: found neither in {', '.join(folders)} nor on PATH. Install the wheel delta_weight_sync-*-manylinux_*, "
            "which has the programs, or Debian's package dws, or name the file with program="
        )
    return os.path.abspath(found)


def _own_folders() -> list[str]:
    """Where programs may be that were installed together with this package."""
    site = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    candidates = [
        os.path.join(site, "../../../bin"),  # PREFIX/lib/pythonX.Y/site-packages: a venv, --user, --prefix
        os.path.join(site, "bin"),  # pip install --target
        os.path.join(site, "../bin"),  # the archive
        sysconfig.get_path("scripts"),
    ]
    return list(dict.fromkeys(os.path.normpath(folder) for folder in candidates))


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
