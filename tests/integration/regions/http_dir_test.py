"""A shared directory over HTTP, alone, beside a connection, and in a list of places, from a server that misbehaves."""

from __future__ import annotations

import random
import threading
import time
import unittest
from typing import Optional

from tests.integration.integration_case import eventually
from tests.integration.regions.http_files import HttpFiles, Torn
from tests.integration.regions.region_case import RegionCase


class HttpCase(RegionCase):
    def setUp(self) -> None:
        super().setUp()
        self.http = self.server(self.root)

    def server(self, folder: str) -> HttpFiles:
        server = HttpFiles(folder)
        self.addCleanup(server.stop)
        return server


class HttpDirTest(HttpCase):
    def test_receivers_follow_a_server_alone(self) -> None:
        self.begin("--shared-dir-anchor-every=3", "--retain-versions=4")
        first, live = self.joins("first", f"--shared-dir={self.http.url}")
        self.assert_at(first, live)
        for _ in range(6):
            self.publish()
            self.assert_at(first, live)
        second, its = self.joins("second", f"--shared-dir={self.http.url}")
        self.assert_at(second, its)
        receiver = self.cluster.receivers[0]
        # It cannot report, says so once, and nothing is wrong with that.
        time.sleep(5)  # two reports
        self.assertEqual(receiver.logged("shared_report_not_written"), 1)
        self.assertEqual((receiver.logged("shared_dir_trouble"), receiver.logged("source_passed_over")), (0, 0))
        self.assertFalse(self.http.paths("receivers"))
        self.assertGreater(self.came(receiver, "shared-dir", "delta"), 0)

    def test_bytes_come_over_http_beside_a_connection(self) -> None:
        self.begin()
        engine, live = self.joins("beside", f"--shared-dir={self.http.url}", senders=True)
        self.assert_at(engine, live)
        self.publish(0.3)  # too much for the announcement
        self.assert_at(engine, live)
        self.assertGreater(self.came(self.cluster.receivers[0], "shared-dir", "delta"), 0)
        self.assertEqual(self.dws_trainer.wait(self.version).committed, ("beside",))

    def test_ranges_of_a_large_file_are_asked_for_at_once(self) -> None:
        lock = threading.Lock()
        now = most = 0

        def slow(path: str, status: int, body: bytes) -> tuple[int, bytes]:
            nonlocal now, most
            if status == 206 and path.endswith("/full"):
                with lock:
                    now += 1
                    most = max(most, now)
                time.sleep(0.2)
                with lock:
                    now -= 1
            return status, body

        self.http.fault = slow
        self.begin(shapes={"large": (12_000, 1000)})
        engine, live = self.joins("engine", f"--shared-dir={self.http.url}")
        self.assert_at(engine, live)
        self.assertGreater(most, 1)

    def test_what_a_place_lacks_comes_from_the_next(self) -> None:
        """A server that is gone, one without the runs, and the right one; then the sender."""
        gone = HttpFiles(self.root)
        gone.stop()
        empty = self.server(f"{self.cluster.folder}/served")  # another folder: nothing is where it is looked for
        places = f"--shared-dir={gone.url},{empty.url},{self.http.url}"
        self.begin()
        alone, live = self.joins("alone", places)
        beside, its = self.joins("beside", places, senders=True)
        for _ in range(3):
            self.assert_at(alone, live)
            self.assert_at(beside, its)
            self.publish(0.3)
        self.assert_at(alone, live)
        self.assert_at(beside, its)
        for receiver in self.cluster.receivers:
            with self.subTest(receiver.name):
                self.assertGreater(self.came(receiver, "shared-dir-3", "delta"), 0)
                self.assertEqual(self.came(receiver, "shared-dir-2", "delta"), 0)
                self.assertEqual(self.came(receiver, "shared-dir", "delta"), 0)
        # All are wrong by now: the sender has it.
        self.http.fault = lambda path, status, body: (503, b"")
        self.publish(0.3)
        self.assert_at(beside, its)
        self.assertGreater(self.came(self.cluster.receivers[1], "grpc", "delta"), 0)
        self.http.fault = None
        self.assert_at(alone, live)

    def test_a_directory_behind_a_server_gets_the_reports(self) -> None:
        self.begin()
        engine, live = self.joins("reports", f"--shared-dir={self.http.url},{self.root}")
        self.assert_at(engine, live)
        self.assertEqual(self.dws_trainer.wait(self.version).committed, ("reports",))
        receiver = self.cluster.receivers[0]
        self.assertGreater(self.came(receiver, "shared-dir", "full"), 0)
        self.assertEqual(self.came(receiver, "shared-dir-2", "full"), 0)

    def test_places_that_cannot_be_used_are_refused_at_the_start(self) -> None:
        url = self.http.url
        for flags, words in (
            ((f"--shared-dir={url}/",), "without a slash at its end"),
            (("--shared-dir=http://10.0.0.9/dws",), "would travel unencrypted from http://10.0.0.9:80/dws"),
            (("--shared-dir=https://user@host/dws",), "with a user"),
            ((f"--shared-dir={url}/a%20b",), "neither escaped"),
            ((f"--shared-dir={','.join([url] * 9)}",), "9 places are given, at most 8 are asked"),
            ((f"--shared-dir={url}", "--shared-credentials=/x"), "it is no store"),
            *(
                ((f"--shared-dir={place}",), "expected an absolute path")
                for place in ("HTTPS://host/dws", "file:///x", "http:/x", "mnt/dws", f"{url}, {url}", f"{url},dws")
            ),
        ):
            with self.subTest(words=words), self.assertRaisesRegex(Exception, words):
                self.cluster.start_receiver("refused", *flags, senders=False)
        with self.assertRaisesRegex(Exception, "can only be read, and a sender writes"):
            self.cluster.start_sender(9, f"--shared-dir={url}")
        with self.assertRaisesRegex(Exception, "expected an absolute path"):
            self.cluster.start_sender(8, "--shared-dir=HTTPS://host/dws")


class FaultTest(HttpCase):
    """Whatever the server does, the right bytes are committed."""

    def follow(self, versions: int = 5) -> None:
        self.begin("--shared-dir-anchor-every=3")
        engine, live = self.joins("engine", f"--shared-dir={self.http.url}")
        self.assert_at(engine, live)
        for _ in range(versions - 1):
            self.publish()
            self.assert_at(engine, live)

    def test_errors_and_closed_connections(self) -> None:
        draw = random.Random(5)
        seen = {503: 0, 429: 0, 0: 0}

        def fault(_: str, status: int, body: bytes) -> Optional[tuple[int, bytes]]:
            picked = draw.choice((503, 429, 0, *[1] * 9))
            if picked not in seen:
                return status, body
            seen[picked] += 1
            return (picked, b"later") if picked else None

        self.http.fault = fault
        self.follow()
        self.assertTrue(all(seen.values()), seen)

    def test_torn_short_and_wrong_bodies(self) -> None:
        draw = random.Random(6)
        spoiled = {"torn": 0, "short": 0, "wrong": 0}

        def fault(path: str, status: int, body: bytes) -> tuple[int, bytes]:
            if len(body) < 2 or path.endswith("/") or draw.random() > 0.4:
                return status, body
            kind = draw.choice(list(spoiled))
            spoiled[kind] += 1
            at = draw.randrange(len(body))
            if kind == "torn":
                return status, Torn(body)
            if kind == "short":
                return status, body[:at]
            return status, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]

        self.http.fault = fault
        self.follow()
        self.assertGreater(sum(spoiled.values()), 3, spoiled)

    def test_a_wrong_piece_is_asked_for_past_caches(self) -> None:
        """A cache that answers each byte of a delta wrong, and right to whom asks past it."""
        self.begin()
        engine, live = self.joins("engine", f"--shared-dir={self.http.url}")
        self.assert_at(engine, live)

        def fault(path: str, status: int, body: bytes) -> tuple[int, bytes]:
            with self.http.lock:
                past = self.http.asked[-1][2].get("Cache-Control") == "no-cache"
            if not path.endswith("/delta") or past:
                return status, body
            return status, bytes(byte ^ 1 for byte in body)

        self.http.fault = fault
        self.publish()
        self.assert_at(engine, live)
        self.assertEqual(self.cluster.receivers[0].logged("shared_dir_damaged"), 0)

    def test_lists_that_are_stale_or_make_no_sense(self) -> None:
        draw = random.Random(7)
        old: dict[str, bytes] = {}
        seen = {"stale": 0, "senseless": 0}

        def fault(path: str, status: int, body: bytes) -> tuple[int, bytes]:
            if not path.endswith("/") or status != 200:
                return status, body
            kind = draw.choice(("stale", "senseless", "", ""))
            if kind == "stale" and path in old:
                seen[kind] += 1
                return status, old[path]
            old[path] = body
            if kind != "senseless":
                return status, body
            seen[kind] += 1
            senseless = (b"<html>", b"{}", b'[{"name":"../x"}]', b'[{"type":"file"}]', body[:-1], b"[" * 99, b'["a"]')
            return status, draw.choice(senseless)

        self.http.fault = fault
        self.follow()
        self.assertTrue(all(seen.values()), seen)

    def test_a_server_without_ranges_is_named_and_passed_over(self) -> None:
        self.http.ranges = False
        self.begin(shapes={"large": (3000, 1000)})
        engine, live = self.joins("engine", f"--shared-dir={self.http.url},{self.root}")
        self.assert_at(engine, live)
        self.assertIn("the server must answer ranges", self.cluster.receivers[0].log_tail(1000))

    def test_a_server_that_hangs_costs_time_once(self) -> None:
        self.begin()
        places = f"--shared-dir={self.http.url}"
        engine, live = self.joins("engine", places, senders=True)
        self.assert_at(engine, live)
        hangs = threading.Event()
        self.addCleanup(hangs.set)

        def fault(path: str, status: int, body: bytes) -> tuple[int, bytes]:
            hangs.wait(90)
            return status, body

        self.http.fault = fault
        self.publish(0.3)
        self.assert_at(engine, live)
        began = time.monotonic()
        for _ in range(3):
            self.publish(0.3)
            self.assert_at(engine, live)
        self.assertLess(time.monotonic() - began, 15)  # an attempt at the server takes that long
        receiver = self.cluster.receivers[0]
        self.assertGreater(self.came(receiver, "grpc", "delta"), 0)
        began = time.monotonic()
        receiver.stop()
        self.assertLess(time.monotonic() - began, 8)

    def test_a_manifest_that_grows_is_read_again(self) -> None:
        """A first version of digests only: its receiver needs full tensors, which come later, by a report."""
        self.begin("--shared-dir-first=base")
        engine, live = self.joins("engine", f"--shared-dir={self.http.url},{self.root}")
        self.assert_at(engine, live)
        eventually(lambda: bool(self.files("full")), lambda: str(self.files("")))


if __name__ == "__main__":
    unittest.main()
