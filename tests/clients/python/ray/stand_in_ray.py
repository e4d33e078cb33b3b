"""What dws.ray uses of Ray, in one process: actors are objects that are called directly, and a driver, a node or an actor
ends when a test says so. `install` puts it in the place of the package."""

from __future__ import annotations

import sys
import types
from typing import Any, Callable, Optional
from unittest import mock


class RayError(Exception):
    pass


class GetTimeoutError(RayError, TimeoutError):
    pass


class _Method:
    def __init__(self, call: Callable[..., Any], alive: Callable[[], bool]) -> None:
        self._call = call
        self._alive = alive

    def remote(self, *arguments: Any, **options: Any) -> Callable[[], Any]:
        def result() -> Any:
            if not self._alive():
                raise RayError("the actor is dead")
            return self._call(*arguments, **options)

        return result


class Actor:
    def __init__(self, instance: Any, name: Optional[str]) -> None:
        self.instance = instance
        self.name = name
        self.alive = True

    def __getattr__(self, name: str) -> _Method:
        return _Method(getattr(self.instance, name), lambda: self.alive)


class StandInRay(types.ModuleType):
    """Attributes:
    job, node: those of the caller; a test changes them.
    actors: those that have a name.
    """

    def __init__(self) -> None:
        super().__init__("ray")
        self.job, self.node = "01", "node-a"
        self.initialized = True
        self.actors: dict[str, Actor] = {}
        self.exceptions = types.ModuleType("ray.exceptions")
        self.exceptions.RayError, self.exceptions.GetTimeoutError = RayError, GetTimeoutError  # type: ignore[attr-defined]
        self.util = types.ModuleType("ray.util")
        self.util.get_node_ip_address = lambda: "127.0.0.1"  # type: ignore[attr-defined]
        self.strategies = types.ModuleType("ray.util.scheduling_strategies")
        self.strategies.NodeAffinitySchedulingStrategy = lambda node, soft: (node, soft)  # type: ignore[attr-defined]

    def is_initialized(self) -> bool:
        return self.initialized

    def get_runtime_context(self) -> Any:
        return types.SimpleNamespace(get_job_id=lambda: self.job, get_node_id=lambda: self.node)

    def remote(self, of: type) -> Any:
        def options(name: str, **_unused: Any) -> Any:
            def make(*arguments: Any) -> Actor:
                if name in self.actors:
                    raise ValueError(f"the name {name} is taken")
                self.actors[name] = Actor(of(*arguments), name)
                return self.actors[name]

            return types.SimpleNamespace(remote=make)

        return types.SimpleNamespace(options=options)

    def get(self, call: Callable[[], Any], timeout: float) -> Any:
        return call()

    def get_actor(self, name: str, namespace: str) -> Actor:
        if name not in self.actors:
            raise ValueError(f"no actor {name}")
        return self.actors[name]

    def kill(self, actor: Actor) -> None:
        actor.alive = False
        self.actors.pop(str(actor.name), None)


def install() -> StandInRay:
    ray = StandInRay()
    modules = {"ray": ray, "ray.exceptions": ray.exceptions, "ray.util": ray.util, "ray.util.scheduling_strategies": ray.strategies}
    mock.patch.dict(sys.modules, modules).start()
    return ray
