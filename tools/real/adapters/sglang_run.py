"""One run of SGLang with adapters, in a process of its own beside the server's. Its last line on stdout is a JSON object."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any, Iterator

from tools.real.adapters.scene import Observation, Scene, alternated, arguments, base, folder_of, fresh_of, publisher_of
from tools.real.adapters.sglang_engine import SglangEngine
from tools.real.engines.alternation import print_result
from tools.real.engines.steps import Step

# Those that are attached, with the adapter of the model that each begins with. (SGLang does not scale as rsLoRA does.)
ATTACHED = {"math": "math", "code": "plain"}


@contextlib.contextmanager
def engine_of(options: argparse.Namespace, attached: bool, **more: Any) -> Iterator[SglangEngine]:
    """A block with a server; if it fails, the error has the end of the server's log."""
    sockets = {name: {"socket": daemons["receiver"]} for name, daemons in options.daemons.items()} if attached else None
    log = os.path.join(options.folder, f"{options.what}-server.log")
    engine = SglangEngine(base(options), log, options.tp, sockets, more=tuple(options.engine), **more)
    try:
        yield engine
    except RuntimeError as error:
        raise RuntimeError(f"the server's log ends{engine.log()}{error}") from error
    finally:
        engine.end()


def fresh(options: argparse.Namespace) -> dict[str, Any]:
    """What an SGLang computes that has loaded the checkpoint of each step; by adapter and step."""
    with engine_of(options, attached=False) as engine:

        def observed(name: str, step: int) -> tuple[Observation, Observation]:
            engine.load(f"{name}-{step}", folder_of(options, name, step))
            both = engine.observe(f"{name}-{step}"), engine.observe(f"{name}-{step}")
            engine.unload(f"{name}-{step}")
            return both

        return fresh_of((*ATTACHED.values(), "other"), observed)


class Live(Scene):
    """An SGLang whose adapters are attached when it loads them."""

    engine: SglangEngine

    def observe(self, name: str) -> Observation:
        return self.engine.observe(name)


def live(options: argparse.Namespace) -> dict[str, Any]:
    scene = Live(options)
    for name, of in ATTACHED.items():
        scene.trainer(name, of)
    with engine_of(options, attached=True, loaded={"code": folder_of(options, "plain", 0)}) as engine:
        scene.engine = engine
        scene.publish("code", 1, "plain")
        scene.require_all("the adapter that was loaded at the start")
        refused(scene)
        engine.load("math", folder_of(options, "math", 0))
        scene.publish("math", 1)
        scene.require_all("the first versions")
        for name, step in (("math", 2), ("code", 2), ("math", 1), ("math", 0), ("code", 1)):
            scene.publish(name, step, ATTACHED[name])
            scene.require_all(f"{name} at step {step}")
        evicted(scene)
        swapped(scene)
        return {"compared": scene.compared}


def refused(scene: Live) -> None:
    """Adapters that are not those of the trainer are not loaded, and nothing changes."""
    for name, words in (
        ("wide", ("lora_A.weight", "[8, 128]", "[16, 128]")),
        ("loud", ("dws.adapter.lora_alpha", "[24]", "[12]")),
        ("rooted", ("SGLang multiplies by 1.5", "use_rslora")),
        ("narrow", ("mlp.down_proj.lora_A.weight",)),
    ):
        folder = folder_of(scene.options, name, 0)
        # SGLang joins the errors of several ranks.
        scene.require_refused(lambda folder=folder: scene.engine.load("math", folder), *words)  # type: ignore[misc]


def evicted(scene: Live) -> None:
    """SGLang gives the slots of attached adapters to others, and takes the versions that come meanwhile."""
    scene.engine.load("other", folder_of(scene.options, "other", 1))
    for name, of in ATTACHED.items():
        if not scene.is_fresh("other-1", scene.engine.observe("other")):
            raise RuntimeError("an adapter that is not attached differs from a fresh SGLang's")
        if all(None not in scene.engine.slots(each) for each in ATTACHED):
            raise RuntimeError("no attached adapter was evicted: nothing was tested")
        scene.publish(name, 2, of)
        if scene.engine.slots("other") != scene.fresh["other-1"].slots:
            raise RuntimeError("a commit has written the slot of an adapter that is not attached")
        scene.require_all(f"after one was evicted for 'other', and '{name}' had a version")


def swapped(scene: Live) -> None:
    """Another adapter in the place of one is another registration."""
    folder = folder_of(scene.options, "other", 0)
    scene.require_refused(lambda: scene.engine.load("math", folder), "math", "already loaded")
    scene.engine.unload("math")
    scene.trainers.pop("math").close()
    del scene.now["math"]
    scene.publish("code", 2, "plain")
    scene.require_all("after 'math' was unloaded")
    scene.trainer("math", "other")
    scene.engine.load("math", folder)
    for step in (1, 2):
        scene.publish("math", step, "other")
        scene.publish("code", step, "plain")
        scene.require_all(f"after the swap, step {step}")


def torn(options: argparse.Namespace) -> dict[str, Any]:
    """Two adapters whose versions alternate while requests of both run, and others take their slots."""
    publishers = {name: publisher_of(options, name, of) for name, of in ATTACHED.items()}
    loaded = {name: folder_of(options, of, 0) for name, of in ATTACHED.items()}
    with engine_of(options, attached=True, loaded={**loaded, "other": folder_of(options, "other", 1)}) as engine:
        expected: dict[str, list[int]] = {}
        for name in ATTACHED:
            publishers[name].publish(0)
        for name in ATTACHED:
            expected[name] = engine.forced(name)[0]
        not_attached = engine.forced("other")

        def request(name: str) -> list[Step]:
            tokens, steps = engine.forced(name)
            if tokens != expected[name]:
                raise RuntimeError(f"'{name}' sampled {tokens}, expected {expected[name]}: its versions cannot be told apart by step")
            return steps

        def others() -> None:
            if engine.forced("other") != not_attached:
                raise RuntimeError("an adapter that is not attached computes something else")

        return alternated(publishers, request, options.seconds, others)


def main() -> int:
    options = arguments(__doc__)
    print_result({"fresh": fresh, "live": live, "torn": torn}[options.what](options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
