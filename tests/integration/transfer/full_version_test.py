"""Versions that are published in full: resident and from a ring, to every kind of receiver, and with a
sender or a trainer that dies in the middle of one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.fault_proxy import FaultProxy
from tests.integration.group_case import GroupCase
from tests.integration.integration_case import IntegrationCase, change, eventually

# The tensors of one rank. "a" is more than an announcement can carry.
SHAPES: dict[str, tuple[int, ...]] = {"a": (900, 700), "b": (33,), "c": (7, 5, 3)}

# A trainer that opens a full version of a ring, puts one tensor of it, says so, and then hangs.
HANGING_TRAINER = """
import sys, time
import numpy as np
import dws
trainer = dws.Trainer(sys.argv[1], "test", 0, 1, dws.Stream.parse(sys.argv[2]))
specs = [dws.TensorSpec("a", np.float32, (900, 700)), dws.TensorSpec("b", np.float32, (33,)),
         dws.TensorSpec("c", np.float32, (7, 5, 3))]
trainer.register_ring(specs)
with trainer.version(trainer.last_version + 1, full=True) as version:
    version.put("a", np.full((900, 700), 77, np.float32))
    version.drain()
    print("put", flush=True)
    time.sleep(600)
"""


class FullVersionCase(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(29)
        self.version = 0
        self.engines: list[tuple[dws.Engine, Any]] = []

    def register(self, ring: bool = False) -> None:
        weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.ring = ring
        self.dws_trainer = self.trainer()
        if ring:
            specs = [dws.TensorSpec(n, np.float32, s) for n, s in SHAPES.items()]
            self.dws_trainer.register_ring(specs)
            self.source = weights
        else:
            self.source = self.dws_trainer.register(weights)

    def publish(self, full: bool, share: float = 0.01) -> dws.PublishStats:
        self.version += 1
        for array in self.source.values():
            if full:
                array[...] = self.random.standard_normal(array.shape, np.float32)
            else:
                change(array, self.random, share)
        if not self.ring:
            return self.dws_trainer.publish(self.version, full=full)
        with self.dws_trainer.version(self.version, full=full) as version:
            for name, array in self.source.items():
                version.put(name, array)
        stats: dws.PublishStats = version.stats
        return stats

    def join(self, receiver: Daemon) -> None:
        engine = self.engine(receiver)
        live = engine.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
        self.engines.append((engine, live))

    def check(self) -> None:
        for engine, live in self.engines:
            grant = self.await_version(engine, self.version)
            self.assert_same_weights(engine, live, self.source)
            self.assert_token(grant, [self.dws_trainer], [self.source])

    def fetched(self, receiver: Daemon, kind: str) -> float:
        return receiver.metric("dws_receiver_fetched_bytes_total", f'kind="{kind}"')


class FullByTimeTest(IntegrationCase):
    """Deltas over fast links that take the time of full versions; half of the elements, by one step."""

    def follow(self, *flags: str) -> list[bool]:
        self.cluster.start_sender(0, "--profile=direct", *flags)
        self.cluster.start_receiver("engine")
        random = np.random.default_rng(30)
        bits = random.integers(0, 1 << 15, 9 << 20).astype(np.uint16)
        trainer = self.trainer()
        source = trainer.register({"w": bits.view(np.float16)})
        trainer.publish(1)
        engine = self.engine()
        live = engine.attach({"w": np.zeros(bits.size, np.float16)})
        full = []
        for version in range(2, 8):
            source["w"].view(np.uint16)[:: 2 if version < 6 else 1000] ^= np.uint16(1)
            full.append(trainer.publish(version).full)
            self.await_version(engine, version)
            self.assert_same_weights(engine, live, source)
        return full

    def test_full_versions_begin_after_two_such_deltas_and_end_after_a_sparse_version(self) -> None:
        self.assertEqual(self.follow(), [False, False, True, True, True, False])

    def test_never_beside_a_directory_which_would_get_full_tensors_too(self) -> None:
        flag = f"--shared-dir={self.cluster.folder}/shared"
        self.assertEqual(self.follow(flag), [False] * 6)


class FullVersionTest(FullVersionCase):
    def test_resident_versions_in_full_and_as_deltas_reach_engines_that_join_between(self) -> None:
        self.follow_both_kinds(ring=False)

    def test_versions_of_a_ring_in_full_and_as_deltas_reach_engines_that_join_between(self) -> None:
        self.follow_both_kinds(ring=True)

    def follow_both_kinds(self, ring: bool) -> None:
        self.start()
        sender, receiver = self.cluster.senders[0], self.cluster.receivers[0]
        self.register(ring)
        self.assertTrue(self.publish(False).full)  # the first one
        self.join(receiver)
        self.check()
        size = sum(array.nbytes for array in self.source.values())
        for full in (True, False, True, True, False):
            before = self.fetched(receiver, "full")
            stats = self.publish(full)
            self.assertEqual(stats.full, full)
            self.assertEqual(stats.changed_elements == 0, full)
            self.assertEqual(stats.total_elements, size // 4)
            result = self.dws_trainer.wait(self.version)
            self.assertEqual(result.wire_bytes == size, full)
            self.check()
            taken = self.fetched(receiver, "full") - before
            self.assertGreaterEqual(taken, size if full else 0)
            self.assertLess(taken, size * 1.1 if full else 1)
            if len(self.engines) < 3:
                self.join(self.cluster.start_receiver(f"joins-at-{self.version}"))
                self.check()
        causes = {
            cause: sender.metric("dws_sender_full_versions_total", f'cause="{cause}"')
            for cause in ("first", "asked", "dense")
        }
        self.assertEqual(causes, {"first": 1, "asked": 3, "dense": 0})
        log = receiver.log_tail(1000)
        early = receiver.metric("dws_receiver_early_versions_total", 'outcome="staged"')
        self.assertEqual(log.count("has full tensors only") + early, 3)
        self.assertEqual(receiver.logged("delta_rejected"), 0)
        # Nothing looks like trouble, but that the receiver has waited for its engine.
        trouble = [line for line in log.splitlines() if line.split()[1] in "WE"]
        self.assertEqual([line for line in trouble if " readiness " not in line], [])

    def test_a_full_version_of_a_ring_without_a_tensor_is_refused_by_name(self) -> None:
        self.start()
        self.register(ring=True)
        self.publish(False)
        self.join(self.cluster.receivers[0])
        self.check()
        with self.assertRaisesRegex(dws.StateError, "lacks tensor 'b'"):
            with self.dws_trainer.version(2, full=True) as version:
                version.put("a", np.ones(SHAPES["a"], np.float32))
        # It was given up in the middle, so the next one has to be whole.
        with self.assertRaisesRegex(dws.StateError, "given up and lacks tensor 'b'"):
            with self.dws_trainer.version(2) as version:
                version.put("a", np.ones(SHAPES["a"], np.float32))
        for full in (False, False, True):
            self.publish(full)
            self.check()

    def test_weights_that_change_everywhere_become_full_versions_by_themselves(self) -> None:
        for ring in (False, True):
            with self.subTest(ring=ring):
                self.dense_versions(ring)

    def dense_versions(self, ring: bool) -> None:
        name = f"dense-{ring}"
        sender = self.cluster.start_sender(0, name=name)
        flags = (f"--sender={sender.address}",)
        receiver = self.cluster.start_receiver(f"r-{name}", *flags, senders=False)
        trainer = dws.Trainer(sender.socket, "test")
        self.addCleanup(trainer.close)
        shape = (5 << 20,)  # 20 MiB
        weights = {"w": np.zeros(shape, np.float32)}
        if ring:
            trainer.register_ring([dws.TensorSpec("w", np.float32, shape)])
        else:
            weights = trainer.register(weights)
        full = []
        live: Any = None
        for version in range(1, 9):
            if version < 6:
                weights["w"].view(np.uint32)[:] = self.random.integers(0, 1 << 32, shape, np.uint32)
            else:
                change(weights["w"], self.random, 0.001)
            if ring:
                with trainer.version(version) as writer:
                    if version < 8:
                        writer.put("w", weights["w"])
                stats = writer.stats
            else:
                stats = trainer.publish(version)
            full.append(stats.full)
            if live is None:
                engine = self.engine(receiver)
                live = engine.attach({"w": np.zeros(shape, np.float32)})
            self.await_version(engine, version)
            if version == 8 and ring:
                break
            self.assert_same_weights(engine, live, weights)
        # The first; 2 and 3 are dense deltas; 6 is full still, and changes so little that 7 is not.
        self.assertEqual(full, [True, False, False, True, True, True, False, False])
        self.assertEqual(sender.metric("dws_sender_full_versions_total", 'cause="dense"'), 3)

    def test_a_shared_directory_has_full_versions_as_full_tensors(self) -> None:
        root = os.path.join(self.cluster.folder, "shared")
        sender = self.cluster.start_sender(0, f"--shared-dir={root}")
        flags = (f"--shared-dir={root}", "--shared-poll-ms=20")
        receiver = self.cluster.start_receiver("receiver-0", *flags, senders=False)
        self.register()
        self.publish(False)
        self.join(receiver)
        self.check()
        for full in (True, False, True, True, False):
            self.publish(full)
            self.assertEqual(self.dws_trainer.wait(self.version).committed, ("receiver-0",))
            self.check()
        self.assertEqual(sender.logged("shared_chain_broken"), 0)
        self.assertEqual(sender.logged("shared_publish_failed"), 0)
        # Faster than they are written.
        for full in (True, True, False, True, True, True):
            self.publish(full)
        self.check()

    def test_a_sender_that_is_killed_in_a_full_version_starts_again(self) -> None:
        self.start()
        sender = self.cluster.senders[0]
        self.register(ring=True)
        self.publish(False)
        self.join(self.cluster.receivers[0])
        self.check()
        with self.assertRaises(dws.DwsError):
            with self.dws_trainer.version(2, full=True) as version:
                version.put("a", np.full(SHAPES["a"], 77, np.float32))
                sender.kill()
                version.put("b", np.full(SHAPES["b"], 77, np.float32))
        sender.start()
        self.dws_trainer.reconnect()
        engine, live = self.engines[0]
        self.assertEqual(engine.grant.version, 1)
        self.assert_same_weights(engine, live, self.source)
        for full in (True, False):
            self.publish(full)
            self.check()

    def test_a_trainer_that_is_killed_in_a_full_version_is_followed_by_another(self) -> None:
        self.start()
        self.register(ring=True)
        self.publish(False)
        self.publish(False)
        self.join(self.cluster.receivers[0])
        self.check()
        stream = self.dws_trainer.stream
        self.dws_trainer.close()
        socket = self.cluster.senders[0].socket
        command = [sys.executable, "-c", HANGING_TRAINER, socket, str(stream)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.addCleanup(victim.wait)
        self.addCleanup(victim.kill)
        assert victim.stdout is not None
        self.addCleanup(victim.stdout.close)
        self.assertEqual(victim.stdout.readline(), "put\n")
        victim.kill()
        # An engine that joins now finds no weights; the one that is there keeps its own.
        late = self.cluster.start_receiver("late")
        engine = self.engine(late)
        attached: list[Any] = []
        shapes = {n: np.zeros(s, np.float32) for n, s in SHAPES.items()}
        thread = threading.Thread(target=lambda: attached.append(engine.attach(shapes)))
        thread.start()
        eventually(
            lambda: "was given up" in late.log_tail(200), lambda: f"a refusal: {late.log_tail(50)}"
        )
        self.assertEqual(self.engines[0][0].grant.version, 2)
        self.assert_same_weights(*self.engines[0], self.source)

        self.dws_trainer = self.trainer(stream=stream)
        specs = [dws.TensorSpec(n, np.float32, s) for n, s in SHAPES.items()]
        self.dws_trainer.register_ring(specs)
        self.assertEqual(self.dws_trainer.last_version, 2)
        self.assertTrue(self.publish(False).full)
        thread.join()
        self.engines.append((engine, attached[0]))
        self.check()
        self.assertFalse(self.publish(False).full)
        self.check()


class SlowReaderTest(FullVersionCase):
    def test_an_engine_on_a_slow_link_gets_full_versions_while_newer_ones_come(self) -> None:
        sender = self.cluster.start_sender(0, "--insecure")
        proxy = FaultProxy(sender.ports["sync"])
        self.addCleanup(proxy.__exit__)
        flags = ("--insecure", f"--sender=127.0.0.1:{proxy.port}")
        receiver = self.cluster.start_receiver("slow", *flags, senders=False)
        shape = (4 << 20,)  # 16 MiB: a transfer takes several reads of the snapshot
        trainer = self.trainer()
        source = trainer.register({"w": np.zeros(shape, np.float32)})
        trainer.publish(1)
        engine = self.engine(receiver)
        live = engine.attach({"w": np.zeros(shape, np.float32)})
        self.await_version(engine, 1)
        proxy.limit(16 << 20)  # a second for each transfer
        published: dict[int, int] = {1: 0}
        over = threading.Event()

        def publish() -> None:
            version = 1
            while not over.is_set():
                version += 1
                published[version] = version * 7
                source["w"].view(np.uint32)[:] = published[version]
                trainer.publish(version, full=True)
                over.wait(0.05)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            seen: set[int] = set()

            def progress() -> bool:
                with engine.running(60) as grant:
                    if grant.version not in seen:
                        found = set(np.unique(live["w"].view(np.uint32)).tolist())
                        self.assertEqual(found, {published[grant.version]})
                        seen.add(grant.version)
                return len(seen) >= 5

            eventually(progress, lambda: f"5 versions, not {seen}\n{receiver.log_tail(50)}")
        finally:
            over.set()
            thread.join()
        self.assertGreater(max(published), max(seen))  # newer ones came meanwhile
        proxy.limit(None)
        self.await_version(engine, max(published))


class FullVersionGroupTest(GroupCase):
    def test_an_engine_over_two_hosts_changes_to_full_versions_together(self) -> None:
        self.begin(2)
        self.await_group(self.publish())
        for full in (True, False, True, True, False):
            self.version += 1
            for array in self.source.values():
                change(array, self.random, 0.9 if full else 0.05)
            self.published[self.version] = {n: array.copy() for n, array in self.source.items()}
            stats = self.dws_trainer.publish(self.version, full=full)
            self.assertEqual(stats.full, full)
            self.await_group(self.version)


if __name__ == "__main__":
    unittest.main()
