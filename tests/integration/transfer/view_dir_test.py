"""Engines that hold quantised weights follow a shared directory: every byte is compared with numpy."""

from __future__ import annotations

import glob
import os
import subprocess
import unittest
from typing import Any, Sequence

import numpy as np

import dws
from tests.integration.cluster import SENDER, Daemon
from tests.integration.integration_case import eventually
from tests.integration.transfer.view_test import EXCEPT, SHAPES, ViewCase, dwsctl

VIEW = f"fp8-block128/deepseek,{EXCEPT}"
OTHER = f"int4-g128/amax7,{EXCEPT}"


class ViewDirTest(ViewCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = os.path.join(self.cluster.folder, "shared")

    def begin_with(self, *views: str, flags: Sequence[str] = (), shapes: Any = None) -> None:
        named = [f"--shared-view={view}" for view in views]
        self.begin(shapes or SHAPES, flags=[f"--shared-dir={self.root}", *named, *flags])

    def follow(self, view: str, senders: bool = False) -> tuple[dws.Engine, Any, Daemon]:
        return self.attach(view, f"--shared-dir={self.root}", "--shared-poll-ms=20", senders=senders)

    def test_engines_of_views_follow_a_directory_alone(self) -> None:
        self.begin_with(VIEW, OTHER)
        self.publish()
        followed = [(*self.follow(view), view) for view in ("", VIEW, OTHER)]
        for share in (0.01, 0.0, 0.5, 0.01):
            for engine, live, _, view in followed:
                self.check(engine, live, view)
            self.publish(share)
        for engine, live, receiver, view in followed:
            self.check(engine, live, view)
            size = sum(array.nbytes for array in self.expected(view).values())
            self.assertEqual(receiver.metric("dws_receiver_fetched_bytes_total", 'kind="full"'), size)
        result = self.dws_trainer.wait(self.version)
        self.assertEqual(sorted(result.committed), sorted(r.name for _, _, r, _ in followed))
        sender = dwsctl("status", f"--socket={self.cluster.senders[0].socket}")["sender"]
        self.assertEqual(sender["shared"]["newest_version"], str(self.version))
        self.assertEqual(sender["shared"]["receivers"], 3)
        # Only the folders of the views and of the job are there.
        self.assertEqual(len(os.listdir(self.root)), 3)

    def test_a_view_in_a_directory_survives_restarts_of_both_daemons(self) -> None:
        self.begin_with(VIEW)
        self.publish()
        engine, live, receiver = self.follow(VIEW)
        self.check(engine, live, VIEW)
        receiver.kill()
        self.publish()
        receiver.start()
        self.check(engine, live, VIEW)
        self.cluster.senders[0].kill()
        self.cluster.senders[0].start()
        self.dws_trainer.reconnect()
        for _ in range(2):
            self.publish()
            self.check(engine, live, VIEW)

    def test_with_a_connection_the_bytes_of_a_view_come_from_the_directory(self) -> None:
        self.begin_with(VIEW)
        self.publish()
        engine, live, receiver = self.follow(VIEW, senders=True)
        self.check(engine, live, VIEW)
        for array in self.source.values():  # too much to come with its announcement
            array[self.random.random(array.shape) < 0.5] ^= 0x8000
        self.publish(0.0)
        self.check(engine, live, VIEW)
        for content in ("full", "delta"):
            with self.subTest(content):
                label = f'content="{content}",source="shared-dir"'
                self.assertGreater(receiver.metric("dws_receiver_source_bytes_total", label), 0)

    def test_an_engine_that_has_the_quantised_base_reads_deltas_only(self) -> None:
        self.begin_with(VIEW, flags=("--shared-dir-first=base",))
        self.publish(0.0)
        receiver = self.cluster.start_receiver(
            "based", f"--view={VIEW}", f"--shared-dir={self.root}", "--shared-poll-ms=20", senders=False
        )
        engine = self.engine(receiver)
        live = engine.attach({n: np.array(a) for n, a in self.expected(VIEW).items()})
        self.check(engine, live, VIEW)
        self.publish()
        self.check(engine, live, VIEW)
        self.assertEqual(receiver.metric("dws_receiver_fetched_bytes_total", 'kind="full"'), 0)
        shared = dwsctl("status", f"--socket={self.cluster.senders[0].socket}")["sender"]["shared"]
        self.assertEqual((shared.get("bases"), shared.get("anchors", "0")), ("2", "0"), shared)
        # One that began with something else asks for full tensors.
        engine, live, receiver = self.follow(VIEW)
        self.check(engine, live, VIEW)
        self.assertGreater(receiver.metric("dws_receiver_fetched_bytes_total", 'kind="full"'), 0)

    def test_a_view_that_cannot_be_made_is_named_and_the_others_are_published(self) -> None:
        odd = "mxfp8/floor"  # gate.weight has 100 columns
        self.begin_with(VIEW, odd, flags=("--folder-stale-after=1",), shapes={**SHAPES, "gate.weight": (8, 100)})
        self.publish()
        engine, live, _ = self.follow(VIEW)
        self.check(engine, live, VIEW)
        sender = self.cluster.senders[0]
        eventually(
            lambda: "view 'mxfp8/floor' could not be made" in dwsctl("status", f"--socket={sender.socket}")["reason"],
            sender.log_tail,
        )
        self.assertIn("recipe mxfp8/floor needs a multiple of 32 columns, found 100", sender.log_tail())

    def test_a_view_that_is_no_longer_published_leaves_the_directory(self) -> None:
        self.begin_with(VIEW, OTHER)
        self.publish()
        followed = [(*self.follow(view), view) for view in (VIEW, OTHER)]
        for engine, live, _, view in followed:
            self.check(engine, live, view)
        sender = self.cluster.senders[0]
        sender.kill()
        sender.command.remove(f"--shared-view={OTHER}")
        sender.start()
        self.dws_trainer.reconnect()
        self.publish()
        engine, live, _, view = followed[0]
        self.check(engine, live, view)
        eventually(lambda: len(glob.glob(f"{self.root}/view~*/*/*/stream-*")) == 1, sender.log_tail)
        receiver = followed[1][2]
        eventually(
            lambda: f"start the senders with --shared-view={OTHER}" in str(receiver.readyz()) + receiver.log_tail(),
            receiver.log_tail,
        )

    def test_views_that_make_no_sense_are_refused_at_the_start(self) -> None:
        common = [SENDER, "--job-id=j", "--trainer-rank=0", f"--state-dir={self.root}-state"]
        for flags, reason in (
            ([f"--shared-view={VIEW}"], "there is no --shared-dir to write to"),
            ([f"--shared-dir={self.root}", "--shared-view=fp8"], "no quantisation recipe"),
            ([f"--shared-dir={self.root}", *[f"--shared-view={VIEW}"] * 2], "is given twice"),
        ):
            with self.subTest(flags):
                ran = subprocess.run([*common, *flags], capture_output=True, text=True, timeout=60)
                self.assertNotEqual(ran.returncode, 0)
                self.assertIn(reason, ran.stderr + ran.stdout)


if __name__ == "__main__":
    unittest.main()
