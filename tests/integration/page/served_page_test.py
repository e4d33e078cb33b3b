"""The page at / and the history in /status, as both daemons serve them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import unittest
import urllib.request
from typing import Any

import numpy as np

from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually

VERSIONS = 104
HISTORY = 100


class ServedPageTest(IntegrationCase):
    def status(self, daemon: Daemon) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(daemon.page("/status"))
        return told

    def test_both_daemons_serve_the_page_with_a_policy_of_its_own_hashes(self) -> None:
        self.start()
        pages = []
        for daemon in (*self.cluster.senders, *self.cluster.receivers):
            with urllib.request.urlopen(f"http://127.0.0.1:{daemon.ports['http']}/", timeout=10) as reply:
                pages.append(reply.read().decode())
                headers = reply.headers
            self.assertEqual(headers["Content-Type"], "text/html; charset=utf-8")
            self.assertEqual(headers["Cache-Control"], "no-store")
            for tag in ("style", "script"):
                (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", pages[-1], re.S)
                digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
                self.assertIn(f"{tag}-src 'sha256-{digest}'", headers["Content-Security-Policy"])
            self.assertNotIn("://", pages[-1])
        self.assertEqual(pages[0], pages[1])

    def test_the_status_has_the_last_hundred_versions(self) -> None:
        self.start()
        random = np.random.default_rng(5)
        trainer, engine = self.trainer(), self.engine()
        weights = trainer.register({"a": random.standard_normal((200, 100), np.float32)})
        engine.attach({"a": np.zeros((200, 100), np.float32)})
        for version in range(1, VERSIONS + 1):
            change(weights["a"], random, 0.01)
            trainer.publish(version)
            trainer.wait(version)
        sender, receiver = self.cluster.senders[0], self.cluster.receivers[0]
        eventually(
            lambda: bool(self.status(receiver)["receiver"]["history"][-1]["version"] == str(VERSIONS)), self.cluster.logs)
        published = self.status(sender)["sender"]["history"]
        committed = self.status(receiver)["receiver"]["history"]
        for history, size in ((published, "wire_bytes"), (committed, "fetched_bytes")):
            self.assertEqual([int(row["version"]) for row in history], [*range(VERSIONS - HISTORY + 1, VERSIONS + 1)])
            for row in history:
                self.assertAlmostEqual(row["density_ratio"], 0.01, delta=0.005)
                self.assertLess(int(row[size]), int(row["full_bytes"]) / 10)
                self.assertEqual(int(row["full_bytes"]), weights["a"].nbytes)
            times = [row["unix_seconds"] for row in history]
            self.assertEqual(times, sorted(times))
        for row in published:
            self.assertEqual(row["commits"], 1)
            self.assertGreater(row["pause_seconds_max"], 0)
            self.assertGreater(row["capture_seconds"], 0)
        for row in committed:
            self.assertGreater(row["pause_seconds"], 0)
            self.assertGreaterEqual(row["total_seconds"], row["pause_seconds"])
            self.assertFalse(row["repaired"])
        # What a receiver tells its sender of a commit is what it keeps of it.
        self.assertEqual(
            [row["pause_seconds_max"] for row in published[:-1]], [row["pause_seconds"] for row in committed[:-1]])


if __name__ == "__main__":
    unittest.main()
