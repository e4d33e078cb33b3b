"""The encoding of the deltas in a shared directory, and receivers that are several of them behind."""

from __future__ import annotations

import os
import re
import subprocess
import unittest
from typing import Any

import torch

import dws
from tests.integration.cluster import SENDER, Daemon
from tests.integration.integration_case import IntegrationCase, eventually

DWSCTL = os.path.abspath("tools/dwsctl/dwsctl")


class SharedProfileTest(IntegrationCase):
    def start_trainer(self, *flags: str) -> None:
        self.root = os.path.join(self.cluster.folder, "shared")
        self.sender = self.cluster.start_sender(0, f"--shared-dir={self.root}", *flags)
        self.generator = torch.Generator().manual_seed(5)
        self.masters = torch.randn(1500, 1400, generator=self.generator) * 0.02
        self.trainer_ = self.trainer()
        self.source = self.trainer_.register(
            {"w": self.masters.to(torch.bfloat16), "norm": torch.ones(700)}
        )

    def publish(self, version: int) -> None:
        up = torch.rand(self.masters.shape, generator=self.generator) < 0.5
        self.masters += torch.where(up, 1e-6, -1e-6)  # all elements change by the same amount
        self.source["w"].copy_(self.masters)
        self.source["norm"][version] += 1
        self.trainer_.publish(version)

    def start_engine(self, name: str) -> tuple[Daemon, dws.Engine, Any]:
        receiver = self.cluster.start_receiver(
            name, f"--shared-dir={self.root}", "--shared-poll-ms=20", senders=False
        )
        engine = self.engine(receiver)
        zeros = {key: torch.zeros_like(tensor) for key, tensor in self.source.items()}
        return receiver, engine, engine.attach(zeros)

    def check(self, engine: dws.Engine, live: Any, version: int) -> None:
        self.await_version(engine, version)
        self.assert_same_weights(engine, live, self.source)

    def fetched(self, receiver: Daemon) -> tuple[float, float]:
        """Bytes of deltas and of full tensors since it started."""
        delta, full = (
            receiver.metric("dws_receiver_fetched_bytes_total", f'kind="{kind}"')
            for kind in ("delta", "full")
        )
        return delta, full

    def delta(self, version: int) -> str:
        found = [
            os.path.join(place, "delta")
            for place, _, names in os.walk(self.root)
            if {"delta", "manifest"} <= set(names) and f"v{version:020}-" in place
        ]
        self.assertEqual(len(found), 1)
        return found[0]

    def sizes(self, version: int) -> tuple[int, int]:
        """The fast and the wan object of a version, as the sender has them."""
        (line,) = re.findall(rf"(?<!_)published version={version} .*", self.sender.log_tail(100_000))
        fast, wan = (re.search(rf"\b{key}=(\d+)", line) for key in ("wire_bytes", "wan_bytes"))
        assert fast is not None and wan is not None
        return int(fast[1]), int(wan[1])

    def has_class_split(self, version: int) -> bool:
        ran = subprocess.run(
            [DWSCTL, "inspect", self.delta(version)], capture_output=True, text=True, timeout=120
        )
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return "class-split" in ran.stdout

    def follow_and_fall_behind(self) -> None:
        """Versions 1 to 10, to an engine in step, to one that missed five, to one that joins."""
        self.publish(1)
        _, near, near_live = self.start_engine("receiver-near")
        late_receiver, late, late_live = self.start_engine("receiver-late")
        for version in (1, 2, 3, 4, 5):
            if version > 1:
                self.publish(version)
            self.check(near, near_live, version)
            self.check(late, late_live, version)
        late_receiver.stop()
        for version in (6, 7, 8, 9, 10):
            self.publish(version)
            self.check(near, near_live, version)
        late_receiver.start()
        self.check(late, late_live, 10)
        # Without full tensors, which are at version 1 only.
        eventually(lambda: self.fetched(late_receiver)[0] > 0, lambda: "no delta was counted")
        self.assertEqual(self.fetched(late_receiver)[1], 0, late_receiver.log_tail(100))
        _, joins, joins_live = self.start_engine("receiver-joins")
        self.check(joins, joins_live, 10)
        self.assertEqual(
            self.sender.metric("dws_sender_shared_versions_total", 'kind="anchor"'), 1
        )
        self.publish(11)
        for engine, live in ((near, near_live), (late, late_live), (joins, joins_live)):
            self.check(engine, live, 11)

    def test_deltas_are_class_split_and_receivers_that_are_behind_take_them_together(self) -> None:
        self.start_trainer()
        self.follow_and_fall_behind()
        self.assertFalse(self.has_class_split(2))  # no tables have been learnt yet
        for version in range(3, 12):
            fast, wan = self.sizes(version)
            self.assertEqual(os.path.getsize(self.delta(version)), wan)
            self.assertLess(wan, 0.9 * fast)
            self.assertTrue(self.has_class_split(version))

    def test_a_fast_directory_has_steps(self) -> None:
        self.start_trainer("--shared-dir-profile=fast")
        self.follow_and_fall_behind()
        for version in (2, 11):
            fast, wan = self.sizes(version)
            self.assertEqual((os.path.getsize(self.delta(version)), wan), (fast, 0))
            self.assertFalse(self.has_class_split(version))

    def test_wan_is_refused_where_the_sender_does_not_make_it(self) -> None:
        command = [SENDER, "--job-id=j", "--shared-dir=/nowhere"]
        for flags, code, wanted in (
            (("--profile=direct", "--shared-dir-profile=wan"), 2, "not made with --profile=direct"),
            (("--profile=direct",), 0, 'shared-dir-profile = "fast"'),
            (("--profile=wan",), 0, 'shared-dir-profile = "wan"'),
            (("--shared-dir-profile=direct",), 2, "shared-dir-profile"),
        ):
            with self.subTest(flags):
                ran = subprocess.run(
                    [*command, *flags, "--check-config"],
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                self.assertEqual(ran.returncode, code, ran.stderr)
                self.assertIn(wanted, ran.stdout + ran.stderr)


if __name__ == "__main__":
    unittest.main()
