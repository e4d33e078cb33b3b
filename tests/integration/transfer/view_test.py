"""Engines that hold quantised weights follow a BF16 trainer, beside engines that hold its own: every byte is
compared with numpy."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import threading
import unittest
from typing import Any, Optional, Sequence

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

DWSCTL = os.path.abspath("tools/dwsctl/dwsctl")
# What two delta objects differ in that are of other streams.
IDENTITY_BYTES = 64


def dwsctl(*arguments: str) -> Any:
    ran = subprocess.run([DWSCTL, *arguments, "--json"], capture_output=True, text=True, timeout=60)
    assert ran.returncode in (0, 1), ran.stderr  # 1: not ready
    return json.loads(ran.stdout)


def write_checkpoint(path: str, tensors: dict[str, Any]) -> None:
    """A safetensors file of BF16."""
    header, end = {}, 0
    for name, bits in tensors.items():
        offsets = [end, end + bits.nbytes]
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": offsets}
        end += bits.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for bits in tensors.values():
            file.write(bits.tobytes())


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

    def begin(
        self, shapes: dict[str, tuple[int, ...]], cuts: Any = None, flags: Sequence[str] = ()
    ) -> None:
        self.sender = self.cluster.start_sender(0, *flags)
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

    def attach(self, view: str, *flags: str, senders: bool = True) -> tuple[dws.Engine, Any, Daemon]:
        flags = flags if view == "" else (f"--view={view}", *flags)
        name = f"r{len(self.cluster.receivers)}"
        receiver = self.cluster.start_receiver(name, *flags, senders=senders)
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

    def test_a_sender_publishes_what_an_estimate_says(self) -> None:
        self.begin(SHAPES)
        views = [f"{recipe},{EXCEPT}" for recipe in
                 ("fp8-block128/deepseek", "fp8-channel/vllm", "mxfp8/floor", "int4-g128/amax7")]  # fmt: skip
        paths = [os.path.join(self.cluster.folder, f"{version}.safetensors") for version in (1, 2)]
        self.publish()
        followed = [(*self.attach(view), view) for view in views]
        plain, _, plain_receiver = self.attach("")
        for engine, live, _, view in followed:
            self.check(engine, live, view)
        self.await_version(plain, 1)
        write_checkpoint(paths[0], dict(self.source))
        self.publish()
        write_checkpoint(paths[1], dict(self.source))
        for engine, live, _, view in followed:
            self.check(engine, live, view)

        said = dwsctl("estimate", "--no-slime", *(f"--view={view}" for view in views), *paths)
        sender = dwsctl("status", f"--socket={self.cluster.senders[0].socket}")["sender"]
        published = {view["name"]: view for view in sender["views"]}
        self.assertEqual(sorted(published), sorted(views))
        self.assertEqual([view["name"] for view in said["views"]], views)
        wire = int(sender["versions"][-1]["wire_bytes"])
        self.assertLessEqual(abs(said["fast_bytes"] - wire), IDENTITY_BYTES)
        for estimate in said["views"]:
            view = published[estimate["name"]]
            with self.subTest(estimate["name"]):
                size = sum(array.nbytes for array in self.expected(estimate["name"]).values())
                self.assertEqual(estimate["full_bytes"], size)
                self.assertGreaterEqual(int(view["snapshot_bytes"]), size)  # aligned
                # The first version has no delta, so that only the second one's is retained.
                difference = abs(estimate["fast_bytes"] - int(view["retained_bytes"]))
                self.assertLessEqual(difference, IDENTITY_BYTES)
                self.assertEqual((view["newest_version"], view["receivers"]), ("2", 1))
        self.assertEqual(
            {peer["receiver_id"]: peer["view"] for peer in sender["receivers"]},
            {**{receiver.name: view for _, _, receiver, view in followed}, plain_receiver.name: ""},
        )
        for _, _, receiver, view in followed:
            status = dwsctl("status", f"--socket={receiver.socket}")["receiver"]
            self.assertEqual(status["view"], view)
        metric = self.cluster.senders[0].metric
        self.assertEqual(metric("dws_sender_views"), len(views))
        for name, field in (("snapshot", "snapshot_bytes"), ("retained", "retained_bytes")):
            total = sum(int(view[field]) for view in sender["views"])
            self.assertEqual(metric(f"dws_sender_view_{name}_bytes"), total)
        self.assertEqual(metric("dws_sender_view_capture_seconds_count"), 1)
        self.assertGreater(metric("dws_sender_view_capture_seconds_sum"), 0)

    def test_an_engine_is_told_which_tensors_of_a_view_have_changed(self) -> None:
        self.begin(SHAPES)
        view = f"fp8-block128/deepseek,{EXCEPT}"
        receiver = self.cluster.start_receiver("r", f"--view={view}")
        engine = self.engine(receiver)
        told: list[Optional[frozenset[str]]] = []
        engine.attach({n: np.zeros_like(a) for n, a in self.expected(view).items()}, rebuild=told.append)
        self.publish()
        self.await_version(engine, 1)
        # After tensors in full nothing is known to be as it was.
        for name in ("proj.weight", "proj.weight", "norm.weight"):
            # A sign: codes change, and the scale of the tile does not.
            self.source[name].reshape(-1)[0] ^= 0x8000
            self.publish(0.0)
            self.await_version(engine, self.version)
        receiver.kill()
        receiver.start()
        eventually(lambda: len(told) == 5, lambda: f"{told}\n{receiver.log_tail()}")
        self.assertEqual(told, [None, None, {"proj.weight"}, {"norm.weight"}, None])

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

    def test_cuts_that_engines_of_a_view_need_are_made_when_they_attach(self) -> None:
        shapes = {name: SHAPES[name] for name in ("experts.weight", "norm.weight", "proj.weight")}
        self.begin(shapes)
        self.publish()
        view = "fp8-block128/deepseek"
        whole, whole_live, _ = self.attach(view)
        plain, plain_live, _ = self.attach("")
        self.check(whole, whole_live, view)
        self.check(plain, plain_live, "")
        receiver = self.cluster.start_receiver("halves", f"--view={view}")
        ranks = [self.engine(receiver, rank, 2) for rank in range(2)]
        live: list[dict[str, Any]] = [{}, {}]

        def attach(rank: int) -> None:
            tensors, mapping = {}, {}
            for name, array in self.expected(view).items():
                if not name.startswith("proj."):
                    tensors[name] = np.zeros_like(array)
                    continue
                half = len(array) // 2
                tensors[name] = np.zeros_like(array[:half])
                mapping[name] = dws.Slice(name, 0, half * rank, half * (rank + 1))
            live[rank] = ranks[rank].attach(tensors, mapping)

        threads = [threading.Thread(target=attach, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for share in (0.0, 0.01, 0.3):
            # Those that were there go on with the version they have, and with the next ones.
            self.dws_trainer.wait(self.version, timeout=60)
            self.check(whole, whole_live, view)
            self.check(plain, plain_live, "")
            for rank, engine in enumerate(ranks):
                self.await_version(engine, self.version)
                with engine.running(60):
                    for name, wanted in self.expected(view).items():
                        if name.startswith("proj."):
                            half = len(wanted) // 2
                            wanted = wanted[half * rank : half * (rank + 1)]
                        self.assertEqual(live[rank][name].tobytes(), wanted.tobytes(), name)
            self.publish(share)
        # Half a tile is no part that a view can have.
        receiver = self.cluster.start_receiver("odd", f"--view={view}")
        odd = [self.engine(receiver, rank, 2) for rank in range(2)]
        refused: list[str] = []

        def attach_odd(rank: int) -> None:
            tensors, mapping = {}, {}
            for name, array in self.expected(view).items():
                if not name.startswith("experts."):
                    tensors[name] = np.zeros_like(array)
                    continue
                half = array.shape[1] // 2
                tensors[name] = np.zeros_like(array[:, :half])
                mapping[name] = dws.Slice(name, 1, half * rank, half * (rank + 1))
            try:
                odd[rank].attach(tensors, mapping)
            except dws.DwsError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=attach_odd, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertTrue(any("dimension 1 at multiples of 128, found one at 80" in why for why in refused), refused)

    def test_tensors_that_share_one_scale_a_matrix_are_quantised_with_the_larger_amax(self) -> None:
        gate, up, down = "l.gate_proj.weight", "l.up_proj.weight", "l.down_proj.weight"
        self.begin({down: (256, 64), gate: (96, 256), up: (64, 256)})
        self.publish()
        recipe = "nvfp4/modelopt"
        receiver = self.cluster.start_receiver("nvfp4", f"--view={recipe},share=gate_proj+up_proj")
        engine = self.engine(receiver)

        def expected() -> dict[str, Any]:
            found: dict[str, Any] = {}
            for names in ((gate, up), (down,)):
                together = np.concatenate([self.source[name] for name in names])
                outputs = oracle.quantise(recipe, together[None])
                row = 0
                for name in names:
                    rows, columns = self.source[name].shape
                    codes = np.ascontiguousarray(outputs["codes"]).view(np.uint8).reshape(len(together), -1)
                    scales = np.ascontiguousarray(outputs["scales"]).view(np.uint8).reshape(len(together), -1)
                    found[name] = np.ascontiguousarray(codes[row : row + rows])
                    found[name + "_scale"] = np.ascontiguousarray(scales[row : row + rows])
                    scale = np.ascontiguousarray(outputs["tensor_scale"]).view(np.float32)
                    found[name + "_scale_2"] = scale.reshape(())
                    row += rows
            return found

        live = engine.attach({name: np.zeros_like(array) for name, array in expected().items()})
        moves = 0
        scale = b""
        for step in range(6):
            self.await_version(engine, self.version)
            wanted = expected()
            with engine.running(60):
                for name, array in wanted.items():
                    self.assertEqual(live[name].tobytes(), array.tobytes(), f"{name}, step {step}")
            moves += wanted[gate + "_scale_2"].tobytes() != scale
            scale = wanted[gate + "_scale_2"].tobytes()
            if step % 2 == 0:  # the scale of gate moves by an element of up
                self.source[up][step, 3] = 0x3F00 + step
            self.publish()
        self.assertGreaterEqual(moves, 3)

    def test_what_cannot_be_a_view_is_refused_by_name(self) -> None:
        self.begin({"proj.weight": (1024, 256)}, {"proj.weight": dws.Cut((100,), 0)})
        self.publish()
        for view, reason in (
            ("fp8-block128/deepseek", "needs cuts of dimension 0 at multiples of 128"),
            ("fp8-tensor/vllm,share=proj+gate", "gate.weight, which this trainer rank does not have, or"),
        ):
            for number in range(2):
                receiver = self.cluster.start_receiver(f"refused-{reason[:5].strip()}-{number}", f"--view={view}")
                eventually(lambda: reason in receiver.log_tail(50), receiver.log_tail)
        self.assertEqual(self.sender.logged("view_refused"), 2)  # receivers ask again and again
        # The trainer's own tensors are served all the same.
        engine, live, _ = self.attach("")
        self.check(engine, live, "")
        with self.assertRaisesRegex(Exception, "fp8-block128"):
            self.cluster.start_receiver("unknown", "--view=fp8-block128")


if __name__ == "__main__":
    unittest.main()
