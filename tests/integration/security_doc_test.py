"""Runs the commands of deploy/SECURITY.md and a pair with the certificates they make."""

import os
import re
import subprocess
import tempfile
import unittest

from tests.integration.certificates import Files
from tests.integration.cluster import Cluster
from tests.integration.hostile_case import ask_status, channel
from tests.integration.integration_case import eventually

DOCUMENT = "deploy/SECURITY.md"
_BLOCK = re.compile(r"^```sh (\S+)\n(.*?)^```$", re.M | re.S)


class SecurityDocTest(unittest.TestCase):
    def test_the_commands_make_certificates_that_a_pair_accepts(self) -> None:
        with open(DOCUMENT) as file:
            blocks = dict(_BLOCK.findall(file.read()))
        folder = tempfile.TemporaryDirectory(prefix="dws-doc-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        for name in ("ca", "issue"):
            subprocess.run(
                ["bash", "-euo", "pipefail", "-c", blocks[name]],
                cwd=folder.name,
                check=True,
                capture_output=True,
            )
        place = lambda name: os.path.join(folder.name, name)  # noqa: E731
        sender, receiver, operator = (
            Files(place("ca.pem"), place(f"{name}.pem"), place(f"{name}.key"))
            for name in ("sender-0", "receiver-a", "ann")
        )
        cluster = Cluster("my-job")
        self.addCleanup(cluster.stop)
        cluster.start_sender(0, *sender.flags())
        daemon = cluster.start_receiver("receiver-a", *receiver.flags())

        def connected() -> bool:
            with channel(cluster.senders[0].ports["sync"], operator) as connection:
                return any(r.present for r in ask_status(connection).sender.receivers)

        eventually(connected, daemon.log_tail)


if __name__ == "__main__":
    unittest.main()
