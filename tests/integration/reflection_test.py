"""A client without any DWS code operates real daemons."""

import unittest

import grpc

from tests.integration.admin_case import ADMIN, MODEL_BYTES, AdminCase
from tests.integration.reflection_client import ReflectionClient


class ReflectionTest(AdminCase):
    def test_the_daemons_list_their_services_and_methods(self) -> None:
        self.start()
        sender, receiver = self.operator(self.cluster.senders[0]), self.operator()
        for client, own in ((sender, "dws.v1.TrainerService"), (receiver, "dws.v1.EngineService")):
            services = client.services()
            for service in (ADMIN, own, "grpc.reflection.v1alpha.ServerReflection"):
                self.assertIn(service, services)
            self.assertEqual(
                client.methods(ADMIN),
                dict.fromkeys(
                    ("Watch", "Verify", "Resync", "Drain", "Evict", "ForgetStream", "Boundary"), True
                )
                | dict.fromkeys(("Status", "Plan"), False),
            )
        with self.assertRaises(LookupError):
            sender.methods("dws.v1.NoSuchService")

    def test_every_operator_call_works_by_reflection(self) -> None:
        self.begin()
        with ReflectionClient(self.cluster.receivers[0].address) as client:
            status = client.call(ADMIN, "Status")
            self.assertEqual((status.daemon, status.job_id), ("dws-receiver", "test"))
            self.assertEqual(status.receiver.committed_version, 1)
            self.assertEqual(status.receiver.senders[0].newest_version, 1)

            watch = client.call(ADMIN, "Watch", interval_seconds=0.1)
            first, second = next(watch), next(watch)
            self.assertGreater(second.unix_seconds, first.unix_seconds)
            self.publish()
            while next(watch).receiver.committed_version < 2:
                pass
            watch.cancel()

            self.flip("a", 3)
            *_, last = client.call(ADMIN, "Verify")
            self.assertTrue(last.finished)
            self.assertEqual([found.tensor for found in last.mismatched], ["a"])
            *_, last = client.call(ADMIN, "Resync", full=True)
            self.assertEqual((last.finished, last.version), (True, 2))
            self.assert_same_sha()
            *_, last = client.call(ADMIN, "Drain")
            self.assertEqual((last.finished, last.version), (True, 2))
            self.assertEqual(client.call(ADMIN, "Status").drain, 2)
            *_, last = client.call(ADMIN, "Drain", undo=True)
            self.assertEqual(client.call(ADMIN, "Status").drain, 0)

    def test_a_sender_answers_by_reflection_too(self) -> None:
        self.begin()
        with ReflectionClient(self.cluster.senders[0].address) as client:
            status = client.call(ADMIN, "Status")
            self.assertEqual(status.sender.newest_version, 1)
            self.assertEqual(status.sender.versions[0].full_bytes, MODEL_BYTES)
            for method in ("Resync", "Evict", "Boundary"):
                with self.assertRaises(grpc.RpcError) as caught:
                    list(client.call(ADMIN, method))
                self.assertEqual(caught.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        with ReflectionClient(self.cluster.receivers[0].address) as client:
            with self.assertRaisesRegex(grpc.RpcError, "this receiver is in no commit group"):
                list(client.call(ADMIN, "Evict"))


if __name__ == "__main__":
    unittest.main()
