"""kill -9 of a receiver in the middle of an operator's request."""

import os
import unittest

import grpc

from tests.integration.admin_case import ADMIN, AdminCase, eventually


class OperationsKillTest(AdminCase):
    def setUp(self) -> None:
        super().setUp()
        self.use_failpoints("RECEIVER")

    def check(self, failpoint: str, method: str, **request: bool) -> None:
        os.environ["DWS_FAILPOINT"] = f"{failpoint}:kill"
        self.begin()
        del os.environ["DWS_FAILPOINT"]
        self.flip("a", 99)
        with self.assertRaises(grpc.RpcError):
            list(self.operator().call(ADMIN, method, **request))
        receiver = self.cluster.receivers[0]
        assert receiver.process is not None
        self.assertEqual(receiver.process.wait(60), -9)
        eventually(lambda: not self.dws_engine.stats().connected, lambda: "the engine sees it")
        receiver.start()
        # Attaching reads all digests, so the flipped bit is found.
        eventually(lambda: self.dws_engine.stats().reattachments == 1, lambda: "it attaches again")
        self.await_ready()
        self.assert_same_sha()
        self.publish()
        self.await_version(self.dws_engine, 2)
        self.assert_same_sha()

    def test_a_receiver_killed_in_a_verify_recovers(self) -> None:
        self.check("receiver.verify.after_batch", "Verify")

    def test_a_receiver_killed_in_a_resync_recovers(self) -> None:
        self.check("receiver.resync.after_batch", "Resync")

    def test_a_receiver_killed_after_fetching_a_full_resync_recovers(self) -> None:
        # The first version is fetched in full too, so only the second start arms the failpoint.
        self.begin()
        receiver = self.cluster.receivers[0]
        receiver.stop()
        os.environ["DWS_FAILPOINT"] = "receiver.prepare.after_fetch_full:kill"
        receiver.start()
        del os.environ["DWS_FAILPOINT"]
        eventually(lambda: self.dws_engine.stats().reattachments == 1, lambda: "it attaches again")
        self.await_ready()
        with self.assertRaises(grpc.RpcError):
            list(self.operator().call(ADMIN, "Resync", full=True))
        assert receiver.process is not None
        self.assertEqual(receiver.process.wait(60), -9)
        self.assertEqual(self.dws_engine.wait_ready(0).version, 1)
        self.assert_same_sha()
        receiver.start()
        self.publish()
        self.await_version(self.dws_engine, 2)
        self.assert_same_sha()


if __name__ == "__main__":
    unittest.main()
