"""kill -9 of either daemon while a version comes, by each source of bytes, and of the receiver at every point of
its way to a commit: an engine never runs with a mixture, and comes to the newest version afterwards."""

from __future__ import annotations

import ctypes
import os
import signal
import unittest
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually

SHAPES = {"a": (900, 700), "b": (33,), "c": (7, 5, 3)}
OVER_TCP = ("--insecure", "--fabric=tcp")


class Source(NamedTuple):
    """A source, its flags ("{}" is a folder of the test), and what of the weights changes in each version."""

    name: str
    contents: tuple[str, ...] = ("delta", "full")
    sender: tuple[str, ...] = ()
    receiver: tuple[str, ...] = ()
    share: float = 0.3  # more than an announcement can carry
    connected: bool = True
    library: str = ""  # it needs that


# Deltas over the connection, full tensors from the sender's memory.
DEFAULT = Source("grpc")
SOURCES = {
    "inline": Source("inline", ("delta",), share=0.01),
    "broadcast": Source("broadcast", ("delta",), ("--nccl=auto", "--gpu=0", "--nccl-timeout=5"), ("--nccl=auto", "--gpu=0")),
    "host_share": Source("host-share", ("delta",), receiver=("--host-share={}",)),
    "shared_dir": Source("shared-dir", sender=("--shared-dir={}",), receiver=("--shared-dir={}", "--shared-poll-ms=20")),
    "same_host": Source("same-host", ("full",)),
    "fabric": Source("fabric", ("full",), OVER_TCP, (*OVER_TCP, "--full-way=fabric"), library="libfabric.so.1"),
    "grpc": Source("grpc", receiver=("--full-way=grpc",)),
}
SOURCES["shared_dir_alone"] = SOURCES["shared_dir"]._replace(connected=False)
# In the middle of the bytes, and when all have come. Full tensors are written where they belong as they come.
STEPS = {
    "delta": ("receiver.fetch.after_bytes", "receiver.prepare.after_fetch"),
    "full": ("receiver.commit.inside_apply@2", "receiver.prepare.after_fetch_full"),
}


class KillTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(5)
        self.version = 0
        self.published: dict[int, dict[str, Any]] = {}
        self.use_failpoints("RECEIVER")
        self.held = os.path.join(self.cluster.folder, "held")
        libraries = (os.path.abspath(f"tests/fakes/{name}/lib") for name in ("nccl", "cuda"))
        self.enterContext(
            mock.patch.dict(
                os.environ,
                LD_LIBRARY_PATH=":".join(libraries),
                DWS_FAKE_CUDA_DEVICES="1",
                DWS_FAILPOINT_HOLD=self.held,
            )
        )

    def begin(self, failpoint: str, action: str = "kill", source: Source = DEFAULT) -> None:
        """Starts a trainer, and an engine whose receiver does `action` at `failpoint`; a name may end in @ and a number."""
        self.source = source
        folder = os.path.join(self.cluster.folder, "of-source")
        with self.named_host():
            self.sender = self.cluster.start_sender(0, *(flag.format(folder) for flag in source.sender))
        flags = [flag.format(folder) for flag in source.receiver]
        name, _, at = failpoint.partition("@")
        with self.named_host(), mock.patch.dict(os.environ, DWS_FAILPOINT=f"{name}:{action}@{at or 1}"):
            self.receiver = self.cluster.start_receiver("receiver-0", *flags, senders=source.connected)
        self.dws_trainer = self.trainer()
        weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.weights = self.dws_trainer.register(weights)
        if not source.connected:
            self.publish()  # the receiver learns the layout from it
        self.dws_engine, self.live = self.attached(self.receiver)
        if source.name == "host-share":
            self.other, _ = self.attached(self.cluster.start_receiver("receiver-1", *flags))

    def named_host(self) -> Any:
        """The next daemon is on a host of its own, for broadcasts."""
        return mock.patch.dict(os.environ, NCCL_HOSTID=f"host-{self.random.integers(1 << 62)}")

    def attached(self, receiver: Daemon) -> tuple[dws.Engine, Any]:
        engine = self.engine(receiver)
        return engine, engine.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})

    def publish(self) -> None:
        """Publishes the next version so that the receiver gets it by the source."""
        joined = ("dws_sender_broadcast_receivers", 'state="joined"')
        if self.source.name == "broadcast":
            eventually(lambda: self.sender.metric(*joined) == 1, self.sender.log_tail)
        self.version += 1
        for array in self.weights.values():
            change(array, self.random, self.source.share)
        self.published[self.version] = {n: array.copy() for n, array in self.weights.items()}
        # The other receiver of the host fetches.
        process = self.receiver.process
        apart = self.source.name == "host-share" and self.version > 1 and process is not None
        if apart:
            process.send_signal(signal.SIGSTOP)
        self.dws_trainer.publish(self.version)
        if apart:
            self.await_version(self.other, self.version)
            process.send_signal(signal.SIGCONT)

    def reach(self) -> None:
        """Checks that the engine comes to the newest version."""
        self.await_version(self.dws_engine, self.version)
        self.assert_same_weights(self.dws_engine, self.live, self.weights)

    def await_death(self) -> None:
        process = self.receiver.process
        assert process is not None
        self.assertEqual(process.wait(60), -9)
        eventually(lambda: not self.dws_engine.stats().connected, lambda: "the engine sees it")

    def check_untorn(self) -> None:
        """Checks that the engine does not run, or has exactly the version that it runs with."""
        if self.dws_engine.grant is None:
            return
        with self.dws_engine.running(60) as grant:
            for name, tensor in self.published[grant.version].items():
                self.assertTrue(np.array_equal(self.live[name].view(np.uint32), tensor.view(np.uint32)), name)

    def restart_receiver(self) -> None:
        with self.named_host():
            self.receiver.start()

    def recover(self) -> None:
        """Checks that the next receiver finishes the version and that later versions arrive."""
        self.restart_receiver()
        self.reach()
        self.publish()
        self.dws_trainer.wait(self.version, timeout=60)
        self.reach()

    def begin_content(self, content: str, failpoint: str, action: str, source: Source) -> None:
        """Publishes a version whose delta or full tensors meet the failpoint."""
        if source.library:
            try:
                ctypes.CDLL(source.library)
            except OSError:
                self.skipTest(f"{source.library} is not installed")
        self.begin(failpoint, action, source)
        if source.connected:
            self.publish()
        if content == "delta":
            self.reach()
            self.publish()

    def assert_came(self, content: str) -> None:
        """Checks that the receiver, or one before it, got some by the source."""
        if content == "full":  # the next receiver may find all that was written before the kill
            log = self.receiver.log_tail(10_000)
            return self.assertRegex(log, f" full_source .*source='{self.source.name}' ")
        labels = f'content="delta",source="{self.source.name}"'
        self.assertGreater(self.receiver.metric("dws_receiver_source_bytes_total", labels), 0)

    def check_receiver(self, source: Source, content: str, failpoint: str) -> None:
        self.begin_content(content, failpoint, "kill", source)
        self.await_death()
        self.assertEqual(self.dws_engine.grant is None, content == "full")
        self.check_untorn()
        self.recover()
        self.assert_came(content)

    def check_sender(self, source: Source, content: str, failpoint: str) -> None:
        self.begin_content(content, failpoint, "hold", source)
        eventually(lambda: os.path.exists(self.held), self.receiver.log_tail)
        self.sender.kill()
        self.check_untorn()
        os.unlink(self.held)
        with self.named_host():
            self.sender.start()
        self.dws_trainer.reconnect()
        self.check_untorn()
        for _ in range(2):
            self.publish()
            self.reach()
        self.assert_came(content)

    def check_first_contact(self, point: str) -> None:
        self.begin(point)
        self.publish()
        self.await_death()
        self.assertIsNone(self.dws_engine.grant)
        self.recover()

    def test_a_receiver_killed_after_staging_recovers(self) -> None:
        self.check_first_contact("receiver.commit.after_staged")

    def test_a_receiver_killed_after_recording_the_intent_recovers(self) -> None:
        self.check_first_contact("receiver.commit.after_intent")

    def test_a_receiver_killed_in_the_pause_recovers(self) -> None:
        self.check_first_contact("receiver.commit.after_pause")

    def test_a_receiver_killed_after_the_writes_recovers(self) -> None:
        self.check_first_contact("receiver.commit.after_scatter")

    def test_a_receiver_killed_between_resume_and_record_recovers(self) -> None:
        self.begin("receiver.commit.after_resume")
        self.publish()
        self.await_death()
        # The release may still be in transfer when the receiver dies.
        self.check_untorn()
        self.recover()

    def test_a_receiver_killed_while_writing_a_delta_recovers(self) -> None:
        self.begin_content("delta", "receiver.commit.inside_scatter", "kill", DEFAULT)
        self.await_death()
        self.assertIsNone(self.dws_engine.grant)
        self.recover()


def _add(name: str, source: Source, content: str) -> None:
    def sender(self: KillTest) -> None:
        self.check_sender(source, content, STEPS[content][0])

    what = {"delta": "a_delta_comes", "full": "full_tensors_come"}[content]
    setattr(KillTest, f"test_a_sender_killed_while_{what}_by_{name}_recovers", sender)
    for when, step in zip(("while", "after"), STEPS[content]):

        def receiver(self: KillTest, step: str = step) -> None:
            self.check_receiver(source, content, step)

        setattr(KillTest, f"test_a_receiver_killed_{when}_{what}_by_{name}_recovers", receiver)


for _name, _source in SOURCES.items():
    for _content in _source.contents:
        _add(_name, _source, _content)


if __name__ == "__main__":
    unittest.main()
