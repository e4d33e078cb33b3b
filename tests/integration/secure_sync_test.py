"""A pair that syncs over mutual TLS, and continues while its certificates are replaced."""

import os
import shutil
import signal
import tempfile
from typing import Any

import numpy as np

import dws
import unittest
from tests.integration.certificates import Authority, Files, read
from tests.integration.cluster import Daemon
from tests.integration.hostile_case import ask_status, channel
from tests.integration.integration_case import IntegrationCase, change, eventually

SENDER = "dws://test/publish/0"
RECEIVER = "dws://test/receive/receiver-0"
OPERATOR = "dws://test/operate/ann"


class SecureSyncTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = tempfile.mkdtemp(prefix="dws-ca-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)
        self.old = Authority(self.folder, "old")
        self.random = np.random.default_rng(5)
        self.version = 0

    def start_secure(self) -> None:
        self.sender_files = self.install("s", self.old.issue("s", SENDER))
        self.receiver_files = self.install("r", self.old.issue("r", RECEIVER))
        self.cluster.start_sender(0, *self.sender_files.flags())
        self.cluster.start_receiver("receiver-0", *self.receiver_files.flags())
        self.publisher = self.trainer()
        self.source = self.publisher.register({"w": np.zeros((300, 500), np.float32)})
        self.reader = self.engine()
        self.live: Any = self.reader.attach({"w": np.zeros((300, 500), np.float32)})

    def install(self, name: str, files: Files) -> Files:
        """Copies the files to the paths that a daemon uses, replacing their contents."""
        places = [os.path.join(self.folder, f"{name}.{kind}") for kind in ("ca", "cert", "key")]
        for source, place in zip((files.ca, files.cert, files.key), places):
            shutil.copy(source, place + ".new")
            os.rename(place + ".new", place)
        return Files(*places)

    def sync(self) -> None:
        self.version += 1
        for array in self.source.values():
            change(array, self.random, 0.02)
        self.publisher.publish(self.version)
        self.publisher.wait(self.version, 1)
        self.await_version(self.reader, self.version)
        self.assert_same_weights(self.reader, self.live, self.source)

    def tls(self, daemon: Daemon, files: Files) -> Any:
        with channel(daemon.ports.get("sync") or daemon.ports["admin"], files) as connection:
            return ask_status(connection).tls

    def expiry(self, daemon: Daemon, files: Files) -> int:
        seconds: int = self.tls(daemon, files).expires_unix_seconds
        return seconds

    def test_versions_arrive_and_the_status_names_the_certificate(self) -> None:
        self.start_secure()
        for _ in range(3):
            self.sync()
        operator = self.old.issue("o", OPERATOR)
        for daemon, identity in zip(
            self.cluster.senders + self.cluster.receivers, (SENDER, RECEIVER)
        ):
            tls = self.tls(daemon, operator)
            self.assertTrue(tls.enabled)
            self.assertEqual(tls.identity, identity)

    def test_a_new_ca_and_new_certificates_are_rolled_out_without_a_restart(self) -> None:
        self.start_secure()
        self.sync()
        new = Authority(self.folder, "new")
        both = os.path.join(self.folder, "both.pem")
        with open(both, "wb") as file:
            file.write(read(self.old.pem) + read(new.pem))
        operator_old = self.old.issue("o", OPERATOR, ca=both)
        operator_new = new.issue("o", OPERATOR, ca=both)
        sender, receiver = self.cluster.senders[0], self.cluster.receivers[0]

        # 1. Everybody trusts both CAs.
        self.install("s", Files(both, self.sender_files.cert, self.sender_files.key))
        self.install("r", Files(both, self.receiver_files.cert, self.receiver_files.key))
        for daemon in (sender, receiver):
            eventually(lambda: self.reaches(daemon, operator_new), daemon.log_tail)
        self.sync()
        # 2. New certificates, 3. then the old CA is removed. The pair stays connected all the time.
        old_expiry = self.expiry(sender, operator_old)
        self.install("s", new.issue("s", SENDER, ends_in_days=20, ca=both))
        self.install("r", new.issue("r", RECEIVER, ends_in_days=20, ca=both))
        for daemon in (sender, receiver):
            eventually(lambda: self.expiry(daemon, operator_new) > old_expiry + 9 * 86400,
                       daemon.log_tail)  # fmt: skip
        self.sync()
        self.install("s", Files(new.pem, self.sender_files.cert, self.sender_files.key))
        self.install("r", Files(new.pem, self.receiver_files.cert, self.receiver_files.key))
        for daemon in (sender, receiver):
            eventually(lambda: not self.reaches(daemon, operator_old), daemon.log_tail)
        self.sync()
        self.assertEqual(receiver.logged("sender_disconnected"), 0)
        # A reconnect uses only the new certificates.
        sender.kill()
        sender.start()
        self.publisher.reconnect()
        self.sync()
        self.assertTrue(self.reaches(receiver, operator_new))

    def reaches(self, daemon: Daemon, files: Files) -> bool:
        try:
            self.tls(daemon, files)
        except Exception:
            return False
        return True

    def test_bad_files_are_refused_and_the_good_ones_stay_in_use(self) -> None:
        self.start_secure()
        self.sync()
        operator = self.old.issue("o", OPERATOR)
        sender = self.cluster.senders[0]
        expiry = self.expiry(sender, operator)
        bad = {
            "expired": self.old.issue("bad1", SENDER, begins_in_days=-9, ends_in_days=-2),
            "not that of the certificate": Files(self.old.pem, self.sender_files.cert,
                                                 self.old.issue("bad4", SENDER).key),  # fmt: skip
        }
        good = self.old.issue("good", SENDER, ends_in_days=9)
        for reason, files in bad.items():
            self.install("s", files if files.cert != self.sender_files.cert else
                         Files(files.ca, good.cert, files.key))  # fmt: skip
            eventually(lambda: reason in sender.log_tail(100), sender.log_tail)
            self.assertEqual(self.expiry(sender, operator), expiry)
            self.sync()
        with open(self.sender_files.cert, "w") as file:
            file.write("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
        eventually(lambda: "expected certificates in PEM" in sender.log_tail(100), sender.log_tail)
        self.assertEqual(self.expiry(sender, operator), expiry)
        self.install("s", good)
        eventually(lambda: self.expiry(sender, operator) > expiry, sender.log_tail)
        self.sync()
        self.assertIsNone(sender.process and sender.process.poll())


if __name__ == "__main__":
    unittest.main()
