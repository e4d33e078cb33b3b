"""One run of vLLM with adapters, in a process of its own. Its last line on stdout is a JSON object."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from typing import Any

from tools.real.adapters.scene import Observation, Scene, alternated, arguments, base, folder_of, fresh_of, publisher_of
from tools.real.adapters.vllm_engine import VllmEngine
from tools.real.engines.alternation import print_result
from tools.real.engines.steps import Step

# Those that are attached, with their lora_int_id.
ATTACHED = {"math": 1, "code": 2}
OTHER = 3


def fresh(options: argparse.Namespace) -> dict[str, Any]:
    """What a vLLM computes that has loaded the checkpoint of each step; by adapter and step."""
    engine = VllmEngine(base(options), options.tp, **options.engine)
    numbers = itertools.count(100)

    def observed(name: str, step: int) -> tuple[Observation, Observation]:
        number, folder = next(numbers), folder_of(options, name, step)
        return engine.observe(f"{name}-{step}", number, folder), engine.observe(f"{name}-{step}", number, folder)

    return fresh_of((*ATTACHED, "other"), observed)


class Live(Scene):
    """A vLLM whose adapters are attached."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.engine = VllmEngine(base(options), options.tp, **options.engine)

    def attach(self, name: str, of: str = "", **more: Any) -> None:
        path = os.path.join(self.options.folder, f"{of or name}-0")
        self.engine.call("dws_attach_adapter", name, path, self.options.daemons[name]["receiver"], **more)

    def observe(self, name: str) -> Observation:
        return self.engine.observe(name, ATTACHED[name], os.path.join(self.options.folder, f"{name}-0"))


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
    for name in ATTACHED:
        found = scene.engine.observe("other", OTHER, folder)
        if not scene.is_fresh("other-1", found):
            raise RuntimeError("an adapter that is not attached differs from a fresh vLLM's")
        scene.publish(name, 2)  # one of the attached ones is not loaded now
        if scene.engine.call("slot_digest", OTHER) != scene.fresh["other-1"].slots:
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
    publishers = {}
    for name, number in ATTACHED.items():
        folder = folder_of(options, name, 0)
        engine.load(name, number, folder)
        publishers[name] = publisher_of(options, name)
        engine.call("dws_attach_adapter", name, folder, options.daemons[name]["receiver"])
        publishers[name].publish(0)

    def request(name: str) -> list[Step]:
        return engine.forced(name, ATTACHED[name], os.path.join(options.folder, f"{name}-0"))

    return alternated(publishers, request, options.seconds, lambda: None)


def main() -> int:
    options = arguments(__doc__)
    print_result({"fresh": fresh, "live": live, "torn": torn}[options.what](options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
