"""One run of vLLM with adapters, in a process of its own. Its last line on stdout is a JSON object."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Callable

import dws
from tools.real.adapters.model import ADAPTERS, KIND, STEPS, registered, step_weights, version_weights, write_adapter
from tools.real.adapters.vllm_engine import Observation, VllmEngine
from tools.real.engines import model
from tools.real.engines.alternation import print_result
from tools.real.engines.publisher import Publisher
from tools.real.engines.steps import Tally

WAIT_SECONDS = 60.0
# Those that are attached, with their lora_int_id.
ATTACHED = {"math": 1, "code": 2}
OTHER = 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("fresh", "live", "torn"))
    parser.add_argument("--folder", required=True, help="for models and adapters")
    parser.add_argument("--daemons", type=json.loads, default={}, help="by adapter: sender, receiver, job_id")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--engine", type=json.loads, default={}, help="more arguments of vllm.LLM")
    return parser.parse_args()


def folder_of(options: argparse.Namespace, name: str, step: int) -> str:
    return write_adapter(os.path.join(options.folder, f"{name}-{step}"), name, step_weights(name, step))


def fresh(options: argparse.Namespace) -> dict[str, Any]:
    """What a vLLM computes that has loaded the checkpoint of each step; by adapter and step."""
    engine = VllmEngine(base(options), options.tp, **options.engine)
    found: dict[str, Any] = {}
    number = 100
    for name in (*ATTACHED, "other"):
        for step in STEPS:
            number += 1
            one, again = (engine.observe(f"{name}-{step}", number, folder_of(options, name, step)) for _ in range(2))
            if one != again:
                raise RuntimeError("the same adapter gave other numbers: nothing can be compared")
            if one in found.values():
                raise RuntimeError(f"step {step} of '{name}' cannot be told apart")
            found[f"{name}-{step}"] = one
    return found


def base(options: argparse.Namespace) -> str:
    folder = os.path.join(options.folder, "base")
    model.write_checkpoint(folder, KIND, model.version_weights(KIND, 0))
    return folder


class Live:
    """A vLLM whose adapters are attached, and their trainers."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        with open(os.path.join(options.folder, "fresh.json")) as file:
            self._fresh = {key: Observation(*value) for key, value in json.load(file).items()}
        self.engine = VllmEngine(base(options), options.tp, **options.engine)
        self.trainers: dict[str, dws.Trainer] = {}
        self._views: dict[str, Any] = {}
        self.now: dict[str, str] = {}  # by name, the key of what it has to compute
        self.compared = 0

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

    def attach(self, name: str, of: str = "", **more: Any) -> None:
        path = os.path.join(self.options.folder, f"{of or name}-0")
        self.engine.call("dws_attach_adapter", name, path, self.options.daemons[name]["receiver"], **more)

    def require_all(self, when: str) -> None:
        """Raises RuntimeError: an adapter does not compute what a fresh vLLM computes with its step."""
        for name, number in ATTACHED.items():
            found = self.engine.observe(name, number, os.path.join(self.options.folder, f"{name}-0"))
            expected = self._fresh[self.now[name]]
            if json.loads(json.dumps(found)) != json.loads(json.dumps(expected)):
                parts = [part for part, a, b in zip(found._fields, found, expected) if json.dumps(a) != json.dumps(b)]
                raise RuntimeError(f"{when}: '{name}' differs from a fresh vLLM with {self.now[name]} in its {parts}")
            self.compared += 1

    def require_refused(self, call: Callable[[], Any], *words: str) -> None:
        """Raises RuntimeError: the call is not refused with these words, or changes an adapter."""
        try:
            call()
        except Exception as error:  # pylint: disable=broad-except
            missing = [word for word in words if word not in str(error)]
            if missing:
                raise RuntimeError(f"the refusal does not say {missing}: {error}") from error
        else:
            raise RuntimeError(f"it was not refused: expected {words}")
        self.require_all(f"after the refusal with {words}")


def live(options: argparse.Namespace) -> dict[str, Any]:
    scene = Live(options)
    engine = scene.engine
    for name in ATTACHED:
        scene.trainer(name)
    refused_first(scene)
    for name, number in ATTACHED.items():
        engine.load(name, number, folder_of(options, name, 0))  # the refused ones have taken its place
        scene.attach(name)
        scene.publish(name, 1)
    scene.require_all("the first versions")
    for name, step in (("math", 2), ("code", 2), ("math", 1), ("math", 0), ("code", 1)):
        scene.publish(name, step)
        scene.require_all(f"{name} at step {step}")
    evicted(scene)
    swapped(scene)
    status = engine.call("dws_status")
    return {"compared": scene.compared, "status": status}


def refused_first(scene: Live) -> None:
    """Adapters that are not those of the trainer are refused, and nothing is written."""
    for name, words in (
        ("wide", ("lora_A.weight", "[8, 128]", "[16, 128]")),
        ("loud", ("dws.adapter.lora_alpha", "[24]", "[12]")),
        ("rooted", ("dws.adapter.use_rslora",)),
        ("narrow", ("mlp.down_proj.lora_A.weight",)),
    ):
        folder = folder_of(scene.options, name, 0)
        scene.engine.load(name, OTHER, folder)
        before = scene.engine.call("slot_digest", OTHER)
        try:
            scene.engine.call("dws_attach_adapter", name, folder, scene.options.daemons["math"]["receiver"])
        except Exception as error:  # pylint: disable=broad-except
            # With several ranks the last one says its own reason, or that another one has refused.
            elsewhere = scene.options.tp > 1 and "another rank of the engine could not be attached" in str(error)
            missing = [] if elsewhere else [word for word in words if word not in str(error)]
            if missing:
                raise RuntimeError(f"the refusal of '{name}' does not say {missing}: {error}") from error
        else:
            raise RuntimeError(f"'{name}' was not refused for the trainer of 'math'")
        if scene.engine.call("slot_digest", OTHER) != before or scene.engine.call("dws_version") != [None] * scene.options.tp:
            raise RuntimeError(f"the refusal of '{name}' has changed something")
        scene.engine.call("remove_lora", OTHER)


def evicted(scene: Live) -> None:
    """vLLM gives the slots of attached adapters to others, and takes the versions that come meanwhile."""
    folder = folder_of(scene.options, "other", 1)
    fresh = scene._fresh["other-1"]
    for name in ATTACHED:
        found = scene.engine.observe("other", OTHER, folder)
        if json.loads(json.dumps(found)) != json.loads(json.dumps(fresh)):
            raise RuntimeError("an adapter that is not attached differs from a fresh vLLM's")
        scene.publish(name, 2)  # one of the attached ones is not loaded now
        if scene.engine.call("slot_digest", OTHER) != fresh.slots:
            raise RuntimeError("a commit has written the slot of an adapter that is not attached")
        scene.require_all(f"after '{name}' was evicted")


def swapped(scene: Live) -> None:
    """Another adapter in the place of one is another registration."""
    folder = folder_of(scene.options, "other", 0)
    scene.require_refused(lambda: scene.engine.load("math", 1, folder, inplace=True), "math", "dws_detach_adapter")
    scene.require_refused(lambda: scene.engine.load("again", OTHER, os.path.join(scene.options.folder, "math-0")), "dws_detach_adapter")
    scene.require_refused(lambda: scene.attach("math"), "'math' attached")
    scene.engine.call("dws_detach_adapter", "math")
    scene.require_all("after 'math' was detached")
    scene.trainers["math"].close()
    scene.engine.load("math", 1, folder, inplace=True)
    scene.trainer("math", "other")
    scene.attach("math", "other")
    for step in (1, 2):
        scene.publish("math", step, "other")
        scene.publish("code", step)
        scene.require_all(f"after the swap, step {step}")


def torn(options: argparse.Namespace) -> dict[str, Any]:
    """Two adapters whose versions alternate while requests of both run."""
    engine = VllmEngine(base(options), options.tp, **options.engine)
    publishers, tallies = {}, {}
    for name, number in ATTACHED.items():
        daemons = options.daemons[name]
        engine.load(name, number, folder_of(options, name, 0))
        publishers[name] = Publisher(daemons["sender"], daemons["job_id"], name, version_weights)
        engine.call("dws_attach_adapter", name, folder_of(options, name, 0), daemons["receiver"])
        publishers[name].publish(0)
    for name, number in ATTACHED.items():
        references = []
        for which in (0, 1):
            publishers[name].publish(which)
            references.append(engine.forced(name, number, folder_of(options, name, 0)))
        tallies[name] = Tally(references)
    for publisher in publishers.values():
        publisher.alternate()
    deadline = time.monotonic() + options.seconds
    while time.monotonic() < deadline:
        for name, number in ATTACHED.items():
            tallies[name].add(engine.forced(name, number, os.path.join(options.folder, f"{name}-0")))
    commits = {name: publisher.stop() for name, publisher in publishers.items()}
    return {
        name: {"steps": one.steps, "torn": one.torn, "versions": len(one.versions), "commits": commits[name]}
        for name, one in tallies.items()
    }


def main() -> int:
    options = arguments()
    print_result({"fresh": fresh, "live": live, "torn": torn}[options.what](options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
