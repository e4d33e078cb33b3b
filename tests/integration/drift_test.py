"""Memory that changes without a commit: the engine's, found by the scrub, and the sender's
snapshot, found because a receiver refuses the resulting delta."""

from __future__ import annotations

import unittest
import urllib.error
import urllib.request

from tests.integration.admin_case import AdminCase, eventually

MAPPING_BYTES_MAX = 1 << 30  # skips a sanitizer's mappings, which are larger


def flip_own_memory(pid: int, pattern: bytes) -> int:
    """Flips a bit after each `pattern` in the process's private memory and its snapshot; returns how many."""
    places = []
    with open(f"/proc/{pid}/maps") as maps:
        own = (" rw-p ", "memfd:dws-snapshot")
        ranges = [line.split() for line in maps if any(kind in line for kind in own)]
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for fields in ranges:
            first, end = (int(part, 16) for part in fields[0].split("-"))
            if end - first > MAPPING_BYTES_MAX:
                continue
            try:
                memory.seek(first)
                content = memory.read(end - first)
            except OSError:
                continue  # a guard page
            at = content.find(pattern)
            while at >= 0:
                places.append(first + at + len(pattern))
                at = content.find(pattern, at + 1)
        for place in places:
            memory.seek(place)
            (byte,) = memory.read(1)
            memory.seek(place)
            memory.write(bytes([byte ^ 4]))
    return len(places)


class ScrubTest(AdminCase):
    def start(self, ranks: int = 1, receivers: int = 1, flags: tuple[str, ...] = ()) -> None:
        super().start(ranks, receivers, ("--scrub-rate=16MiB", "--scrub-pass=1", *flags))

    def test_the_scrub_finds_and_repairs_a_flipped_bit(self) -> None:
        self.begin()
        self.flip("b", 7)
        eventually(lambda: self.status().receiver.repairs == 2, lambda: str(self.status()))
        self.await_ready()
        self.assert_same_sha()
        self.assertLess(self.status().receiver.last_commit.fetched_bytes, 1000)  # only that slice
        self.assertEqual(self.found_by_scrub(), 1)

    def test_the_scrub_reports_no_drift_while_versions_arrive_at_full_speed(self) -> None:
        self.begin()
        for _ in range(40):
            self.publish()
            self.dws_trainer.wait(self.version, timeout=60)
        eventually(
            lambda: self.status().receiver.scrub_passes > 3, lambda: str(self.status().receiver)
        )
        self.assertEqual(self.found_by_scrub(), 0)
        self.assertEqual(self.status().receiver.repairs, 1)  # the first version is in full

    def test_readyz_reports_drift_that_cannot_be_repaired(self) -> None:
        self.begin()
        self.cluster.senders[0].kill()
        self.flip("a", 12345)
        receiver = self.cluster.receivers[0]
        eventually(lambda: "paused" in self.status().reason, lambda: str(self.status()))
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{receiver.ports['http']}/readyz", timeout=10)
        with caught.exception as reply:
            self.assertEqual(reply.code, 503)
            self.assertIn("first of tensor 'a'", reply.read().decode())

    def found_by_scrub(self) -> int:
        name, label = "dws_receiver_digest_mismatches_total", 'source="scrub"'
        return int(self.cluster.receivers[0].metric(name, label))


class SnapshotTest(AdminCase):
    def test_a_flipped_bit_in_the_senders_snapshot_is_repaired_by_the_next_version(self) -> None:
        self.begin()
        sender = self.cluster.senders[0]
        assert sender.process is not None
        head = self.source["a"].tobytes()[:64]
        self.assertGreater(flip_own_memory(sender.process.pid, head), 0)  # or more
        self.publish()  # its steps start from the flipped bit
        found = "dws_sender_verify_mismatches_total"
        eventually(lambda: sender.metric(found) == 1, lambda: self.cluster.logs())
        with self.dws_engine.running(60) as grant:
            self.assertEqual(grant.version, 1)
        self.publish()
        self.await_version(self.dws_engine, 3)
        self.assert_same_sha()
        self.await_counted(3)
        repairs = self.status().receiver.repairs
        self.publish()
        self.await_version(self.dws_engine, 4)
        self.assert_same_sha()
        self.await_counted(4)
        self.assertEqual(self.status().receiver.repairs, repairs)  # a delta again
        self.assertEqual(sender.metric(found), 1)


if __name__ == "__main__":
    unittest.main()
