"""Engines of any tensor parallelism join a trainer that declared no cuts for them: its senders cut
finer, and no other engine notices."""

from __future__ import annotations

import os
import random
import threading
import time
import unittest
from typing import Any, Optional

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually

# Tensor -> its shape, and the dimension that tensor-parallel engines cut.
TENSORS: dict[str, tuple[tuple[int, ...], Optional[int]]] = {
    "experts": ((3, 48, 70), 1),
    "norm": ((333,), None),
    "o": ((300, 240), 1),
    "q": ((240, 300), 0),
}
# By trainer rank. Each has a half of q.
OWNED = (("o", "q"), ("experts", "norm", "q"))
HALVES = {"q": (120,)}


class Engine:
    """All ranks of one engine of tensor parallelism `size`, behind a receiver of its own."""

    def __init__(self, case: IntegrationCase, receiver: Daemon, size: int) -> None:
        self.size = size
        self.receiver = receiver
        self.ranks = [case.engine(receiver, rank, size) for rank in range(size)]
        self.live: list[dict[str, Any]] = [{} for _ in self.ranks]

    def index(self, name: str, rank: int) -> tuple[slice, ...]:
        shape, dim = TENSORS[name]
        whole = [slice(0, extent) for extent in shape]
        if dim is not None:
            part = shape[dim] // self.size
            whole[dim] = slice(rank * part, (rank + 1) * part)
        return tuple(whole)

    def _attach(self, rank: int) -> None:
        tensors, mapping = {}, {}
        for name, (shape, dim) in TENSORS.items():
            index = self.index(name, rank)
            tensors[name] = np.zeros([part.stop - part.start for part in index], np.float32)
            if dim is not None:
                mapping[name] = dws.Slice(name, dim, index[dim].start, index[dim].stop)
        self.live[rank] = self.ranks[rank].attach(tensors, mapping)

    def attach(self) -> None:
        threads = [threading.Thread(target=self._attach, args=(r,)) for r in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def reattachments(self) -> int:
        return sum(rank.stats().reattachments for rank in self.ranks)

    def full_bytes(self) -> float:
        return self.receiver.metric("dws_receiver_fetched_bytes_total", 'kind="full"')


class RefinementTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(11)
        self.version = 0
        self.engines: list[Engine] = []
        self.weights = {
            name: self.random.standard_normal(shape, np.float32)
            for name, (shape, _) in TENSORS.items()
        }

    def register(self, ring: bool = False) -> None:
        self.start(ranks=2, receivers=0)
        stream = dws.Stream.new()
        self.trainers = [self.trainer(rank, 2, stream) for rank in range(2)]
        self.views: list[Any] = []
        for rank, trainer in enumerate(self.trainers):
            tensors = {name: self.weights[name] for name in OWNED[rank]}
            kind: dict[str, Any] = {"shards": {"q": (rank, 1)}, "cuts": HALVES}
            if ring:
                specs = [dws.TensorSpec(n, np.float32, t.shape) for n, t in tensors.items()]
                trainer.register_ring(specs, **kind)
                self.views.append(None)
            else:
                self.views.append(trainer.register(tensors, **kind))

    def part(self, name: str, rank: int) -> Any:
        return self.weights[name][120 * rank :][:120] if name == "q" else self.weights[name]

    def publish(self) -> None:
        self.version += 1
        for array in self.weights.values():
            change(array, self.random, 0.01)
        for rank, trainer in enumerate(self.trainers):
            if self.views[rank] is None:
                with trainer.version(self.version) as version:
                    for name in OWNED[rank]:
                        version.put(name, self.part(name, rank))
                continue
            for name in OWNED[rank]:
                self.views[rank][name][...] = self.part(name, rank)
            trainer.publish(self.version)

    def join(self, size: int) -> Engine:
        receiver = self.cluster.start_receiver(f"tp-{size}-{len(self.engines)}")
        engine = Engine(self, receiver, size)
        engine.attach()
        self.engines.append(engine)
        return engine

    def tokens(self) -> set[Optional[str]]:
        grants = [rank.grant for engine in self.engines for rank in engine.ranks]
        return {None if grant is None else grant.state_token for grant in grants}

    def check(self) -> None:
        """Every engine comes to the newest version, has its bits, and reports the same token."""
        for engine in self.engines:
            for rank, of_rank in enumerate(engine.ranks):
                self.await_version(of_rank, self.version)
                wanted = {
                    name: np.ascontiguousarray(self.weights[name][engine.index(name, rank)])
                    for name in TENSORS
                }
                self.assert_same_weights(of_rank, engine.live[rank], wanted)
        eventually(lambda: len(self.tokens()) <= 1, lambda: f"one token: {self.tokens()}")

    def any_order(self) -> random.Random:
        seed = int(os.environ.get("DWS_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
        print("DWS_SEED", seed, flush=True)
        return random.Random(seed)

    def test_engines_of_any_size_join_in_any_order(self) -> None:
        order = [1, 2, 3, 8]
        self.any_order().shuffle(order)
        self.register()
        self.publish()
        for size in order:
            before = [engine.full_bytes() for engine in self.engines]
            self.join(size)
            self.check()
            for _ in range(2):
                self.publish()
                self.check()
            # Those that were there stay attached, and go on with deltas.
            after = [engine.full_bytes() for engine in self.engines[: len(before)]]
            self.assertEqual(after, before)
        self.assertEqual([engine.reattachments for engine in self.engines], [0, 0, 0, 0])

    def test_engines_join_while_daemons_are_killed(self) -> None:
        order = self.any_order()
        self.register()
        self.publish()
        sizes = [1, 2, 3, 8]
        order.shuffle(sizes)
        while sizes:
            step = order.choice(["join", "join", "publish", "kill sender", "kill receiver"])
            if step == "join":
                self.join(sizes.pop())
            elif step == "kill sender":
                rank = order.randrange(2)
                self.cluster.senders[rank].kill()
                self.cluster.senders[rank].start()
                self.trainers[rank].reconnect()
            elif step == "kill receiver" and self.engines:
                receiver = order.choice(self.engines).receiver
                receiver.kill()
                receiver.start()
            if step == "publish" or order.random() < 0.5:
                self.publish()
            if order.random() < 0.3:
                self.settle()
        self.settle()

    def settle(self) -> None:
        """The newest version may have been lost with a sender."""
        self.publish()
        self.check()

    def test_a_ring_is_filled_by_the_finer_slices(self) -> None:
        self.register(ring=True)
        self.publish()
        for size in (3, 2):
            self.join(size)
            self.publish()
            self.check()

    def test_an_engine_joins_before_the_first_version(self) -> None:
        self.register()
        self.join(2)
        self.publish()
        self.check()

    def test_a_trainer_that_registers_again_keeps_the_finer_slices(self) -> None:
        self.register()
        self.publish()
        self.join(2)
        self.check()
        for trainer in self.trainers:
            trainer.reconnect()
        self.publish()
        self.check()
        self.assertEqual(self.engines[0].reattachments, 0)

    def test_senders_that_start_again_cut_as_before(self) -> None:
        self.register()
        self.publish()
        for size in (3, 2):
            self.join(size)
        self.check()
        for ranks in ((0,), (0, 1)):
            for rank in ranks:
                self.cluster.senders[rank].kill()
                self.cluster.senders[rank].start()
                self.trainers[rank].reconnect()
            self.publish()
            self.check()
        self.assertEqual([engine.reattachments for engine in self.engines], [0, 0])

    def test_a_sender_that_starts_again_takes_no_cuts_back(self) -> None:
        self.register()
        self.publish()
        for size in (1, 2):
            self.join(size)
        self.check()
        self.publish()
        self.check()
        asked = [engine.receiver.logged("cuts_asked_for") for engine in self.engines]
        self.assertGreater(asked[1], 0)  # it had to ask, the first time
        for rank, sender in enumerate(self.cluster.senders):
            sender.kill()
            sender.start()
            self.trainers[rank].reconnect()
        # Nothing is published after that: the engines keep the version that they have.
        for engine in self.engines:
            receiver = engine.receiver
            eventually(
                lambda: receiver.metric("dws_receiver_senders", 'state="connected"') == 2,
                receiver.log_tail,
            )
            self.assertEqual(receiver.readyz()[0], 200)
        self.check()
        # With cuts taken back they would have to ask before they get the next version.
        self.publish()
        self.check()
        again = [engine.receiver.logged("cuts_asked_for") for engine in self.engines]
        self.assertEqual(again, asked)
        self.assertEqual([engine.reattachments for engine in self.engines], [0, 0])

    def test_what_one_rank_cannot_cut_is_cut_by_none(self) -> None:
        # Rank 0 has one expert, whose columns could be cut; rank 1 has more, whose could not.
        self.start(ranks=2, receivers=0)
        stream = dws.Stream.new()
        self.trainers = [self.trainer(rank, 2, stream) for rank in range(2)]
        weights = {"experts": self.weights["experts"]}
        cuts = {"experts": [dws.Cut((1,)), dws.Cut((24,), 1)]}
        views = [
            trainer.register(weights, shards={"experts": [(rank, 1), (0, 2)]}, cuts=cuts)
            for rank, trainer in enumerate(self.trainers)
        ]
        receivers = [self.cluster.start_receiver(name) for name in ("rows", "columns")]
        rows = self.engine(receivers[0])
        live = rows.attach({"experts": np.zeros(TENSORS["experts"][0], np.float32)})
        columns = self.engine(receivers[1], 0, 2)
        for version in (1, 2):
            for trainer in self.trainers:
                trainer.publish(version)
            self.await_version(rows, version)
            with self.assertRaisesRegex(dws.InvalidArgumentError, "'experts'.*one stride"):
                columns.attach(
                    {"experts": np.zeros((3, 48, 35), np.float32)},
                    {"experts": dws.Slice("experts", 2, 0, 35)},
                    timeout=20,
                )
        self.assertEqual(len(views), 2)
        self.assert_same_weights(rows, live, weights)
        self.assertEqual(rows.stats().reattachments, 0)
        self.assertEqual(receivers[0].readyz()[0], 200)

    def test_an_engine_that_would_lock_others_out_is_refused(self) -> None:
        # Each rank could cut its rows of all experts by columns; the whole stack could not be held.
        self.start(ranks=2, receivers=0)
        stream = dws.Stream.new()
        self.trainers = [self.trainer(rank, 2, stream) for rank in range(2)]
        stack = self.random.standard_normal((4, 16, 24), np.float32)
        for rank, trainer in enumerate(self.trainers):
            trainer.register(
                {"experts": stack},
                shards={"experts": (rank, 1)},
                cuts={"experts": dws.Cut((8,), 1)},
            )
        receivers = [self.cluster.start_receiver(name) for name in ("whole", "ep", "tp", "late")]
        whole = self.engine(receivers[0])
        whole.attach({"experts": np.zeros_like(stack)})
        halves = [self.engine(receivers[1], rank, 2) for rank in range(2)]
        for rank, half in enumerate(halves):
            half.attach(
                {"experts": np.zeros((2, 16, 24), np.float32)},
                {"experts": dws.Slice("experts", 0, 2 * rank, 2 * rank + 2)},
            )
        columns = self.engine(receivers[2], 0, 2)
        for version in (1, 2):
            for trainer in self.trainers:
                trainer.publish(version)
            for engine in (whole, *halves):
                self.await_version(engine, version)
            with self.assertRaisesRegex(dws.InvalidArgumentError, "'experts'.*one stride"):
                columns.attach(
                    {"experts": np.zeros((4, 16, 12), np.float32)},
                    {"experts": dws.Slice("experts", 2, 0, 12)},
                    timeout=20,
                )
        late = self.engine(receivers[3])
        live = late.attach({"experts": np.zeros_like(stack)})
        self.await_version(late, 2)
        self.assert_same_weights(late, live, {"experts": stack})
        self.assertEqual([receiver.readyz()[0] for receiver in receivers[:2]], [200, 200])
        self.assertEqual([e.stats().reattachments for e in (whole, *halves)], [0, 0, 0])

    def test_each_engine_is_paused_once_although_each_rank_cuts_tensors_of_its_own(self) -> None:
        self.start(ranks=4, receivers=0)
        stream = dws.Stream.new()
        trainers = [self.trainer(rank, 4, stream) for rank in range(4)]
        weights = {f"w{rank}": self.random.standard_normal((48, 7), np.float32) for rank in range(4)}
        for rank, trainer in enumerate(trainers):
            trainer.register({f"w{rank}": weights[f"w{rank}"]})
            trainer.publish(1)
        whole = self.engine(self.cluster.start_receiver("whole"))
        live = whole.attach({name: np.zeros((48, 7), np.float32) for name in weights})
        self.await_version(whole, 1)
        halves = [
            self.engine(self.cluster.start_receiver("halves"), 0, 2),
            self.engine(self.cluster.receivers[1], 1, 2),
        ]
        for rank, engine in enumerate(halves):
            engine.attach(
                {name: np.zeros((24, 7), np.float32) for name in weights},
                {name: dws.Slice(name, 0, 24 * rank, 24 * rank + 24) for name in weights},
            )
        self.await_version(halves[0], 1)
        eventually(lambda: whole.stats().lease.grants == 2, lambda: f"{whole.stats()}")
        time.sleep(0.5)
        self.assertEqual(whole.stats().lease.grants, 2)
        self.assert_same_weights(whole, live, weights)

    def test_a_sender_killed_while_it_refines_is_asked_again(self) -> None:
        self.use_failpoints("SENDER")
        os.environ["DWS_FAILPOINT"] = "sender.refine.after_record:kill"
        self.register()
        self.publish()
        joining = threading.Thread(target=self.join, args=(2,))
        joining.start()
        del os.environ["DWS_FAILPOINT"]
        for rank, sender in enumerate(self.cluster.senders):
            assert sender.process is not None
            self.assertEqual(sender.process.wait(60), -9)
            sender.start()
            self.trainers[rank].reconnect()
        joining.join()
        self.publish()
        self.check()

    def test_a_receiver_that_starts_again_attaches_its_engine_by_the_finer_slices(self) -> None:
        self.register()
        self.publish()
        self.join(3)
        self.join(2)
        self.check()
        self.cluster.receivers[0].kill()
        self.cluster.receivers[0].start()
        self.publish()
        self.check()

    def test_an_engine_that_no_cut_can_serve_is_refused(self) -> None:
        self.register()
        self.publish()
        receiver = self.cluster.start_receiver("receiver")
        engine = self.engine(receiver)
        with self.assertRaisesRegex(dws.InvalidArgumentError, "I16.*'q'"):
            engine.attach(
                {"q": np.zeros((60, 300), np.int16)}, {"q": dws.Slice("q", 0, 0, 60)}
            )
        self.assertEqual(receiver.logged("cuts_asked_for"), 0)  # in vain
        Engine(self, receiver, 8).attach()
        self.assertGreater(receiver.logged("cuts_asked_for"), 0)


if __name__ == "__main__":
    unittest.main()
