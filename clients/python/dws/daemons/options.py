"""Keyword arguments as the flags of a daemon: retain_bytes="16GiB" is --retain-bytes=16GiB."""

from __future__ import annotations

import os
from typing import Mapping, Sequence, Union

from dws.errors import InvalidArgumentError

Value = Union[str, int, float, "os.PathLike[str]"]
Option = Union[Value, Sequence[Value], None]

# Set by the package itself.
_OWN = {
    "socket": "the socket is in the run folder: give run_dir=",
    "ports_file": "the ports are in Daemon.ports",
    "owner_pid": "it is this process",
}


def flags_of(options: Mapping[str, Option]) -> list[str]:
    """The flags of a daemon.

    Args:
      options: by the flag's name with underscores. True is the flag alone; a sequence is the flag for each of its
        values; None leaves it out.

    Raises:
      InvalidArgumentError: a value of a type that no flag has, or a flag that the package sets itself.
    """
    flags = []
    for name, option in options.items():
        flag = f"--{name.replace('_', '-')}"
        if name in _OWN:
            raise InvalidArgumentError(f"{name}=: {_OWN[name]}")
        if isinstance(option, (list, tuple)):
            flags += [f"{flag}={_text(name, value)}" for value in option]
        elif option is True:
            flags.append(flag)
        elif option is not None:
            flags.append(f"{flag}={_text(name, option)}")
    return flags


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float, os.PathLike)):
        raise InvalidArgumentError(
            f"{name}={value!r}: expected a string, a number, a path or a list of these, found {type(value).__name__}"
        )
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if not isinstance(text, str) or "\0" in text:
        raise InvalidArgumentError(f"{name}={value!r}: expected text without NUL characters")
    return text
