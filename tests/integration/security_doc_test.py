"""Runs the commands of deploy/SECURITY.md and a pair with the certificates they make."""

import glob
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import unittest

import grpc

import dws
from tests.integration.certificates import Files, read
from tests.integration.cluster import Cluster, Daemon
from tests.integration.hostile_case import ask_status, channel
from tests.integration.integration_case import eventually

DOCUMENT = "deploy/SECURITY.md"
SCRIPT = os.path.abspath("deploy/tls/certificates.sh")
_BLOCK = re.compile(r"^```sh (\S+)\n(.*?)^```$", re.M | re.S)


def ends(path: str) -> float:
    """When a certificate ends, in seconds since 1970."""
    decoded = ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]
    return ssl.cert_time_to_seconds(decoded["notAfter"])


class SecurityDocTest(unittest.TestCase):
    def setUp(self) -> None:
        with open(DOCUMENT) as file:
            self.blocks = dict(_BLOCK.findall(file.read()))
        folder = tempfile.TemporaryDirectory(prefix="dws-doc-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.programs = os.path.join(self.folder, "bin")  # the script with the name that packages give it
        os.mkdir(self.programs)
        os.symlink(SCRIPT, os.path.join(self.programs, "dws-certificates"))
        self.cluster = Cluster("my-job")
        self.addCleanup(self.cluster.stop)

    def run_lines(self, text: str) -> str:
        path = f"{self.programs}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path},
        )
        return done.stdout

    def files(self, name: str) -> Files:
        place = os.path.join(self.folder, "tls", name)
        return Files(*(os.path.join(place, file) for file in ("ca.pem", "cert.pem", "key.pem")))

    def start_pair(self) -> Daemon:
        self.sender = self.cluster.start_sender(0, *self.files("publish-0").flags())
        return self.cluster.start_receiver("receiver-a", *self.files("receive-receiver-a").flags())

    def await_connected(self, receiver: Daemon) -> None:
        def connected() -> bool:
            with channel(self.sender.ports["sync"], self.files("operate-ann")) as connection:
                return any(r.present for r in ask_status(connection).sender.receivers)

        eventually(connected, receiver.log_tail)

    def test_the_commands_make_certificates_that_a_pair_accepts(self) -> None:
        self.run_lines(self.blocks["job"])
        self.run_lines(self.blocks["more"])
        self.await_connected(self.start_pair())

    def test_openssl_accepts_the_certificates(self) -> None:
        self.run_lines(self.blocks["job"])
        for cert in glob.glob(os.path.join(self.folder, "tls", "*", "cert.pem")):
            purposes = ["sslclient"] if "operate" in cert else ["sslclient", "sslserver"]
            for purpose in purposes:
                self.run_lines(f"openssl verify -x509_strict -purpose {purpose} -CAfile ca/ca.pem {cert}")
            self.run_lines(f"test $(stat -c %a {os.path.dirname(cert)}/key.pem) = 640")
        self.run_lines("test $(stat -c %a ca/ca.key) = 600")

    def test_a_running_daemon_loads_a_renewed_certificate(self) -> None:
        self.run_lines(self.blocks["job"])
        receiver = self.start_pair()
        self.await_connected(receiver)
        cert = self.files("publish-0").cert
        before = ends(cert)
        key = read(self.files("publish-0").key)
        self.assertEqual(self.run_lines(self.blocks["more"]).count("not due"), 4)
        self.assertEqual(ends(cert), before)
        self.run_lines(
            "dws-certificates renew --authority=ca --within=120 --days=200 tls/publish-0/cert.pem"
        )
        self.assertGreater(ends(cert), before + 100 * 86400)
        self.assertEqual(read(self.files("publish-0").key), key)

        def taken() -> bool:
            with channel(self.sender.ports["sync"], self.files("operate-ann")) as connection:
                return bool(ask_status(connection).tls.expires_unix_seconds == ends(cert))

        eventually(taken, self.sender.log_tail)
        receiver.stop()
        receiver.start()
        self.await_connected(receiver)

    def test_a_wrong_role_is_refused(self) -> None:
        self.run_lines(self.blocks["job"])
        receiver = self.start_pair()
        self.await_connected(receiver)
        # A receiver's certificate may give no orders.
        with channel(receiver.ports["admin"], self.files("receive-receiver-a")) as connection:
            call = connection.unary_stream("/dws.v1.AdminService/Resync")
            with self.assertRaises(grpc.RpcError) as refused:
                list(call(b"", timeout=20))
        self.assertEqual(refused.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
        # A sender does not start as another rank, or with a receiver's certificate.
        for name in ("receive-receiver-a", "operate-ann"):
            with self.assertRaisesRegex(dws.DaemonFailedError, "must have the URI dws://my-job/publish/1"):
                self.cluster.start_sender(1, *self.files(name).flags(), name=f"wrong-{name}")
            shutil.rmtree(os.path.join(self.cluster.folder, f"wrong-{name}"))
            self.cluster.senders.pop().release_ports()


if __name__ == "__main__":
    unittest.main()
