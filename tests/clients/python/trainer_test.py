"""dws.Trainer against a stand-in for the sender."""

import contextlib
import os
import select
import socket
import tempfile
import threading
import time
import unittest
from typing import Any
from unittest import mock

import grpc
import numpy as np
import torch

import dws
from dws._proto import trainer_pb2
from tests.clients.python.fake_daemons import FakeSender

SHORT_SECONDS = 0.3


def _hang_up_on_all(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was closed
        while True:
            listener.accept()[0].close()


class _WithSender(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.sender = FakeSender(folder.name)
        self.addCleanup(self.sender.stop)

    def trainer(self, **options: Any) -> dws.Trainer:
        trainer = dws.Trainer(self.sender.socket, job_id="job", **options)
        self.addCleanup(trainer.close)
        return trainer


class TrainerTest(_WithSender):
    def test_resident_views_are_the_memory_the_sender_reads(self) -> None:
        trainer = self.trainer()
        views = trainer.register({"b": np.arange(4, dtype=np.float32), "a": np.ones(3, np.uint8)})
        views["b"][2] = 9
        offset = self.sender.register.resident.shards[1].offset_bytes
        seen = np.frombuffer(self.sender.region(), np.float32, 4, offset)
        np.testing.assert_array_equal(seen, [0, 1, 9, 3])
        self.assertEqual([s.tensor.name for s in self.sender.register.layout.shards], ["a", "b"])

    def test_a_registration_that_others_displaced_is_made_again(self) -> None:
        displaced = [bytes(16), bytes(16), self.sender.handles.token()]
        with mock.patch.object(self.sender.handles, "token", lambda: displaced.pop(0)):
            views = self.trainer().register({"a": np.ones(3, np.uint8)})
        self.assertEqual((displaced, views["a"].tolist()), ([], [1, 1, 1]))

    def test_a_registration_that_is_always_displaced_fails(self) -> None:
        with mock.patch.object(self.sender.handles, "token", lambda: bytes(16)):
            with self.assertRaisesRegex(dws.TokenLostError, "the token is unknown"):
                self.trainer().register({"a": np.ones(3, np.uint8)})

    def test_a_module_can_live_in_the_region(self) -> None:
        module = torch.nn.Linear(3, 2).to(torch.bfloat16)
        before = module.weight.detach().clone()
        dws.bind(module, self.trainer().register(module))
        self.assertTrue(torch.equal(module.weight, before))
        with torch.no_grad():
            module.weight.fill_(1)
        offset = self.sender.register.resident.shards[1].offset_bytes
        seen = np.frombuffer(self.sender.region(), np.uint16, 6, offset)
        np.testing.assert_array_equal(seen, [0x3F80] * 6)

    def test_a_rank_registers_only_its_part(self) -> None:
        full = torch.arange(12.0).reshape(2, 6)
        trainer = self.trainer(rank=1, world_size=3, stream=dws.Stream.new(5))
        views = trainer.register(
            {"t": full}, shards={"t": (1, 1)}, cuts={"t": dws.Cut.even(6, 3, dim=1)}
        )
        torch.testing.assert_close(views["t"], full[:, 2:4])
        self.assertEqual(list(self.sender.register.layout.shards[0].tensor.cuts), [2, 4])

    def test_publish_measures_the_stall_and_versions_increase(self) -> None:
        trainer = self.trainer()
        trainer.register({"a": np.zeros(4, np.float32)})
        stats = trainer.publish(3)
        self.assertEqual((stats.changed_elements, stats.total_elements), (3, 10))
        self.assertGreater(stats.stall_seconds, 0)
        with self.assertRaisesRegex(dws.VersionError, "version 3 is not above 3.*use 4 or more"):
            trainer.publish(3)

    def test_wait_translates_policies_and_codes(self) -> None:
        trainer = self.trainer()
        trainer.register({"a": np.zeros(4, np.float32)})
        for policy, number in (("all", 1), (2, 2), ("any", 3)):
            self.assertEqual(trainer.wait(1, policy).wire_bytes, number)
        for policy in ("most", 0):
            with self.assertRaisesRegex(dws.InvalidArgumentError, "'all', 'any' or a number"):
                trainer.wait(1, policy)
        self.sender.wait_code = grpc.StatusCode.ABORTED
        with self.assertRaises(dws.VersionLostError):
            trainer.wait(1)
        self.sender.wait_code = grpc.StatusCode.DEADLINE_EXCEEDED
        with self.assertRaises(dws.DeadlineError):
            trainer.wait(1)
        self.sender.wait_code = grpc.StatusCode.CANCELLED  # the sender is stopped meanwhile
        with self.assertRaisesRegex(dws.DaemonUnavailableError, "ended before it answered"):
            trainer.wait(1)

    def test_an_absent_sender_is_named_with_the_command_to_start_it(self) -> None:
        trainer = dws.Trainer(os.path.join(self.folder, "none.sock"), job_id="job")
        with self.assertRaisesRegex(
            dws.DaemonUnavailableError, "none.sock.*no such socket.*Start it: dws-sender --socket"
        ):
            trainer.register({"a": np.zeros(4, np.float32)})

    def test_a_connection_that_breaks_is_not_called_an_absent_sender(self) -> None:
        path = os.path.join(self.folder, "hangs-up.sock")
        trainer = dws.Trainer(path, job_id="job")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            threading.Thread(target=_hang_up_on_all, args=(listener,), daemon=True).start()
            with self.assertRaisesRegex(
                dws.DaemonUnavailableError, "connection to .*hangs-up.sock broke .*: try again"
            ):
                trainer.register({"a": np.zeros(4, np.float32)})
            listener.shutdown(socket.SHUT_RDWR)
        with self.assertRaisesRegex(dws.DaemonUnavailableError, "no process listens there"):
            trainer.register({"a": np.zeros(4, np.float32)})

    def test_a_restarted_sender_asks_for_reconnect(self) -> None:
        trainer = self.trainer()
        views = trainer.register({"a": np.zeros(4, np.float32)})
        self.sender.stop()
        with self.assertRaisesRegex(dws.RegistrationLostError, "call reconnect"):
            trainer.publish(1)
        self.sender = FakeSender(self.folder)
        self.addCleanup(self.sender.stop)
        trainer.reconnect(timeout=20)
        views["a"][0] = 5
        self.assertEqual(np.frombuffer(self.sender.region(), np.float32)[0], 5)
        trainer.publish(1)

    def test_misuse_is_refused_with_a_remedy(self) -> None:
        trainer = self.trainer()
        with self.assertRaisesRegex(dws.StateError, "register"):
            trainer.publish(1)
        with self.assertRaisesRegex(dws.LayoutError, "cuts= names tensors that are not declared"):
            trainer.register({"a": np.zeros(4, np.float32)}, cuts={"b": [1]})
        with self.assertRaisesRegex(dws.LayoutError, "'a'.*not contiguous"):
            trainer.register({"a": np.zeros((4, 4), np.float32).T})
        trainer.register({"a": np.zeros(4, np.float32)})
        with self.assertRaisesRegex(dws.StateError, "is registered"):
            trainer.register({"a": np.zeros(4, np.float32)})
        with self.assertRaisesRegex(dws.StateError, "register_ring"):
            with trainer.version(1):
                pass
        with self.assertRaisesRegex(dws.InvalidArgumentError, "rank 1 needs stream="):
            dws.Trainer("s", "job", rank=1, world_size=2)


class StalledSenderTest(_WithSender):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.sender.reads.set)
        self.addCleanup(self.sender.answers.set)
        grace = mock.patch("dws.sender_link.SETTLE_GRACE_SECONDS", SHORT_SECONDS)
        self.addCleanup(grace.stop)
        grace.start()

    def test_a_stalled_sender_that_gives_the_version_up_keeps_the_registration(self) -> None:
        trainer = self.trainer()
        trainer.register({"a": np.zeros(4, np.float32)})
        self.sender.reads.clear()
        with self.assertRaisesRegex(dws.DeadlineError, "publishing version 1") as caught:
            trainer.publish(1, timeout=SHORT_SECONDS)
        self.assertNotIsInstance(caught.exception, dws.RegistrationLostError)
        self.assertEqual(self.sender.aborted, [1])
        self.assertTrue(trainer.connected)
        self.sender.reads.set()
        trainer.publish(1)

    def test_a_sender_that_answers_nothing_loses_the_registration_within_publish(self) -> None:
        trainer = self.trainer()
        trainer.register({"a": np.zeros(4, np.float32)})
        connection = self.sender.handles.connections[0]
        self.sender.handles.lets_go = False
        self.sender.answers.clear()
        began = time.monotonic()
        with self.assertRaisesRegex(dws.SenderStalledError, "may be overwritten. Call reconnect"):
            trainer.publish(1, timeout=SHORT_SECONDS)
        self.assertLess(time.monotonic() - began, 10)
        self.assertFalse(trainer.connected)
        # The kernel reports the end to the sender as soon as it polls.
        poller = select.poll()
        poller.register(connection, select.POLLRDHUP)
        self.assertTrue(poller.poll(0))
        for call in (lambda: trainer.publish(1), lambda: trainer.wait(1)):
            with self.assertRaisesRegex(dws.RegistrationLostError, "reconnect"):
                call()
        self.sender.answers.set()
        trainer.reconnect(timeout=20)
        trainer.publish(1)
        self.assertEqual(self.sender.published, [1])

    def test_an_interrupt_also_gives_the_version_up(self) -> None:
        trainer = self.trainer()
        trainer.register({"a": np.zeros(4, np.float32)})
        self.sender.answers.clear()
        with self.assertRaises(KeyboardInterrupt), trainer._link.attempt(1):
            raise KeyboardInterrupt
        self.assertFalse(trainer.connected)

    def test_a_put_without_an_answer_ends_the_version_in_time(self) -> None:
        trainer = self.trainer()
        trainer.register_ring({"a": np.zeros(4, np.float32)}, 1 << 19, 2)
        began = time.monotonic()
        with self.assertRaises(dws.SenderStalledError), trainer.version(1, SHORT_SECONDS) as writer:
            writer.put("a", np.zeros(4, np.float32))
            self.sender.answers.clear()
        self.assertLess(time.monotonic() - began, 10)

    def test_a_wait_that_is_not_met_says_which_receivers_are_missing(self) -> None:
        trainer = self.trainer()
        trainer.register({"a": np.zeros(4, np.float32)})
        self.sender.wait_code = grpc.StatusCode.DEADLINE_EXCEEDED
        self.sender.wait_details = trainer_pb2.WaitReply(
            committed_count=2,
            present_count=3,
            missing=[trainer_pb2.ReceiverBehind(receiver_id="c", behind_seconds=7)],
        ).SerializeToString()
        with self.assertRaises(dws.NotCommittedError) as caught:
            trainer.wait(1)
        error = caught.exception
        self.assertEqual((error.committed_count, error.present), (2, 3))
        self.assertEqual([(r.receiver_id, r.behind_seconds) for r in error.missing], [("c", 7)])
        self.sender.wait_details = b"no message"
        with self.assertRaises(dws.NotCommittedError):
            trainer.wait(1)

    def test_names_in_messages_are_escaped(self) -> None:
        hostile = "a\n\x1b[31m\u202e\x9b\udcff"
        for error in (dws.DwsError(hostile), dws.LayoutError(hostile), dws.EnginePaused(hostile)):
            self.assertIn(r"a\x0a\x1b[31m\u202e\x9b\udcff", str(error))
            self.assertTrue(str(error).isprintable())
        self.assertEqual(str(dws.DwsError("Zürich 中 \\")), "Zürich 中 \\")


class RingTest(_WithSender):
    def ring(self, tensors: Any, bucket_bytes: int = 1 << 19, **options: Any) -> dws.Trainer:
        trainer = self.trainer()
        trainer.register_ring(tensors, bucket_bytes, bucket_count=2, **options)
        return trainer

    def test_tensors_larger_than_a_bucket_arrive_whole_and_in_slice_order(self) -> None:
        random = np.random.default_rng(3)
        tensors = {
            "wide": random.integers(0, 2**32, (700, 1001), np.uint32),
            "small": random.integers(0, 2**16, 11, np.uint16),
            "empty": np.zeros((0, 4), np.float32),
            "cut": random.integers(0, 2**16, (600, 900), np.uint16),
        }
        trainer = self.ring(tensors, cuts={"cut": dws.Cut((100, 450), dim=1)})
        with trainer.version(1) as writer:
            for name, tensor in tensors.items():
                writer.put(name, tensor)
        self.assertEqual(writer.stats.version, 1)
        cut = tensors["cut"]
        wanted = [cut[:, :100], cut[:, 100:450], cut[:, 450:], None, tensors["small"]]
        for number, array in enumerate([*wanted, tensors["wide"]]):
            if array is not None:
                self.assertEqual(self.sender.slices[number].tobytes(), array.tobytes(), number)
        self.assertGreater(len(self.sender.puts), 4)
        self.assertTrue(all(put.bucket < 2 for put in self.sender.puts))

    def test_many_small_tensors_share_a_bucket(self) -> None:
        tensors = {f"t{i:03}": torch.full((5,), float(i)) for i in range(100)}
        trainer = self.ring(tensors)
        with trainer.version(1) as writer:
            for name, tensor in tensors.items():
                writer.put(name, tensor)
        self.assertEqual(len(self.sender.puts), 1)
        self.assertEqual(self.sender.slices[42].view(np.float32)[0], 42)

    def test_a_block_that_raises_gives_the_version_up_and_the_number_stays_free(self) -> None:
        trainer = self.ring({"a": np.zeros(4, np.float32)})
        with self.assertRaisesRegex(RuntimeError, "out of memory"):
            with trainer.version(1) as writer:
                writer.put("a", np.ones(4, np.float32))
                raise RuntimeError("out of memory")
        self.assertEqual(self.sender.aborted, [1])
        with self.assertRaisesRegex(dws.StateError, "closed"):
            writer.put("a", np.ones(4, np.float32))
        with trainer.version(1) as writer:
            writer.put("a", np.ones(4, np.float32))
        self.assertEqual(self.sender.published, [1])

    def test_a_refused_put_gives_the_version_up(self) -> None:
        trainer = self.ring({"a": np.zeros(400_000, np.float32)})
        self.sender.fail_puts = True
        with self.assertRaisesRegex(dws.InvalidArgumentError, "this test refuses puts"):
            with trainer.version(1) as writer:
                writer.put("a", np.zeros(400_000, np.float32))
        self.assertEqual((self.sender.aborted, self.sender.published), ([1], []))

    def test_bad_puts_are_refused(self) -> None:
        trainer = self.ring({"a": np.zeros((2, 2), np.float32)})
        with trainer.version(1) as writer:
            with self.assertRaisesRegex(dws.LayoutError, "shape \\[4\\], expected \\[2, 2\\]"):
                writer.put("a", np.zeros(4, np.float32))
            with self.assertRaisesRegex(dws.LayoutError, "'b' is not part"):
                writer.put("b", np.zeros(4, np.float32))
            with self.assertRaisesRegex(dws.DTypeError, "declared as F32"):
                writer.put("a", np.zeros((2, 2), np.float64))
            writer.put("a", np.zeros((2, 2), np.float32))
            with self.assertRaisesRegex(dws.VersionError, "'a' was already put in version 1"):
                writer.put("a", np.zeros((2, 2), np.float32))
            with self.assertRaisesRegex(dws.StateError, "still open"):
                with trainer.version(2):
                    pass
        with self.assertRaisesRegex(dws.StateError, "with trainer.version"):
            trainer.publish(2)

    def test_buckets_too_small_or_too_many_are_refused(self) -> None:
        with self.assertRaisesRegex(dws.InvalidArgumentError, "at least 524288"):
            self.ring({"a": np.zeros(4, np.float32)}, bucket_bytes=65536)
        with self.assertRaisesRegex(dws.InvalidArgumentError, "expected 1 to 64"):
            self.trainer().register_ring({"a": np.zeros(4, np.float32)}, bucket_count=65)


if __name__ == "__main__":
    unittest.main()
