"""Engines that hold quantised weights follow a BF16 trainer, beside engines that hold its own: every byte is
compared with numpy."""

from __future__ import annotations

import unittest
from typing import Any, Optional

import numpy as np

import dws
from tests.common.quantise import oracle
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, eventually

# Two matrices with tiles at edges that do not divide, an expert stack, and what no recipe quantises.
SHAPES: dict[str, tuple[int, ...]] = {
    "experts.weight": (2, 160, 384),
    "gate.weight": (8, 256),
    "mlp.weight": (300, 640),
    "norm.weight": (640,),
    "proj.weight": (1024, 256),
}
EXCEPT = "except=gate.*"


def outputs(recipe: str, name: str, bits: Any) -> dict[str, Any]:
    """The tensors that take the place of one, as an engine has them."""
    if bits.ndim < 2 or name.startswith("gate."):
        return {name: bits}
    found = oracle.quantise(recipe, bits.reshape(-1, *bits.shape[-2:]))
    stem, stack = name[: -len("weight")], bits.shape[:-2]
    rows, columns = bits.shape[-2:]
    if recipe.startswith("fp8-block"):
        side = int(recipe[len("fp8-block") :].split("/")[0])
        scales = found["scales"].view(np.float32).reshape(*stack, -(-rows // side), -(-columns // side))
        return {name: found["codes"].reshape(bits.shape), stem + "weight_scale_inv": scales}
    if recipe.startswith("int4"):
        matrices = int(np.prod(stack, dtype=int))
        shape = np.tile(np.array([rows, columns], np.int32), (matrices, 1)).reshape(*stack, 2)
        packed = np.ascontiguousarray(found["codes"]).view(np.int32).reshape(*stack, rows, columns // 8)
        group = int(recipe[len("int4-g") :].split("/")[0])
        scales = np.ascontiguousarray(found["scales"]).view(np.uint16).reshape(*stack, rows, columns // group)
        return {stem + "weight_packed": packed, stem + "weight_scale": scales, stem + "weight_shape": shape}
    if recipe.startswith("mxfp8"):
        scales = found["scales"].reshape(*stack, rows, columns // 32)
    else:
        scales = np.ascontiguousarray(found["scales"]).view(np.float32).reshape(*stack, rows, 1)
    return {name: found["codes"].reshape(bits.shape), stem + "weight_scale": scales}


class ViewCase(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(37)

    def begin(self, shapes: dict[str, tuple[int, ...]], cuts: Any = None) -> None:
        self.cluster.start_sender(0)
        self.dws_trainer = self.trainer()
        specs = [dws.TensorSpec(n, dws.DType.BF16, s) for n, s in shapes.items()]
        self.source = self.dws_trainer.register(specs, cuts=cuts, views="numpy")
        for array in self.source.values():
            values = self.random.standard_normal(array.shape, np.float32) * 0.02
            array[...] = (values.view(np.uint32) >> 16).astype(np.uint16)
        self.version = 0

    def publish(self, share: float = 0.01) -> None:
        self.version += 1
        for array in self.source.values():
            steps = self.random.random(array.shape) < share
            array[steps] ^= 1
        self.dws_trainer.publish(self.version)

    def attach(self, view: str) -> tuple[dws.Engine, Any, Daemon]:
        flags = () if view == "" else (f"--view={view}",)
        receiver = self.cluster.start_receiver(f"r{len(self.cluster.receivers)}", *flags)
        engine = self.engine(receiver)
        live = engine.attach({n: np.zeros_like(a) for n, a in self.expected(view).items()})
        return engine, live, receiver

    def expected(self, view: str) -> dict[str, Any]:
        recipe = view.split(",")[0]
        found: dict[str, Any] = {}
        for name, array in self.source.items():
            found.update({name: array} if view == "" else outputs(recipe, name, array))
        return found

    def check(self, engine: dws.Engine, live: Any, view: str) -> None:
        self.await_version(engine, self.version)
        with engine.running(60):
            for name, wanted in self.expected(view).items():
                if live[name].tobytes() != np.ascontiguousarray(wanted).tobytes():
                    self.fail(f"'{name}' of view '{view}' differs at version {self.version}")


class ViewTest(ViewCase):
    def test_engines_of_several_recipes_follow_one_trainer_side_by_side(self) -> None:
        self.begin(SHAPES)
        self.publish()
        views = ["", f"fp8-block128/deepseek,{EXCEPT}", f"fp8-channel/vllm,{EXCEPT}",
                 f"mxfp8/floor,{EXCEPT}", f"int4-g128/amax7,{EXCEPT}"]  # fmt: skip
        followed = [(*self.attach(view), view) for view in views]
        for share in (0.01, 0.0, 0.001, 0.5, 0.01):
            for engine, live, _, view in followed:
                self.check(engine, live, view)
            self.publish(share)
        for engine, live, _, view in followed:
            self.check(engine, live, view)
        result = self.dws_trainer.wait(self.version)
        self.assertEqual(len(result.committed), len(views))
        for _, _, receiver, view in followed:
            # Full once, deltas afterwards.
            size = sum(array.nbytes for array in self.expected(view).values())
            full = receiver.metric("dws_receiver_fetched_bytes_total", 'kind="full"')
            self.assertEqual(full, size)
            self.assertEqual(receiver.metric("dws_receiver_committed_version"), self.version)

    def test_an_engine_is_told_which_tensors_of_a_view_have_changed(self) -> None:
        self.begin(SHAPES)
        view = f"fp8-block128/deepseek,{EXCEPT}"
        receiver = self.cluster.start_receiver("r", f"--view={view}")
        engine = self.engine(receiver)
        told: list[Optional[frozenset[str]]] = []
        engine.attach({n: np.zeros_like(a) for n, a in self.expected(view).items()}, rebuild=told.append)
        self.publish()
        self.await_version(engine, 1)
        for name in ("proj.weight", "norm.weight"):
            # A sign: codes change, and the scale of the tile does not.
            self.source[name].reshape(-1)[0] ^= 0x8000
            self.publish(0.0)
            self.await_version(engine, self.version)
        receiver.kill()
        receiver.start()
        eventually(lambda: len(told) == 4, lambda: f"{told}\n{receiver.log_tail()}")
        self.assertEqual(told, [None, {"proj.weight"}, {"norm.weight"}, frozenset()])

    def test_a_view_survives_restarts_of_both_daemons_and_of_the_trainer(self) -> None:
        self.begin(SHAPES)
        self.publish()
        view = f"fp8-block128/deepseek,{EXCEPT}"
        engine, live, receiver = self.attach(view)
        self.check(engine, live, view)
        receiver.kill()
        self.publish()
        receiver.start()
        self.check(engine, live, view)
        self.cluster.senders[0].kill()
        self.cluster.senders[0].start()
        self.dws_trainer.reconnect()
        self.publish()
        self.check(engine, live, view)
        self.publish()
        self.check(engine, live, view)

    def test_an_engine_that_joins_late_gets_the_newest_version_without_a_publish(self) -> None:
        self.begin(SHAPES)
        for _ in range(3):
            self.publish()
        view = f"fp8-block64/deepseek-ue8m0,{EXCEPT}"
        engine, live, _ = self.attach(view)
        self.check(engine, live, view)

    def test_parts_of_an_engine_hold_whole_tiles(self) -> None:
        cuts = {"proj.weight": dws.Cut((512,), 0), "mlp.weight": dws.Cut((256,), 1)}
        shapes = {name: SHAPES[name] for name in ("mlp.weight", "norm.weight", "proj.weight")}
        self.begin(shapes, cuts)
        self.publish()
        view = "fp8-block128/deepseek"
        engine, live, _ = self.attach(view)
        for _ in range(3):
            self.check(engine, live, view)
            self.publish(0.02)
        self.check(engine, live, view)

    def test_what_cannot_be_a_view_is_refused_by_name(self) -> None:
        self.begin({"proj.weight": (1024, 256)}, {"proj.weight": dws.Cut((100,), 0)})
        self.publish()
        for view, reason in (
            ("fp8-block128/deepseek", "needs cuts of dimension 0 at multiples of 128"),
            ("fp8-tensor/vllm", "depends on a whole matrix"),
        ):
            receiver = self.cluster.start_receiver(f"refused-{reason[:5].strip()}", f"--view={view}")
            eventually(lambda: reason in receiver.log_tail(50), receiver.log_tail)
        # The trainer's own tensors are served all the same.
        engine, live, _ = self.attach("")
        self.check(engine, live, "")
        with self.assertRaisesRegex(Exception, "fp8-block128"):
            self.cluster.start_receiver("unknown", "--view=fp8-block128")


if __name__ == "__main__":
    unittest.main()
