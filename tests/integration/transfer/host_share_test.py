"""Receivers of one host share what they fetch: a sender serves each delta once for all of them, also when the
one that fetches is killed."""

from __future__ import annotations

import os
import tempfile
import unittest

import numpy as np

from tests.integration.cluster import Daemon, DaemonFailed
from tests.integration.integration_case import IntegrationCase, change, eventually

# The delta of "a" is larger than an announcement can carry.
SHAPES = {"a": (1500, 700), "b": (33,)}
RECEIVERS = 3


class HostShareTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(17)
        self.folder = os.path.join(self.cluster.folder, "share")
        self.version = 0

    def begin(self, shared: bool = True) -> None:
        """Brings the engines of all receivers to version 1."""
        self.cluster.start_sender(0)
        flags = (f"--host-share={self.folder}",) if shared else ()
        for index in range(RECEIVERS):
            self.cluster.start_receiver(f"receiver-{index}", *flags)
        self.dws_trainer = self.trainer()
        weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.source = self.dws_trainer.register(weights)
        self.engines = [self.engine(receiver) for receiver in self.cluster.receivers]
        self.live = [
            engine.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
            for engine in self.engines
        ]
        self.publish()
        self.await_all()

    def publish(self, share: float = 0.3) -> None:
        self.version += 1
        for array in self.source.values():
            change(array, self.random, share)
        self.dws_trainer.publish(self.version)

    def await_all(self) -> None:
        """Waits until all engines have the newest version, bit for bit."""
        for engine, live in zip(self.engines, self.live):
            self.await_version(engine, self.version)
            self.assert_same_weights(engine, live, self.source)

    def served_bytes(self) -> int:
        """Bytes of deltas that the sender has sent, including those inside announcements."""
        metric = self.cluster.senders[0].metric("dws_sender_served_bytes_total", 'kind="delta"')
        return int(metric)

    def shared_bytes(self, kind: str) -> int:
        return sum(
            int(receiver.metric("dws_receiver_host_share_bytes_total", f'kind="{kind}"'))
            for receiver in self.cluster.receivers
        )

    def fetching(self) -> list[Daemon]:
        """Receivers that hold the lock of an object that is not there yet."""
        locks = {
            os.stat(os.path.join(self.folder, name)).st_ino
            for name in os.listdir(self.folder)
            if name.endswith(".lock")
        }
        with open("/proc/locks") as file:
            fields = [line.split() for line in file]
        holders = {
            int(of[4]) for of in fields if of[1] == "FLOCK" and int(of[5].split(":")[2]) in locks
        }
        receivers = self.cluster.receivers
        return [r for r in receivers if r.process is not None and r.process.pid in holders]

    def test_a_sender_serves_each_delta_once_for_all_receivers_of_a_host(self) -> None:
        self.begin()
        wire_bytes = 0
        for _ in range(5):
            self.publish()
            self.await_all()
            wire_bytes += self.dws_trainer.wait(self.version).wire_bytes
        print(
            f"{RECEIVERS} receivers, 5 versions of {wire_bytes} bytes together: "
            f"{self.served_bytes()} served, {self.shared_bytes('read')} read from the host's share"
        )
        self.assertGreater(wire_bytes, 5 * 200_000)
        self.assertEqual(self.served_bytes(), wire_bytes)
        self.assertEqual(self.shared_bytes("written"), wire_bytes)
        self.assertEqual(self.shared_bytes("read"), (RECEIVERS - 1) * wire_bytes)
        for receiver in self.cluster.receivers:
            self.assertEqual(receiver.metric("dws_receiver_host_share_failures_total"), 0)

    def test_small_deltas_come_with_their_announcements(self) -> None:
        self.begin()
        self.publish(0.001)
        self.await_all()
        wire_bytes = self.dws_trainer.wait(self.version).wire_bytes
        self.assertLess(wire_bytes, 65_536)
        self.assertEqual(os.listdir(self.folder), [])
        self.assertEqual(self.served_bytes(), RECEIVERS * wire_bytes)

    def test_without_a_share_each_receiver_fetches(self) -> None:
        self.begin(shared=False)
        self.publish()
        self.await_all()
        wire_bytes = self.dws_trainer.wait(self.version).wire_bytes
        self.assertEqual(self.served_bytes(), RECEIVERS * wire_bytes)
        self.assertEqual(self.shared_bytes("read") + self.shared_bytes("written"), 0)

    def test_the_next_receiver_fetches_when_the_one_that_does_is_killed(self) -> None:
        self.use_failpoints("SENDER")
        with tempfile.TemporaryDirectory() as folder:
            held = os.path.join(folder, "held")
            os.environ["DWS_FAILPOINT_HOLD"] = held
            self.addCleanup(os.environ.pop, "DWS_FAILPOINT_HOLD", None)
            os.environ["DWS_FAILPOINT"] = "sender.fetch.after_chunk:hold"
            self.begin()
            self.publish()
            eventually(lambda: os.path.exists(held), lambda: "a transfer that is held")
            # The others try the lock for a moment each, and have none while it is held.
            eventually(lambda: len(self.fetching()) == 1, lambda: "one receiver that fetches")
            (killed,) = self.fetching()
            killed.kill()
            os.unlink(held)
        alive = [r for r in self.cluster.receivers if r is not killed]
        for receiver in alive:
            index = self.cluster.receivers.index(receiver)
            self.await_version(self.engines[index], self.version)
            self.assert_same_weights(self.engines[index], self.live[index], self.source)
        read = [
            int(r.metric("dws_receiver_host_share_bytes_total", 'kind="read"')) for r in alive
        ]
        self.assertEqual(sorted(read)[0], 0)
        self.assertGreater(sorted(read)[1], 200_000)
        killed.start()
        self.await_all()
        served = self.served_bytes()
        self.publish()
        self.await_all()
        self.assertEqual(
            self.served_bytes() - served, self.dws_trainer.wait(self.version).wire_bytes
        )

    def test_a_folder_that_others_may_write_to_is_refused(self) -> None:
        self.cluster.start_sender(0)
        os.mkdir(self.folder)
        os.chmod(self.folder, 0o777)
        with self.assertRaisesRegex(DaemonFailed, "mode 0777, expected uid"):
            self.cluster.start_receiver("receiver-0", f"--host-share={self.folder}")


if __name__ == "__main__":
    unittest.main()
