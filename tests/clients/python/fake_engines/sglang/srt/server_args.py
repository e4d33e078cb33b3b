"""The server's arguments; a test sets them."""

from __future__ import annotations

from typing import Any

_ARGS: list[Any] = []


def set_global_server_args(server_args: Any) -> None:
    _ARGS[:] = [server_args]


def get_global_server_args() -> Any:
    if not _ARGS:
        raise ValueError("Global server args is not set yet!")
    return _ARGS[0]
