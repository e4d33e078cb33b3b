"""Engines with one scale a matrix follow a trainer whose matrices lie over several ranks: every byte is compared
with numpy over the whole matrices."""

from __future__ import annotations

import os
import unittest
from typing import Any, Optional

import numpy as np

import dws
from tests.common.quantise import oracle
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, eventually

GATE, UP, DOWN, EXPERTS = "l.gate_proj.weight", "l.up_proj.weight", "l.o_proj.weight", "l.experts.weight"
NORM = "l.norm.weight"
SHAPES: dict[str, tuple[int, ...]] = {
    DOWN: (128, 512),
    EXPERTS: (2, 64, 256),
    GATE: (96, 256),
    NORM: (640,),
    UP: (64, 256),
}
SHARE = "share=gate_proj+up_proj"
MODELOPT = f"nvfp4/modelopt,{SHARE}"
TENSOR = f"fp8-tensor/vllm,{SHARE}"
# How a trainer cuts each tensor: rows as FSDP, or rows and columns as tensor parallelism.
ROWS = {DOWN: 0, EXPERTS: 1, GATE: 0, NORM: 0, UP: 0}
PARALLEL = {DOWN: 1, EXPERTS: 2, GATE: 0, NORM: 0, UP: 0}


def outputs(view: str, whole: dict[str, Any]) -> dict[str, Any]:
    """What an engine of the view holds."""
    recipe = view.split(",")[0]
    found: dict[str, Any] = {NORM: whole[NORM]}
    for names in ((GATE, UP), (DOWN,), (EXPERTS,)):
        stacks = [whole[name].reshape(-1, *whole[name].shape[-2:]) for name in names]
        together = np.concatenate(stacks, axis=1)
        made = oracle.quantise(recipe, together)
        scale = np.ascontiguousarray(made["tensor_scale"]).view(np.float32)
        begin = 0
        for name, stack in zip(names, stacks):
            lead = whole[name].shape[:-2]

            def rows(output: str) -> Any:
                by_row = np.ascontiguousarray(made[output]).view(np.uint8).reshape(*together.shape[:2], -1)
                part = by_row[:, begin : begin + stack.shape[1]]
                return np.ascontiguousarray(part).reshape(*lead, stack.shape[1], -1)

            found[name] = rows("codes")
            if recipe.startswith("nvfp4"):
                found[f"{name}_scale"] = rows("scales")
                found[f"{name}_scale_2"] = scale.reshape(lead)
            else:
                found[f"{name}_scale"] = scale.reshape(lead or (1,))
            begin += stack.shape[1]
    return found


class ViewRanksTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(53)
        self.version = 0

    def begin(self, along: dict[str, int], ranks: int, peers: bool = True, flags: tuple[str, ...] = ()) -> None:
        self.along, self.ranks = along, ranks
        sockets = [f"unix:{self.cluster.folder}/sender-{rank}/d.sock" for rank in range(ranks)]
        named = (f"--train-peers={','.join(sockets)}",) if peers else ()
        for rank in range(ranks):
            sender = self.cluster.start_sender(rank, *named, *flags)
            self.assertEqual(f"unix:{sender.socket}", sockets[rank])
        cuts = {name: dws.Cut.even(shape[along[name]], ranks, along[name]) for name, shape in SHAPES.items()}
        specs = [dws.TensorSpec(name, dws.DType.BF16, shape) for name, shape in SHAPES.items()]
        stream = dws.Stream.new()
        self.trainers = [self.trainer(rank, ranks, stream) for rank in range(ranks)]
        self.parts = [
            trainer.register(specs, cuts=cuts, shards={name: (rank, 1) for name in SHAPES}, views="numpy")
            for rank, trainer in enumerate(self.trainers)
        ]
        for part in self.parts:
            for array in part.values():
                values = self.random.standard_normal(array.shape, np.float32) * 0.02
                array[...] = (values.view(np.uint32) >> 16).astype(np.uint16)

    def whole(self) -> dict[str, Any]:
        return {
            name: np.concatenate([part[name] for part in self.parts], axis=self.along[name]) for name in SHAPES
        }

    def publish(self, share: float = 0.01) -> None:
        self.version += 1
        for part in self.parts:
            for array in part.values():
                array[self.random.random(array.shape) < share] ^= 1
        for trainer in self.trainers:
            trainer.publish(self.version)

    def follow(self, view: str, *flags: str, senders: bool = True) -> tuple[dws.Engine, Any, Daemon]:
        name = f"r{len(self.cluster.receivers)}"
        receiver = self.cluster.start_receiver(name, f"--view={view}", *flags, senders=senders)
        engine = self.engine(receiver)
        wanted = outputs(view, self.whole())
        live = engine.attach({name: np.zeros_like(array) for name, array in wanted.items()})
        return engine, live, receiver

    def check(self, engine: dws.Engine, live: Any, view: str) -> dict[str, Any]:
        self.await_version(engine, self.version)
        wanted = outputs(view, self.whole())
        with engine.running(60):
            for name, array in wanted.items():
                if live[name].tobytes() != np.ascontiguousarray(array).tobytes():
                    self.fail(f"'{name}' of view '{view}' differs at version {self.version}")
        return wanted

    def move(self, rank: int, name: str, bits: Optional[int]) -> None:
        """Makes an element of a rank's part the largest of the matrix, or an ordinary one again."""
        self.parts[rank][name].reshape(-1)[3] = 0x3C00 if bits is None else bits

    def run_versions(self, along: dict[str, int], ranks: int) -> None:
        self.begin(along, ranks)
        self.publish()
        followed = [(*self.follow(view), view) for view in (MODELOPT, TENSOR)]
        scales = set()
        for step in range(9):
            for engine, live, _, view in followed:
                wanted = self.check(engine, live, view)
                scales.add(wanted[f"{GATE}_scale_2" if view == MODELOPT else f"{GATE}_scale"].tobytes())
            rank = step % ranks
            if step % 3 == 0:  # grows, by a rank that alone has that part
                self.move(rank, UP, 0x4000 + step)
                self.move(ranks - 1 - rank, EXPERTS, 0xC100 + step)
            if step % 3 == 2:  # falls again, everywhere
                for each in range(ranks):
                    self.move(each, UP, None)
                    self.move(each, EXPERTS, None)
            self.publish(0.5 if step == 4 else 0.005)
        self.assertGreaterEqual(len(scales), 4)
        for engine, live, receiver, view in followed:
            self.check(engine, live, view)
            size = sum(array.nbytes for array in outputs(view, self.whole()).values())
            self.assertEqual(receiver.metric("dws_receiver_fetched_bytes_total", 'kind="full"'), size)
        for trainer in self.trainers:
            self.assertEqual(len(trainer.wait(self.version, timeout=60).committed), len(followed))

    def test_rows_over_two_ranks(self) -> None:
        self.run_versions(ROWS, 2)

    def test_rows_and_columns_over_four_ranks(self) -> None:
        self.run_versions(PARALLEL, 4)

    def test_a_rank_is_killed_and_comes_back(self) -> None:
        self.begin(ROWS, 2)
        self.publish()
        engine, live, _ = self.follow(MODELOPT)
        self.check(engine, live, MODELOPT)
        for rank in (1, 0):
            self.cluster.senders[rank].kill()
            # The others go on meanwhile: what they publish has no amax of that rank.
            self.version += 1
            self.move(1 - rank, GATE, 0x4200 + rank)
            self.trainers[1 - rank].publish(self.version)
            self.cluster.senders[rank].start()
            self.trainers[rank].reconnect()
            self.trainers[rank].publish(self.version)
            self.check(engine, live, MODELOPT)
            self.move(1 - rank, GATE, None)
            for _ in range(2):
                self.publish()
                self.check(engine, live, MODELOPT)

    def test_a_version_that_one_rank_never_published_is_left_out(self) -> None:
        self.begin(ROWS, 2)
        self.publish()
        engine, live, _ = self.follow(MODELOPT)
        self.check(engine, live, MODELOPT)
        self.version += 1
        self.move(0, GATE, 0x4300)
        self.trainers[0].publish(self.version)
        self.version += 1
        self.move(0, GATE, None)
        for trainer in self.trainers:  # rank 1 goes from 1 to 3
            trainer.publish(self.version)
        self.check(engine, live, MODELOPT)
        self.assertEqual(self.cluster.senders[0].logged("view_version_left_out"), 1)
        left_out = [s.metric("dws_sender_view_versions_left_out_total") for s in self.cluster.senders]
        self.assertEqual(left_out, [1, 0])
        self.publish()
        self.check(engine, live, MODELOPT)

    def test_a_sender_whose_view_stays_behind_is_not_ready(self) -> None:
        self.begin(ROWS, 2, flags=("--folder-stale-after=1",))
        self.publish()
        engine, live, _ = self.follow(MODELOPT)
        self.check(engine, live, MODELOPT)
        sender = self.cluster.senders[0]
        self.version += 1
        self.trainers[0].publish(self.version)
        eventually(lambda: sender.readyz()[0] == 503, sender.log_tail)
        self.assertIn(f"view '{MODELOPT}' does not get the trainer's versions: ", sender.readyz()[1])
        self.assertIn("trainer rank 1", sender.readyz()[1])
        self.trainers[1].publish(self.version)
        self.check(engine, live, MODELOPT)
        eventually(lambda: sender.readyz()[0] == 200, sender.log_tail)

    def test_a_shared_directory_has_the_views_of_all_ranks(self) -> None:
        root = os.path.join(self.cluster.folder, "shared")
        self.begin(PARALLEL, 2, flags=(f"--shared-dir={root}", f"--shared-view={TENSOR}"))
        self.publish()
        engine, live, _ = self.follow(
            TENSOR, f"--shared-dir={root}", "--shared-ranks=2", "--shared-poll-ms=20", senders=False
        )
        for step in range(4):
            self.check(engine, live, TENSOR)
            self.move(step % 2, DOWN, 0x4000 - step)
            self.publish()
        self.check(engine, live, TENSOR)

    def test_an_engine_that_joins_late_gets_the_newest_version_without_a_publish(self) -> None:
        self.begin(ROWS, 2)
        for _ in range(3):
            self.publish()
        engine, live, _ = self.follow(TENSOR)
        self.check(engine, live, TENSOR)

    def test_without_peers_it_is_refused_by_name(self) -> None:
        self.begin(ROWS, 2, peers=False)
        self.publish()
        receiver = self.cluster.start_receiver("refused", f"--view={MODELOPT}")
        eventually(lambda: "start the senders of all ranks with --train-peers" in receiver.log_tail(50), receiver.log_tail)
        self.assertIn("has one scale a matrix, and other trainer ranks have parts", receiver.log_tail(50))


if __name__ == "__main__":
    unittest.main()
