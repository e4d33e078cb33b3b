"""Operators' requests to a receiver, while versions arrive and faults happen."""

import json
import threading
import unittest
import urllib.error
import urllib.request

import grpc

from tests.integration.admin_case import ADMIN, MODEL_BYTES, AdminCase, eventually


class VerifyTest(AdminCase):
    def test_verify_compares_all_bytes_of_intact_memory(self) -> None:
        self.begin()
        last = self.last("Verify")
        self.assertEqual((last.mismatches, len(last.mismatched)), (0, 0))
        self.assertEqual((last.done_bytes, last.total_bytes), (MODEL_BYTES, MODEL_BYTES))
        self.assertEqual(last.version, 1)
        self.assertIn("senders describe", last.step)
        self.assertEqual(self.status().receiver.commits, 1)

    def test_verify_finds_and_names_a_flipped_bit_which_is_then_repaired(self) -> None:
        self.begin()
        self.flip("b", 7)
        last = self.last("Verify")
        self.assertEqual(last.mismatches, 1)
        (found,) = last.mismatched
        self.assertEqual((found.tensor, found.trainer_rank, found.version), ("b", 0, 1))
        self.assertNotEqual(found.expected, found.found)
        eventually(lambda: self.status().receiver.commits == 2, lambda: str(self.status()))
        self.await_ready()
        self.assert_same_sha()
        commit = self.status().receiver.last_commit
        self.assertTrue(commit.repaired)
        # Only that slice was fetched.
        self.assertLess(commit.fetched_bytes, 1000)
        self.assertEqual(self.last("Verify").mismatches, 0)
        self.publish()
        self.await_version(self.dws_engine, 2)
        self.assert_same_sha()

    def test_verify_reports_no_drift_and_delays_no_versions_at_full_speed(self) -> None:
        self.begin()
        over = threading.Event()
        failures = []

        def publish() -> None:
            try:
                for _ in range(60):
                    self.publish()
                    self.dws_trainer.wait(self.version, timeout=60)
            except Exception as failure:  # for the test's own thread
                failures.append(failure)
            over.set()

        thread = threading.Thread(target=publish)
        thread.start()
        self.addCleanup(thread.join)
        versions = set()
        while not over.is_set():
            last = self.last("Verify")
            self.assertEqual(last.mismatches, 0, str(last))
            versions.add(last.version)
        self.assertEqual(failures, [])
        self.assertGreater(len(versions), 2)
        receiver = self.status().receiver
        self.assertEqual((receiver.repairs, receiver.nacks), (1, 0))  # the first version is in full
        self.await_version(self.dws_engine, self.version)
        self.assert_same_sha()

    def test_drift_that_cannot_be_repaired_pauses_the_engine(self) -> None:
        self.begin()
        self.cluster.senders[0].kill()
        eventually(
            lambda: not self.status().receiver.senders[0].connected, lambda: "the loss is seen"
        )
        self.flip("a", 12345)
        last = self.last("Verify")
        self.assertEqual([found.tensor for found in last.mismatched], ["a"])
        self.assertIn("digests kept since the commit", last.step)
        eventually(lambda: self.dws_engine.grant is None, lambda: "the engine is paused")
        self.assertFalse(self.status().ready)
        paused = "the engine is paused: live memory is not version 1"
        eventually(lambda: paused in self.status().reason, lambda: str(self.status()))
        self.cluster.senders[0].start()
        self.dws_trainer.reconnect()
        self.publish()
        self.await_version(self.dws_engine, 2)
        self.await_ready()
        self.assert_same_sha()

    def test_a_caller_that_hangs_up_leaves_no_operation_behind(self) -> None:
        self.begin()
        for _ in range(20):
            call = self.operator().call(ADMIN, "Verify")
            call.cancel()

        def verified() -> bool:
            try:
                self.assertEqual(self.last("Verify").mismatches, 0)
            except grpc.RpcError as error:
                # The daemon has not noticed yet that so many callers have hung up.
                self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)  # type: ignore[attr-defined]
                return False
            return True

        eventually(verified, lambda: "there is room for an operation")
        eventually(lambda: self.status().receiver.stage == "idle", lambda: str(self.status()))

    def test_without_an_engine_there_is_nothing_to_verify(self) -> None:
        self.start()
        with self.assertRaises(grpc.RpcError) as caught:
            list(self.operator().call(ADMIN, "Verify"))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertIn("engine rank 0 is not attached", caught.exception.details())


class ResyncTest(AdminCase):
    def test_resync_fetches_what_differs_and_proves_the_engine_again(self) -> None:
        self.begin()
        self.flip("c")
        last = self.last("Resync")
        self.assertEqual((last.version, last.mismatches), (1, 1))
        self.assert_same_sha()
        self.assertLess(self.status().receiver.last_commit.fetched_bytes, 2000)

    def test_a_full_resync_fetches_every_tensor(self) -> None:
        self.begin()
        self.publish()
        self.await_version(self.dws_engine, 2)
        last = self.last("Resync", full=True)
        self.assertEqual((last.version, last.mismatches), (2, 0))
        commit = self.status().receiver.last_commit
        self.assertTrue(commit.repaired)
        self.assertGreater(commit.fetched_bytes, 0.5 * MODEL_BYTES)
        self.assertEqual(commit.full_bytes, MODEL_BYTES)
        self.assert_same_sha()
        self.publish()
        self.await_version(self.dws_engine, 3)
        self.assert_same_sha()

    def test_resync_continues_when_the_caller_hangs_up(self) -> None:
        self.begin()
        commits = self.status().receiver.commits
        call = self.operator().call(ADMIN, "Resync", full=True)
        next(call)
        call.cancel()
        eventually(lambda: self.status().receiver.commits > commits, lambda: str(self.status()))
        self.assert_same_sha()


class DrainTest(AdminCase):
    def url(self, page: str) -> str:
        return f"http://127.0.0.1:{self.cluster.receivers[0].ports['http']}/{page}"

    def ready_code(self) -> int:
        try:
            with urllib.request.urlopen(self.url("readyz"), timeout=20) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            self.reason = error.read().decode()
            error.close()
            return error.code

    def test_no_version_is_committed_until_the_drain_is_undone(self) -> None:
        self.begin()
        eventually(lambda: self.ready_code() == 200, lambda: "ready")
        self.assertEqual(self.last("Drain").version, 1)
        status = self.status()
        self.assertEqual(status.drain, 2)
        self.assertEqual(status.receiver.stage, "drained")
        eventually(lambda: self.ready_code() == 503, lambda: "not ready")
        self.assertIn("drained by an operator", self.reason)
        with urllib.request.urlopen(self.url("status"), timeout=20) as page:
            told = json.load(page)
        self.assertEqual(told["drain"], "DRAIN_STATE_DRAINED")
        self.assertEqual(told["receiver"]["last_commit"]["version"], "1")
        self.publish()
        eventually(lambda: self.status().receiver.newest_version == 2, lambda: str(self.status()))
        self.assertEqual(self.last("Verify").version, 1)
        self.assertEqual(self.dws_engine.wait_ready(0).version, 1)
        self.assertEqual(self.last("Drain").version, 1)  # a second drain gives the same
        self.last("Drain", undo=True)
        self.await_version(self.dws_engine, 2)
        self.await_ready()
        self.assert_same_sha()

    def test_a_drain_holds_without_an_engine_and_when_one_attaches(self) -> None:
        self.start()
        self.last("Drain")
        self.register()
        self.publish()
        self.attach()
        eventually(
            lambda: bool(self.status().receiver.engine_ranks)
            and self.status().receiver.newest_version == 1,
            lambda: str(self.status()),
        )
        self.assertEqual(self.status().receiver.commits, 0)
        self.assertIsNone(self.dws_engine.grant)
        with self.assertRaises(grpc.RpcError) as caught:
            list(self.operator().call(ADMIN, "Resync"))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.last("Drain", undo=True)
        self.await_version(self.dws_engine, 1)
        self.assert_same_sha()

    def test_a_restart_ends_the_drain(self) -> None:
        self.begin()
        self.last("Drain")
        receiver = self.cluster.receivers[0]
        receiver.kill()
        receiver.start()
        self.publish()
        self.await_version(self.dws_engine, 2)
        self.assertEqual(self.status().drain, 0)


if __name__ == "__main__":
    unittest.main()
