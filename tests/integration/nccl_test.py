"""Versions by NCCL broadcast: one sender, three receivers and a fake libnccl that moves real bytes between
their processes. A process that dies or stalls delays the others by one deadline and loses no version.

With DWS_TEST_NCCL=device in the environment the libraries are the machine's, and all ranks share one GPU: NCCL
treats each as a separate host and uses the loopback interface.
"""

from __future__ import annotations

import os
import tempfile
import time
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually

# The delta of "a" is larger than an announcement can carry and than the connections' buffers.
SHAPES = {"a": (1500, 700), "b": (33,)}
RECEIVERS = 3
NCCL = ("--nccl=auto", "--gpu=0")
ON_DEVICE = os.environ.get("DWS_TEST_NCCL") == "device"
TIMEOUT = 20.0 if ON_DEVICE else 3.0  # of a broadcast
# How long a commit may take beyond its deadline on a busy machine.
MARGIN = 12.0


class NcclTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.use_failpoints("SENDER", "RECEIVER")
        self.random = np.random.default_rng(11)
        if ON_DEVICE:
            self.set_environment(
                NCCL_P2P_DISABLE="1",
                NCCL_SHM_DISABLE="1",
                NCCL_IB_DISABLE="1",
                NCCL_SOCKET_IFNAME="lo",
            )
            return
        self.set_environment(
            LD_LIBRARY_PATH=":".join(
                os.path.abspath(f"tests/fakes/{name}/lib") for name in ("nccl", "cuda")
            ),
            DWS_FAKE_CUDA_DEVICES="1",
            DWS_FAKE_CUDA_GUARD="1",
        )

    def set_environment(self, **variables: str) -> None:
        """Sets variables for the daemons started from now on, until the test ends."""
        for name, value in variables.items():
            if name in os.environ:
                self.addCleanup(os.environ.__setitem__, name, os.environ[name])
            else:
                self.addCleanup(os.environ.pop, name, None)
            os.environ[name] = value

    def begin(self, armed: str = "", receiver_flags: tuple[str, ...] = NCCL) -> None:
        """Brings all to version 1; the last receiver is armed with a failpoint."""
        self.set_environment(NCCL_HOSTID="sender")
        self.cluster.start_sender(0, *NCCL, f"--nccl-timeout={TIMEOUT}")
        os.environ.pop("DWS_FAILPOINT", None)
        for index in range(RECEIVERS):
            if armed and index == RECEIVERS - 1:
                os.environ["DWS_FAILPOINT"] = armed
            os.environ["NCCL_HOSTID"] = f"receiver-{index}"
            self.cluster.start_receiver(f"receiver-{index}", *receiver_flags)
        os.environ.pop("DWS_FAILPOINT", None)
        self.dws_trainer = self.trainer()
        weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.source = self.dws_trainer.register(weights)
        self.engines = [self.engine(receiver) for receiver in self.cluster.receivers]
        zeros = {n: np.zeros(s, np.float32) for n, s in SHAPES.items()}
        self.live = [
            engine.attach({n: array.copy() for n, array in zeros.items()})
            for engine in self.engines
        ]
        self.version = 0
        self.publish()
        self.await_all(range(RECEIVERS))

    @property
    def sender(self) -> Daemon:
        return self.cluster.senders[0]

    def publish(self) -> float:
        """Publishes the next version; returns the time of that."""
        self.version += 1
        for array in self.source.values():
            change(array, self.random, 0.6)
        self.dws_trainer.publish(self.version)
        return time.monotonic()

    def await_all(self, receivers: Any) -> None:
        """Waits until these engines hold the newest version, bit for bit."""
        for index in receivers:
            self.await_version(self.engines[index], self.version)
            self.assert_same_weights(self.engines[index], self.live[index], self.source)

    def await_members(self, count: int) -> None:
        """Waits for an epoch with `count` receivers."""
        label = 'state="joined"'
        eventually(
            lambda: self.sender.metric("dws_sender_broadcast_receivers", label) == count,
            lambda: f"an epoch of {count} receivers\n{self.cluster.logs(30)}",
        )

    def broadcasts(self, outcome: str) -> float:
        return self.sender.metric("dws_sender_broadcasts_total", f'outcome="{outcome}"')

    def received(self, index: int) -> float:
        receiver = self.cluster.receivers[index]
        return receiver.metric("dws_receiver_broadcasts_total", 'outcome="received"')

    def fetched_deltas(self) -> float:
        """Bytes of deltas that receivers fetched over gRPC."""
        return self.sender.metric("dws_sender_served_bytes_total", 'kind="delta"')

    def test_versions_arrive_by_broadcast_and_nothing_is_fetched(self) -> None:
        self.begin()
        self.await_members(RECEIVERS)
        fetched = self.fetched_deltas()
        for count in (1, 2, 3):
            self.publish()
            self.await_all(range(RECEIVERS))
            self.assertEqual(self.broadcasts("sent"), count)
            for index in range(RECEIVERS):
                self.assertEqual(self.received(index), count)
        self.assertEqual(self.fetched_deltas(), fetched)
        self.assertEqual(self.broadcasts("failed"), 0)
        sent = self.sender.metric("dws_sender_broadcast_bytes_total")
        self.assertGreater(sent, 3 * 200_000)
        for receiver in self.cluster.receivers:
            self.assertEqual(receiver.metric("dws_receiver_broadcast_bytes_total"), sent)
            self.assertEqual(receiver.metric("dws_receiver_broadcast_epochs"), 1)

    def test_a_receiver_of_a_view_fetches_beside_the_broadcasts(self) -> None:
        self.begin()
        self.await_members(RECEIVERS)
        self.set_environment(NCCL_HOSTID="view")
        # Nothing here is BF16, so the view has the trainer's bytes, in a layout of its own.
        follower = self.cluster.start_receiver("view", *NCCL, "--view=fp8-channel/vllm")
        engine = self.engine(follower)
        live = engine.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
        self.await_version(engine, self.version)
        for count in (1, 2):
            fetched = self.fetched_deltas()
            self.publish()
            self.await_all(range(RECEIVERS))
            self.await_version(engine, self.version)
            self.assert_same_weights(engine, live, self.source)
            self.assertEqual(self.broadcasts("sent"), count)
            self.assertGreater(self.fetched_deltas(), fetched)
        self.assertEqual(follower.metric("dws_receiver_broadcasts_total", 'outcome="received"'), 0)
        self.await_members(RECEIVERS)

    def test_a_receiver_killed_in_a_broadcast_delays_the_others_by_one_deadline(self) -> None:
        self.begin(armed="receiver.broadcast.after_begin:kill")
        self.await_members(RECEIVERS)
        published = self.publish()
        self.await_all(range(RECEIVERS - 1))
        self.assertLess(time.monotonic() - published, TIMEOUT + MARGIN)
        dead = self.cluster.receivers[-1]
        assert dead.process is not None
        self.assertEqual(dead.process.wait(60), -9)

        self.await_members(RECEIVERS - 1)
        sent = self.broadcasts("sent")
        self.publish()
        self.await_all(range(RECEIVERS - 1))
        self.assertEqual(self.broadcasts("sent"), sent + 1)

        os.environ["NCCL_HOSTID"] = "receiver-again"
        dead.start()
        self.await_all(range(RECEIVERS))
        self.await_members(RECEIVERS)
        fetched = self.fetched_deltas()
        self.publish()
        self.await_all(range(RECEIVERS))
        self.assertEqual(self.received(RECEIVERS - 1), 1)
        self.assertEqual(self.fetched_deltas(), fetched)

    def test_a_stalled_receiver_delays_one_broadcast_and_joins_again(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            held = os.path.join(folder, "held")
            self.set_environment(DWS_FAILPOINT_HOLD=held)
            self.begin(armed="receiver.broadcast.after_begin:hold")
            self.await_members(RECEIVERS)
            published = self.publish()
            # The stalled one gets it too: its commits do not wait for its broadcasts.
            self.await_all(range(RECEIVERS))
            self.assertLess(time.monotonic() - published, TIMEOUT + MARGIN)
            self.assertTrue(os.path.exists(held))

            # It has not answered, so it is in no epoch and the others do not wait for it again.
            self.await_members(RECEIVERS - 1)
            failed = self.broadcasts("failed")
            self.publish()
            self.await_all(range(RECEIVERS))
            self.assertEqual(self.broadcasts("failed"), failed)
            os.unlink(held)
        self.await_members(RECEIVERS)
        self.publish()
        self.await_all(range(RECEIVERS))
        self.assertEqual(self.received(RECEIVERS - 1), 1)

    def test_a_sender_killed_in_a_broadcast_broadcasts_after_its_restart(self) -> None:
        self.set_environment(DWS_FAILPOINT="sender.broadcast.after_begin:kill")
        self.begin()
        self.await_members(RECEIVERS)
        self.publish()
        assert self.sender.process is not None
        self.assertEqual(self.sender.process.wait(60), -9)
        os.environ["NCCL_HOSTID"] = "sender-again"
        self.sender.start()
        self.dws_trainer.reconnect()
        self.publish()
        self.await_all(range(RECEIVERS))
        self.await_members(RECEIVERS)
        self.publish()
        self.await_all(range(RECEIVERS))
        self.assertEqual(self.broadcasts("sent"), 1)

    @unittest.skipIf(ON_DEVICE, "the library is there")
    def test_without_the_library_versions_are_fetched(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "libnccl.so.2"), "w"):
                pass  # an empty file, not a library
            self.set_environment(LD_LIBRARY_PATH=folder)
            self.begin()
        self.publish()
        self.await_all(range(RECEIVERS))
        for daemon in self.cluster.daemons:
            with open(daemon.log_path) as log:
                text = log.read()
            self.assertIn("broadcasts_off", text)
            self.assertIn("libnccl.so.2 cannot be loaded", text)
        self.assertGreater(self.fetched_deltas(), 0)

    def test_receivers_that_do_not_join_broadcasts_fetch_versions(self) -> None:
        self.begin(receiver_flags=())
        self.publish()
        self.await_all(range(RECEIVERS))
        self.assertEqual(self.sender.metric("dws_sender_broadcast_epoch"), 0)
        self.assertGreater(self.fetched_deltas(), 0)

    @unittest.skipIf(ON_DEVICE, "the library has one version")
    def test_another_version_of_the_library_is_refused_and_named(self) -> None:
        self.cluster.start_sender(0, "--nccl=auto", "--gpu=0")
        self.set_environment(FAKE_NCCL_VERSION="22703")
        self.cluster.start_receiver("receiver-0", "--nccl=auto")

        def refused() -> bool:
            with open(self.sender.log_path) as log:
                text = log.read()
            return "broadcast_refused" in text and "2.27.3" in text

        eventually(refused, lambda: self.sender.log_tail())


if __name__ == "__main__":
    unittest.main()
