"""An engine with adapters whose trainers publish: what it has to compute after each step."""

from __future__ import annotations

import abc
import argparse
import json
import os
import time
from typing import Any, Callable, NamedTuple, Optional

import dws
from tools.real.adapters.model import KIND, STEPS, registered, step_weights, version_weights, write_adapter
from tools.real.engines import model
from tools.real.engines.publisher import Publisher
from tools.real.engines.steps import Step, Tally

WAIT_SECONDS = 60.0


class Observation(NamedTuple):
    """What one adapter computes: of each request its tokens, and the log probabilities of prompt and tokens; and the digest of
    its slot on each rank."""

    tokens: list[list[int]]
    steps: list[list[Step]]
    slots: list[Optional[str]]


def arguments(description: Optional[str]) -> argparse.Namespace:
    """The options that check.py gives to a run with any engine."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("what", choices=("fresh", "live", "torn"))
    parser.add_argument("--folder", required=True, help="for models and adapters")
    parser.add_argument("--daemons", type=json.loads, default={}, help="by adapter: sender, receiver, job_id")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--engine", type=json.loads, default={}, help="more arguments of the engine")
    return parser.parse_args()


def folder_of(options: argparse.Namespace, name: str, step: int) -> str:
    """Writes the checkpoint of a step; returns its folder."""
    return write_adapter(os.path.join(options.folder, f"{name}-{step}"), name, step_weights(name, step))


def base(options: argparse.Namespace) -> str:
    """Writes the base model; returns its folder."""
    folder = os.path.join(options.folder, "base")
    model.write_checkpoint(folder, KIND, model.version_weights(KIND, 0))
    return folder


def fresh_of(names: tuple[str, ...], observed: Callable[[str, int], tuple[Observation, Observation]]) -> dict[str, Any]:
    """What a fresh engine computes with the checkpoint of each step; by adapter and step.

    Args:
      observed: has an engine load a step of an adapter, and observes it twice.
    """
    found: dict[str, Any] = {}
    for name in names:
        for step in STEPS:
            one, again = observed(name, step)
            if one != again:
                raise RuntimeError("the same adapter gave other numbers: nothing can be compared")
            if one in found.values():
                raise RuntimeError(f"step {step} of '{name}' cannot be told apart")
            found[f"{name}-{step}"] = one
    return found


class Scene(abc.ABC):
    """Trainers of adapters, and an engine that gets their steps. Lifecycle: as the engine's; `trainer` for each adapter."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        with open(os.path.join(options.folder, "fresh.json")) as file:
            self.fresh = {key: Observation(*value) for key, value in json.load(file).items()}
        self.trainers: dict[str, dws.Trainer] = {}
        self._views: dict[str, Any] = {}
        self.now: dict[str, str] = {}  # by name, the key of what it has to compute
        self.compared = 0

    @abc.abstractmethod
    def observe(self, name: str) -> Observation:
        """What an attached adapter computes."""

    def trainer(self, name: str, of: str = "") -> None:
        """Registers adapter `of` with the sender of `name`."""
        daemons = self.options.daemons[name]
        self.trainers[name] = dws.Trainer(daemons["sender"], daemons["job_id"])
        self._views[name] = self.trainers[name].register(registered(of or name, step_weights(of or name, 0)))

    def publish(self, name: str, step: int, of: str = "") -> None:
        """Publishes a step of adapter `of` and returns when the engine has it."""
        for key, tensor in step_weights(of or name, step).items():
            self._views[name][key].copy_(tensor)
        trainer = self.trainers[name]
        trainer.publish(trainer.last_version + 1)
        trainer.wait(trainer.last_version, "all", WAIT_SECONDS)
        self.now[name] = f"{of or name}-{step}"

    def is_fresh(self, key: str, found: Observation) -> bool:
        """Returns whether that is what a fresh engine computes."""
        return bool(json.loads(json.dumps(found)) == json.loads(json.dumps(self.fresh[key])))

    def require_all(self, when: str) -> None:
        """Raises RuntimeError: an adapter does not compute what a fresh engine computes with its step."""
        for name, key in self.now.items():
            found = self.observe(name)
            if not self.is_fresh(key, found):
                pairs = zip(found._fields, found, self.fresh[key])
                parts = [part for part, a, b in pairs if json.dumps(a) != json.dumps(b)]
                raise RuntimeError(f"{when}: '{name}' differs from a fresh engine with {key} in its {parts}")
            self.compared += 1

    def require_refused(self, call: Callable[[], Any], *words: str) -> None:
        """Raises RuntimeError: the call is not refused with these words, or changes an adapter."""
        try:
            call()
        except Exception as error:  # pylint: disable=broad-except
            # With several ranks, the one that answers says its own reason, or that another one has refused.
            elsewhere = self.options.tp > 1 and "another rank of the engine could not be attached" in str(error)
            missing = [] if elsewhere else [word for word in words if word not in str(error)]
            if missing:
                raise RuntimeError(f"the refusal does not say {missing}: {error}") from error
        else:
            raise RuntimeError(f"it was not refused: expected {words}")
        self.require_all(f"after the refusal with {words}")


def publisher_of(options: argparse.Namespace, name: str, of: str = "") -> Publisher:
    """The trainer of `name`, with two versions of adapter `of`."""
    daemons = options.daemons[name]
    return Publisher(daemons["sender"], daemons["job_id"], of or name, version_weights)


def alternated(
    publishers: dict[str, Publisher], request: Callable[[str], list[Step]], seconds: float, between: Callable[[], Any]
) -> dict[str, Any]:
    """Requests of all adapters while the versions of each alternate; the numbers of each.

    Args:
      request: makes a request of an adapter, whose tokens are the same with both versions.
      between: called after each round of requests.
    """
    tallies = {}
    for name, publisher in publishers.items():
        references = []
        for which in (0, 1):
            publisher.publish(which)
            references.append(request(name))
        tallies[name] = Tally(references)
    for publisher in publishers.values():
        publisher.alternate()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for name, tally in tallies.items():
            tally.add(request(name))
        between()
    commits = {name: publisher.stop() for name, publisher in publishers.items()}
    return {
        name: {"steps": one.steps, "torn": one.torn, "versions": len(one.versions), "commits": commits[name]}
        for name, one in tallies.items()
    }
