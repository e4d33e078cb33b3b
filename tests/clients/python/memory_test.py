"""Shared regions: seals, read-only descriptors, views; and passing descriptors."""

import fcntl
import mmap
import os
import socket
import tempfile
import threading
import time
import unittest
from unittest import mock

import numpy as np
import torch

import dws
from dws.dtypes import DType
from dws.handles import HandleConnection
from dws.memory import SharedRegion
from tests.clients.python.fake_daemons import HandleSocket


class SharedRegionTest(unittest.TestCase):
    def test_the_size_of_a_region_is_sealed(self) -> None:
        region = SharedRegion("test", 4096)
        seals = fcntl.fcntl(region.descriptor(), fcntl.F_GET_SEALS)
        self.assertEqual(seals & 6, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        for size in (0, 8192):
            with self.assertRaises(OSError):
                os.ftruncate(region.descriptor(), size)

    def test_the_read_only_descriptor_cannot_be_mapped_for_writing(self) -> None:
        region = SharedRegion("test", 4096)
        view = region.view("numpy", DType.F32, (4,), 0)
        view[:] = 7
        descriptor = region.read_only_descriptor()
        try:
            with self.assertRaises(PermissionError):
                mmap.mmap(descriptor, 4096, mmap.MAP_SHARED)
            with mmap.mmap(descriptor, 4096, prot=mmap.PROT_READ) as mapped:
                np.testing.assert_array_equal(np.frombuffer(mapped[:16], np.float32), [7] * 4)
        finally:
            os.close(descriptor)

    def test_torch_and_numpy_views_share_the_bytes(self) -> None:
        region = SharedRegion("test", 4096)
        as_torch = region.view("torch", DType.BF16, (2, 3), 64)
        as_numpy = region.view("numpy", DType.BF16, (2, 3), 64)
        as_torch[1, 2] = -2.0
        self.assertEqual(as_numpy[1, 2], 0xC000)
        self.assertEqual(region.view("torch", DType.BF16, (0, 3), 64).shape, (0, 3))

    def test_a_view_outlives_the_closed_region(self) -> None:
        region = SharedRegion("test", 4096)
        view = region.view("torch", DType.F32, (4,), 0)
        region.close()
        del region
        view.fill_(1)
        self.assertEqual(view.sum().item(), 4)

    def test_views_outside_and_empty_regions_are_refused(self) -> None:
        region = SharedRegion("test", 16)
        with self.assertRaisesRegex(dws.InvalidArgumentError, "outside"):
            region.view("numpy", DType.F32, (5,), 0)
        with self.assertRaises(dws.InvalidArgumentError):
            SharedRegion("test", 0)


class HandleConnectionTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.daemon = HandleSocket(os.path.join(folder.name, "h"), lets_go=False)
        self.addCleanup(self.daemon.close)

    def test_more_descriptors_than_fit_a_message_arrive_in_order(self) -> None:
        regions = [SharedRegion("test", 64 * (i + 1)) for i in range(450)]
        connection = HandleConnection()
        connection.hand_over(
            self.daemon.path, self.daemon.token(), [r.descriptor() for r in regions], 10
        )
        sizes = [os.fstat(fd).st_size for fd in self.daemon.received[0]]
        self.assertEqual(sizes, [region.size_bytes for region in regions])
        self.assertFalse(connection.hung_up())
        self.assertFalse(connection.end(0.05))
        self.assertTrue(connection.hung_up())
        self.assertFalse(connection.end(0.05))  # a second call returns the same
        self.daemon.connections[0].close()
        self.assertTrue(connection.end(20))
        connection = HandleConnection()
        connection.hand_over(self.daemon.path, self.daemon.token(), [], 10)
        threading.Timer(0.1, self.daemon.connections[1].close).start()
        self.assertTrue(connection.end(20))
        connection = HandleConnection()
        connection.hand_over(self.daemon.path, self.daemon.token(), [], 10)
        self.daemon.connections[2].close()
        self.assertTrue(connection.hung_up())
        self.assertTrue(connection.end(20))
        connection.close()
        for descriptor in self.daemon.received[0]:
            os.close(descriptor)

    def test_descriptors_made_on_demand_are_closed_once_sent(self) -> None:
        region = SharedRegion("test", 64)
        made: list[int] = []
        with mock.patch("dws.handles.os.close", wraps=os.close) as closed:

            def make() -> int:
                self.assertLess(len(made) - closed.call_count, 200)
                made.append(os.dup(region.descriptor()))
                return made[-1]

            connection = HandleConnection()
            connection.hand_over(self.daemon.path, self.daemon.token(), [make] * 700, 10)
            self.assertEqual([call.args[0] for call in closed.call_args_list], made)
        self.assertEqual((len(made), len(self.daemon.received[0])), (700, 700))
        connection.close()
        for descriptor in self.daemon.received[0]:
            os.close(descriptor)

    def test_a_refusal_has_the_daemons_message(self) -> None:
        connection = HandleConnection()
        with self.assertRaisesRegex(dws.TokenLostError, "refused.*token is unknown"):
            connection.hand_over(self.daemon.path, bytes(16), [0], 10)
        self.assertTrue(connection.end(20))

    def test_an_absent_daemon_is_an_error_that_names_the_socket(self) -> None:
        connection = HandleConnection()
        with self.assertRaisesRegex(dws.DaemonUnavailableError, "/nowhere/h"):
            connection.hand_over("/nowhere/h", bytes(16), [0], 10)
        self.assertTrue(connection.end(20))

    def test_a_daemon_that_ends_before_it_answers_is_no_refusal(self) -> None:
        self.daemon.answers.clear()
        connection, raised = HandleConnection(), []

        def hand_over() -> None:
            try:
                connection.hand_over(self.daemon.path, self.daemon.token(), [], 20)
            except dws.DwsError as error:
                raised.append(error)

        thread = threading.Thread(target=hand_over)
        thread.start()
        while not self.daemon.connections:
            time.sleep(0.01)
        self.daemon.connections[0].shutdown(socket.SHUT_RDWR)
        thread.join()
        self.daemon.answers.set()
        self.assertIsInstance(raised[0], dws.DaemonUnavailableError)
        self.assertRegex(str(raised[0]), "without an answer")

    def test_memory_is_not_free_until_a_late_daemon_has_closed_the_connection(self) -> None:
        self.daemon.answers.clear()
        connection = HandleConnection()
        with self.assertRaisesRegex(dws.DeadlineError, "did not answer within"):
            connection.hand_over(self.daemon.path, self.daemon.token(), [], 0.05)
        self.assertTrue(connection.hung_up())
        self.assertFalse(connection.end(0.05))
        self.daemon.answers.set()
        self.assertFalse(connection.end(0.2))
        self.daemon.connections[0].close()
        self.assertTrue(connection.end(20))


if __name__ == "__main__":
    unittest.main()
