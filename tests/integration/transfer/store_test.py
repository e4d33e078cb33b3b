"""Senders and receivers that meet in an S3-compatible store, which checks signatures and misbehaves."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import unittest
from typing import Any, Mapping, Optional

import numpy as np

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually
from tests.integration.transfer.s3_store import BUCKET, KEY_ID, REGION, SECRET, Refused, Request, S3Store

SHAPES = {"a": (1500, 701), "b": (33,), "c": (900, 400)}
ROOT = f"s3://{BUCKET}/runs/one + 1%2F"


class StoreCase(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(31)
        self.store = S3Store()
        self.addCleanup(self.store.stop)
        self.keys = os.path.join(self.cluster.folder, "keys")
        self.write_keys()
        self.flags: tuple[str, ...] = (
            f"--shared-dir={ROOT}", f"--shared-endpoint={self.store.endpoint}", f"--shared-region={REGION}",
            f"--shared-credentials={self.keys}",
        )  # fmt: skip
        self.source: dict[str, Any] = {}
        self.version = 0

    def write_keys(self) -> None:
        with open(f"{self.keys}.new", "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(f"[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {self.store.secret}\n")
        os.rename(f"{self.keys}.new", self.keys)

    def sender_starts(self, *flags: str) -> Daemon:
        return self.cluster.start_sender(0, *self.flags, *flags)

    def register(self, shapes: Mapping[str, Any] = SHAPES, stream: Optional[dws.Stream] = None) -> None:
        weights = self.source or {n: self.random.standard_normal(s, np.float32) for n, s in shapes.items()}
        self.dws_trainer = self.trainer(stream=stream)
        self.source = self.dws_trainer.register({n: array.copy() for n, array in weights.items()})

    def publish(self, share: float = 0.01) -> None:
        self.version += 1
        for array in self.source.values():
            change(array, self.random, share)
        self.dws_trainer.publish(self.version)

    def joins(self, name: str, *flags: str, senders: bool = False) -> tuple[dws.Engine, Any]:
        receiver = self.cluster.start_receiver(name, *self.flags, *flags, senders=senders)
        engine = self.engine(receiver)
        return engine, engine.attach({n: np.zeros_like(array) for n, array in self.source.items()})

    def assert_at(self, engine: dws.Engine, live: Any) -> None:
        grant = self.await_version(engine, self.version)
        self.assert_same_weights(engine, live, self.source)
        self.assert_token(grant, [self.dws_trainer], [self.source])


class StoreTest(StoreCase):
    def test_receivers_follow_the_store_alone(self) -> None:
        sender = self.sender_starts("--shared-dir-anchor-every=3", "--retain-versions=4")
        self.register()
        self.publish()
        first, live = self.joins("first", "--shared-poll-ms=20")
        self.assert_at(first, live)
        for _ in range(8):
            self.publish()
            self.assert_at(first, live)
        self.assertEqual(self.dws_trainer.wait(self.version).committed, ("first",))
        self.assertLess(self.store.connections * 5, len(self.store.requests))
        second, its = self.joins("second", "--shared-poll-ms=20")
        self.assert_at(second, its)
        self.assertGreater(sender.metric("dws_sender_shared_versions_total", 'kind="anchor"'), 1)
        # Versions before an anchor that nobody needs are removed.
        eventually(lambda: len(self.store.keys("/manifest")) < self.version, lambda: str(self.store.keys()))
        self.assertFalse(self.store.uploads)
        for daemon in (sender, self.cluster.receivers[0]):
            self.assertGreater(daemon.metric("dws_store_requests_total", 'outcome="done"'), 10)
            self.assertEqual(daemon.metric("dws_store_requests_total", 'outcome="refused"'), 0)
        sent = sender.metric("dws_store_bytes_total", 'direction="up"')
        self.assertGreaterEqual(sent, sender.metric("dws_sender_shared_bytes_total"))
        self.assertGreater(self.cluster.receivers[0].metric("dws_store_bytes_total", 'direction="down"'), 1000)
        # A new incarnation takes the place of the old one.
        old = self.store.keys()
        self.dws_trainer.close()
        self.register()
        self.publish()
        self.assert_at(first, live)
        eventually(lambda: not set(old) & set(self.store.keys("/manifest")), lambda: str(self.store.keys()))

    def test_a_receiver_that_is_far_behind_reads_one_anchor_and_the_deltas_after_it(self) -> None:
        """--shared-dir-anchor-every bounds them, and --retain-versions those that are read without an anchor."""
        every = 3
        sender = self.sender_starts(f"--shared-dir-anchor-every={every}", "--retain-versions=4")
        self.register()
        self.publish()
        engine, live = self.joins("engine", "--shared-poll-ms=20")
        self.assert_at(engine, live)
        engine.close()
        self.cluster.receivers[0].stop()
        for _ in range(5 * every + 1):
            self.publish()
            eventually(
                lambda: sender.metric("dws_sender_shared_newest_version") == self.version, lambda: sender.page("/status")
            )
        self.store.requests.clear()
        again = self.cluster.start_receiver("engine", *self.flags, "--shared-poll-ms=20", senders=False, name="again")
        engine = self.engine(again)
        live = engine.attach(live)
        self.assert_at(engine, live)
        read = {key for method, key in self.store.requests if method == "GET"}
        self.assertEqual(len([key for key in read if key.endswith("/full")]), 1, read)
        self.assertLessEqual(len([key for key in read if key.endswith("/delta")]), every, read)

    def test_large_tensors_are_uploaded_and_read_in_parts(self) -> None:
        self.sender_starts()
        self.register({"large": (10_000, 1_000)})
        self.publish()
        engine, live = self.joins("engine")
        self.assert_at(engine, live)
        self.assertIn(("POST", self.store.keys("/full$")[0]), self.store.requests)
        self.assertFalse(self.store.uploads)

    def test_bytes_come_from_the_store_beside_a_connection(self) -> None:
        self.sender_starts()
        self.register()
        self.publish()
        engine, live = self.joins("beside", senders=True)
        self.assert_at(engine, live)
        self.publish(0.3)  # too much for the announcement
        self.assert_at(engine, live)
        took = self.cluster.receivers[0].metric("dws_receiver_source_bytes_total", 'content="delta",source="shared-dir"')
        self.assertGreater(took, 0)
        self.assertGreaterEqual(self.store.answered_bytes, took)

    def test_a_path_that_is_no_store_and_missing_keys_are_refused_at_the_start(self) -> None:
        for flags, words in (
            ((*self.flags[1:], "--shared-dir=s3://Weights/x"), "expected s3://BUCKET/PREFIX"),
            ((*self.flags[1:], f"--shared-dir={self.cluster.folder}/x"), "it is no store"),
            ((*self.flags[:3], f"--shared-credentials={self.keys}.none"), "No such file"),
            ((*self.flags[:1], "--shared-endpoint=minio:9000"), "expected the URL of an HTTP server"),
            (self.flags[:3], "there are no keys for the store"),
        ):
            with self.subTest(words=words), self.assertRaisesRegex(Exception, words):
                self.cluster.start_sender(9, *flags)


class FaultTest(StoreCase):
    def follow(self, versions: int = 6) -> None:
        self.sender_starts("--shared-dir-anchor-every=3")
        self.register()
        self.publish()
        engine, live = self.joins("engine", "--shared-poll-ms=20")
        self.assert_at(engine, live)
        for _ in range(versions - 1):
            self.publish()
            self.assert_at(engine, live)

    def test_errors_of_an_overloaded_store_cost_time_only(self) -> None:
        draw = random.Random(5)
        seen = {"503": 0, "500": 0}

        def fault(_: Request) -> Optional[object]:
            status = draw.choice(("503", "500", "", "", "", "", "", ""))
            if not status:
                return None
            seen[status] += 1
            return Refused(int(status), "SlowDown" if status == "503" else "InternalError")

        self.store.fault = fault
        self.follow()
        self.assertTrue(all(seen.values()), seen)
        receiver = self.cluster.receivers[0]
        self.assertGreater(receiver.metric("dws_store_requests_total", 'outcome="failed"'), 0)
        self.assertGreater(receiver.metric("dws_store_retries_total"), 0)
        self.assertLess(receiver.metric("dws_store_seconds_since_failure"), 600)
        self.assertRegex(receiver.page("/status"), "SlowDown|InternalError")

    def test_connections_that_the_store_ends_cost_nothing(self) -> None:
        draw = random.Random(8)
        self.store.closes = lambda: draw.random() < 0.3
        self.follow()
        self.assertGreater(self.store.connections, 10)

    def test_wrong_and_torn_bytes_are_never_used(self) -> None:
        draw = random.Random(6)
        spoiled = []

        def fault(request: Request) -> Optional[object]:
            if request.method != "GET" or not request.key or draw.random() > 0.2:
                return None
            spoiled.append(request.key)

            def spoil(answer: bytes) -> bytes:
                at = draw.randrange(len(answer))
                if draw.random() < 0.5:
                    return answer[:at]
                return answer[:at] + bytes([answer[at] ^ 1]) + answer[at + 1 :]

            return spoil

        self.store.fault = fault
        self.follow()
        self.assertGreater(len(spoiled), 3)

    def test_a_stale_listing_and_a_slow_store_are_waited_for(self) -> None:
        old: dict[str, bytes] = {}
        draw = random.Random(7)
        stale = 0

        def fault(request: Request) -> Optional[object]:
            nonlocal stale
            time.sleep(0.01)
            if request.method != "GET" or request.key:
                return None
            answer = old.get(str(request.query))
            if answer is not None and draw.random() < 0.5:
                stale += 1
                return lambda _: answer

            def keep(fresh: bytes) -> bytes:
                old[str(request.query)] = fresh
                return fresh

            return keep

        self.store.fault = fault
        self.follow(4)
        self.assertGreater(stale, 3)

    def test_expired_keys_are_named_and_replaced_without_a_restart(self) -> None:
        sender = self.sender_starts("--folder-stale-after=1")
        self.register()
        self.publish()
        engine, live = self.joins("engine", "--shared-poll-ms=20")
        self.assert_at(engine, live)
        self.store.secret = "rotated"
        self.publish()
        eventually(lambda: "SignatureDoesNotMatch" in sender.readyz()[1], lambda: str(sender.readyz()))
        self.assertIn("look at the endpoint, the region, the bucket, the credentials", sender.readyz()[1])
        self.assertNotIn(self.store.secret, sender.log_tail(1000))
        self.assertNotIn(SECRET, sender.log_tail(1000))
        self.write_keys()
        self.assert_at(engine, live)
        eventually(lambda: sender.readyz()[0] == 200, lambda: str(sender.readyz()))

    def test_a_refusal_is_no_damage_and_removes_nothing(self) -> None:
        """Keys that are gone, a token that has ended, a gateway's own 404: the sender and a receiver wait, and go on."""
        sender = self.sender_starts("--shared-dir-anchor-every=2", "--retain-versions=3")
        self.register()
        self.publish()
        engine, live = self.joins("engine", "--shared-poll-ms=20")
        self.assert_at(engine, live)
        before = self.store.keys("/manifest")

        def refuse(status: int, code: str) -> None:
            self.store.fault = lambda request: Refused(status, code)

        for trouble, words in (
            (lambda: os.rename(self.keys, f"{self.keys}.away"), "No such file"),
            (lambda: refuse(400, "ExpiredToken"), "ExpiredToken"),
            (lambda: refuse(404, "NoSuchBucket"), "NoSuchBucket"),
            (lambda: refuse(301, "PermanentRedirect"), "PermanentRedirect"),
        ):
            trouble()
            self.publish()
            eventually(lambda: words in sender.page("/status"), lambda: sender.page("/status"))
            time.sleep(0.3)
            self.store.fault = None
            if os.path.exists(f"{self.keys}.away"):
                os.rename(f"{self.keys}.away", self.keys)
            self.assertLessEqual(set(before), set(self.store.keys("/manifest")))
            self.assert_at(engine, live)
            before = self.store.keys("/manifest")[-1:]
        receiver = self.cluster.receivers[0]
        self.assertEqual((receiver.logged("shared_dir_damaged"), sender.logged("shared_repair")), (0, 0))

    def test_daemons_end_in_time_while_the_store_hangs(self) -> None:
        sender = self.sender_starts("--stop-timeout=2")  # so long it tries to write what was published
        self.register()
        self.publish()
        engine, live = self.joins("engine", "--shared-poll-ms=20")
        self.assert_at(engine, live)
        hangs = threading.Event()
        self.addCleanup(hangs.set)

        def fault(_: Request) -> Optional[object]:
            hangs.wait(60)
            return None

        self.store.fault = fault
        self.publish()
        time.sleep(0.5)
        engine.close()
        for daemon in (self.cluster.receivers[0], sender):
            started = time.monotonic()
            daemon.stop()
            self.assertLess(time.monotonic() - started, 8)

    def test_a_sender_killed_between_any_two_writes_leaves_nothing_that_is_wrong(self) -> None:
        """Each write of an anchor in turn, before and after it is done."""
        shapes = {"large": (4_500, 1_000)}  # two parts
        sender = self.sender_starts("--shared-dir-anchor-every=1")
        self.register(shapes)
        self.publish()
        engine, live = self.joins("engine", "--shared-poll-ms=20")
        self.assert_at(engine, live)
        stream = self.dws_trainer.stream
        writes = 0
        killed = 0
        for number in range(1, 40):
            for after in (False, True):
                count = 0
                died = threading.Event()

                def fault(request: Request) -> Optional[object]:
                    nonlocal count
                    if request.method not in ("PUT", "POST") or "/receivers/" in request.key or died.is_set():
                        return None
                    count += 1
                    if count < number:
                        return None
                    died.set()
                    if not after:
                        sender.kill()
                        return Refused(500, "InternalError")

                    def kill(answer: bytes) -> bytes:
                        sender.kill()
                        return answer

                    return kill

                self.store.fault = fault
                with contextlib.suppress(dws.DwsError):  # it may be killed before publish has ended
                    self.publish()
                if not died.wait(3):  # fewer writes than that; full tensors come after the delta
                    self.store.fault = None
                    self.assert_at(engine, live)
                    writes = number
                    break
                eventually(lambda: sender.process is None, sender.log_tail)
                self.store.fault = None
                killed += 1
                self.dws_trainer.close()
                sender.start()
                self.register(stream=stream)
                self.publish()
                self.assert_at(engine, live)
                self.assertFalse(self.store.uploads, "an upload of the killed sender is still there")
            if writes:
                break
        self.assertGreaterEqual(killed, 8)


if __name__ == "__main__":
    unittest.main()
