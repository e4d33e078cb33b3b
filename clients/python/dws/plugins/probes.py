"""What a plugin relies on in an engine, looked for by name and shape before anything is attached.

A plugin uses inner parts of its engine, which any release may change. So it looks for each of them, and
what is missing, or is not called as it was, refuses the engine by name. A release that no plugin was run with
is attached if all is there: with one warning, and after its weights were compared with the checkpoint that it
has loaded (dws.plugins.attach). Releases that are known to be bad are refused.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from typing import Any, Callable, Mapping, Sequence

from dws.errors import StateError

_warned: set[str] = set()  # releases, by name and version: once in a process


class Probes:
    """What is looked for in one release of an engine. Lifecycle: look for everything, then `require`."""

    def __init__(
        self,
        engine: str,
        version: str,
        ran: Sequence[str],
        compared: Sequence[str],
        bad: Mapping[str, str],
        log: logging.Logger,
    ) -> None:
        """Args:
        engine: its name in messages.
        version: its version; everything after a "+" is ignored.
        ran: releases that were run with the plugin.
        compared: those of them whose weights were compared with fresh engines; the attach compares the others'.
        bad: releases that are known to be bad, with what is wrong.
        log: is told of a release that is not one of `ran`.
        """
        self._name = f"{engine} {version}"
        self._release = version.split("+")[0]
        self._ran = ran
        self._compared = compared
        self._bad = bad
        self._log = log
        self._lacking: list[str] = []

    @property
    def compared(self) -> bool:
        """Returns whether weights that the plugin has put into this release were compared with a fresh engine's."""
        return self._release in self._compared

    def module(self, path: str, *attributes: str) -> None:
        """Looks for a module, and its attributes as `has`."""
        try:
            found = importlib.import_module(path)
        except ImportError as error:
            self._lacking.append(f"the module {path} ({error})")
        else:
            self.has(found, path, *attributes)

    def has(self, owner: Any, name: str, *attributes: str) -> None:
        """Looks for attributes (dotted) of `owner`, which messages call `name`; none of them may be None."""
        self._look(owner, name, attributes, may_be_none=False)

    def knows(self, owner: Any, name: str, *attributes: str) -> None:
        """As `has`, for settings: the last part may be None."""
        self._look(owner, name, attributes, may_be_none=True)

    def takes(self, call: Any, name: str, *arguments: str, **named: str) -> None:
        """Looks whether `call`, which messages call `name`, can be called with so many arguments, and with these
        named ones. A call that is not there was looked for by `has`."""
        if call is None:
            return
        try:
            signature = inspect.signature(call)
        except (TypeError, ValueError):  # of a builtin, or a stand-in's
            return
        try:
            signature.bind(*arguments, **named)
        except TypeError as error:
            wanted = ", ".join([*arguments, *(f"{key}=" for key in named)])
            self._lacking.append(f"{name}({wanted}), it is {name}{signature} ({error})")

    def fields(self, module: str, name: str, *fields: str) -> None:
        """Looks for the fields of a class `name` of a module: of a dataclass, or another class that annotates them."""
        self.module(module, name)
        of = getattr(sys.modules.get(module), name, None)
        if of is None:
            return
        there = {field for each in of.__mro__ for field in getattr(each, "__annotations__", ())}
        self._lacking += [f"{module}.{name}.{field} (no such field)" for field in fields if field not in there]

    def require(self) -> None:
        """Raises:
        StateError: the release is known to be bad, or lacks something, by name.
        """
        use = f"use {', '.join(self._ran)}, or serve this engine by checkpoints on disk"
        if self._release in self._bad:
            raise StateError(f"{self._name} cannot be updated in place: {self._bad[self._release]}. {use}")
        if self._lacking:
            raise StateError(f"{self._name} does not have {'; '.join(self._lacking)}, which dws relies on: {use}")
        if self._release in self._ran or self._name in _warned:
            return
        _warned.add(self._name)
        self._log.warning(
            "dws: %s was never run with this plugin (%s were). All that it relies on is there, and the attach "
            "compares the weights with the engine's checkpoint. First try it with a load that may fail",
            self._name,
            ", ".join(self._ran),
        )

    def _look(self, owner: Any, name: str, attributes: Sequence[str], may_be_none: bool) -> None:
        for attribute in attributes:
            value, parts = owner, attribute.split(".")
            for number, part in enumerate(parts):
                there = hasattr(value, part)
                value = getattr(value, part, None)
                is_last = number == len(parts) - 1
                if value is None and not (there and is_last and may_be_none):
                    what = "is None" if there else f"{'.'.join([name, *parts[:number]])} has no {part}"
                    self._lacking.append(f"{name}.{attribute} ({what})")
                    break


def call_with(call: Callable[..., Any], *arguments: Any) -> Any:
    """call(*arguments), with as many of them as it takes: parameters that newer releases have added."""
    parameters = inspect.signature(call).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return call(*arguments)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return call(*arguments[: sum(parameter.kind in positional for parameter in parameters)])
