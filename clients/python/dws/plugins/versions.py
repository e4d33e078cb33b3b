"""Which releases of an engine the plugins were run with. They rely on an engine's inner parts, so others are refused."""

from __future__ import annotations

from typing import Sequence

from dws.errors import StateError


def require_tried(engine: str, version: str, tried: Sequence[str], untried_version: bool) -> None:
    """Args:
      engine: its name in the message.
      version: the engine's version; everything after a "+" is ignored.
      tried: releases that were run with the plugin.
      untried_version: AttachOptions.untried_version.

    Raises:
      StateError: not one of `tried`, and not asked to try.
    """
    if untried_version or version.split("+")[0] in tried:
        return
    raise StateError(
        f"{engine} {version} was never run with this plugin, expected one of "
        f"{', '.join(tried)}: use one of these, or set the option untried_version to try it, "
        "first with the option checkpoint and a load that may fail"
    )
