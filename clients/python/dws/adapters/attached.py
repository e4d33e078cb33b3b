"""The adapters of one engine rank that are attached: each has a receiver, a shadow and versions of its own.

A step of the engine may compute with any of them, so it is inside the leases of all: a version of one adapter
is committed between two steps. dws.vllm finds this where a base model's AttachedRank would be.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from typing import Any, Callable, ContextManager, Iterator, Optional

from dws.adapters.shadow import Shadow
from dws.boundaries import BOUNDARY_TIMEOUT_SECONDS
from dws.deadline import Deadline
from dws.engine import Engine
from dws.errors import EnginePaused, InvalidArgumentError, LayoutError, StateError
from dws.lease import Grant
from dws.plugins.step_gate import Minimum, StepGate
from dws.receiver_link import ATTACH_TIMEOUT_SECONDS

# The version of a grant for several adapters: none that a trainer has published.
SEVERAL = 0


class AttachedAdapter:
    """Lifecycle: attached when it is made; close. Threads: one.

    Attributes:
      name, shadow: as given.
      engine: its dws.Engine.
    """

    def __init__(
        self, name: str, shadow: Shadow, engine: Engine, load: Callable[[], None], timeout: float = ATTACH_TIMEOUT_SECONDS
    ) -> None:
        """Args:
          name: for messages.
          load: has the engine load the shadow, after each commit and inside its pause, on a thread of its own.
          engine: not attached; this closes it if the attach fails.

        Raises:
          LayoutError: the trainer has registered another adapter: another rank, alpha, or other targets.
          The other errors of Engine.attach.
        """
        self.name = name
        self.shadow = shadow
        self.engine = engine
        in_use = threading.Event()  # the shadow has the memory that commits write

        def rebuild(changed: Optional[frozenset[str]]) -> None:
            if not in_use.wait(timeout):
                raise StateError(f"adapter '{name}': it was not attached within {timeout} s")
            load()

        try:
            views = engine.attach(shadow.tensors, rebuild=rebuild, timeout=timeout)
        except InvalidArgumentError as error:
            engine.close()
            raise LayoutError(
                f"adapter '{name}': the engine has loaded '{shadow.folder}' ({shadow.config}), and the trainer has registered another "
                f"adapter, or in another type: {error}. Load an adapter that this trainer has saved, and attach that"
            ) from error
        except BaseException:
            engine.close()
            raise
        shadow.use(views)
        in_use.set()

    @property
    def described(self) -> str:
        """In words, for the log."""
        return f"adapter '{self.name}' ({self.shadow.config}) is attached, {len(self.shadow.tensors)} tensors"

    def close(self) -> None:
        """Detaches. Idempotent."""
        self.engine.close()

    def status(self) -> dict[str, Any]:
        """For JSON; version, stream and state token are None while it is paused."""
        grant, stats = self.engine.grant, self.engine.stats()
        return {
            "version": None if grant is None else grant.version,
            "stream": None if grant is None else str(grant.stream),
            "state_token": None if grant is None else grant.state_token,
            "connected": stats.connected,
            "last_error": stats.last_error,
            "folder": self.shadow.folder,
            "config": str(self.shadow.config),
        }


class AdapterLeases:
    """The engines of all adapters as one, for a StepGate. Threads: as Engine."""

    def __init__(self) -> None:
        self.engines: list[Engine] = []

    @property
    def engine_rank(self) -> int:
        return self.engines[0].engine_rank

    @contextlib.contextmanager
    def _inside(self, timeout: Optional[float]) -> Iterator[Grant]:
        deadline = None if timeout is None else Deadline(timeout)
        while True:
            with contextlib.ExitStack() as stack:
                shut: Optional[Engine] = None
                grants = []
                for engine in self.engines:
                    try:
                        grants.append(stack.enter_context(engine.inside(0)))
                    except EnginePaused:
                        shut = engine
                        break
                if shut is None:
                    yield _as_one(grants)
                    return
            assert shut is not None
            # Outside of the others, so that their commits need not wait for this one's.
            with shut.inside(None if deadline is None else deadline.left):
                pass

    def inside(self, timeout: Optional[float] = None) -> ContextManager[Grant]:
        """As Engine.inside, of all. A grant for several has the version SEVERAL, and a state token over theirs.

        Raises:
          EnginePaused: one of them is.
        """
        return self._inside(timeout)

    def passed(self) -> None:
        """As Engine.passed, of all."""
        for engine in self.engines:
            engine.passed()

    @property
    def stopped(self) -> Optional[str]:
        """The reason of one that has stopped."""
        return next((engine.stopped for engine in self.engines if engine.stopped is not None), None)

    @property
    def grant(self) -> Optional[Grant]:
        """As Engine.grant, for all of them."""
        grants = [engine.grant for engine in self.engines]
        known = [grant for grant in grants if grant is not None]
        return _as_one(known) if known and len(known) == len(grants) else None

    def wait_ready(self, timeout: float) -> Grant:
        """As Engine.wait_ready, of all."""
        deadline = Deadline(timeout)
        return _as_one([engine.wait_ready(deadline.left) for engine in self.engines])

    def boundary(self, timeout: float = BOUNDARY_TIMEOUT_SECONDS) -> Grant:
        """As Engine.boundary, of one after the other."""
        deadline = Deadline(timeout)
        return _as_one([engine.boundary(deadline.left) for engine in self.engines])

    def suspend(self) -> None:
        """As Engine.suspend, of all."""
        for engine in self.engines:
            engine.suspend()

    def refresh(self) -> None:
        """As Engine.refresh, of all."""
        for engine in self.engines:
            engine.refresh()


class AttachedAdapters:
    """Lifecycle: `add` and `remove` between steps; close. Threads: `gate` like the engine's `running`; otherwise one.

    Attributes:
      gate: run forward passes inside its steps.
      engine: all of them as one.
    """

    def __init__(self, rank: int, minimum: Optional[Minimum], step_timeout: float) -> None:
        """Args:
        rank: the number of this rank.
        minimum: None for an engine of one rank.
        step_timeout: seconds that a step waits for the leases.
        """
        self._rank = rank
        self._adapters: dict[str, AttachedAdapter] = {}
        self.engine = AdapterLeases()
        self.gate = StepGate(self.engine, minimum, step_timeout)

    def __len__(self) -> int:
        return len(self._adapters)

    def __contains__(self, name: str) -> bool:
        return name in self._adapters

    def shadow_of(self, name: str) -> Optional[Shadow]:
        """None: no adapter of that name is attached."""
        adapter = self._adapters.get(name)
        return None if adapter is None else adapter.shadow

    def add(self, adapter: AttachedAdapter) -> None:
        self._adapters[adapter.name] = adapter
        self.engine.engines.append(adapter.engine)

    def remove(self, name: str) -> None:
        """Detaches it, which is attached: its engine goes on with the present version."""
        adapter = self._adapters.pop(name)
        self.engine.engines.remove(adapter.engine)
        adapter.close()

    def status(self) -> dict[str, Any]:
        """The state of this rank, for JSON."""
        return {
            "rank": self._rank,
            "passes": self.gate.passes,
            "step_open": self.gate.held is not None,
            "adapters": {name: adapter.status() for name, adapter in self._adapters.items()},
        }

    def close(self) -> None:
        """Detaches all. Idempotent."""
        for adapter in self._adapters.values():
            adapter.close()


def _as_one(grants: list[Grant]) -> Grant:
    if len(grants) == 1:
        return grants[0]
    token = hashlib.blake2b(" ".join(grant.state_token for grant in grants).encode(), digest_size=16)
    return Grant(SEVERAL, grants[0].stream, token.hexdigest())
