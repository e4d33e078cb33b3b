"""Disks that are full, read-only or fail, and ledgers that are damaged: a daemon continues or refuses with the exact
reason, and no engine is ever released with wrong bytes."""

from __future__ import annotations

import os
import shutil
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.cluster import Daemon, DaemonFailed
from tests.integration.integration_case import IntegrationCase, change, eventually
from tests.integration.faults.small_disk import READ_ONLY_DISK, SMALL_DISK, can_mount, fill, on_disk

SHAPES = {"a": (900, 700), "b": (33,)}
VERSIONS_MAX = 500  # far more than the rest of a page, which a full disk still accepts


class StorageCase(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(17)
        self.version = 0

    def begin(self) -> None:
        """Starts all and commits version 1."""
        self.start()
        self.sender, self.receiver = self.cluster.daemons[1], self.cluster.daemons[0]
        self.dws_trainer = self.trainer()
        weights = {n: self.random.standard_normal(s, np.float32) for n, s in SHAPES.items()}
        self.source = self.dws_trainer.register(weights)
        self.dws_engine = self.engine()
        self.live = self.dws_engine.attach({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
        self.publish()
        self.check()

    def publish(self) -> None:
        self.version += 1
        for array in self.source.values():
            change(array, self.random, 0.2)
        self.dws_trainer.publish(self.version)

    def begin_another_stream(self) -> None:
        """Does what a trainer does after its sender has lost its version numbers."""
        for _ in range(2):  # twice, because its registration stays usable for another attempt
            with self.assertRaisesRegex(dws.StateError, r"ledger was lost.*dws\.Stream\.new\(\)"):
                self.dws_trainer.reconnect()
        weights, lost = self.source, self.dws_trainer
        lost.close()
        self.dws_trainer = self.trainer(stream=dws.Stream.new())
        self.assertGreater(self.dws_trainer.stream.incarnation, lost.stream.incarnation)
        self.source = self.dws_trainer.register(weights)
        self.version = 0

    def check(self) -> None:
        """Checks that the engine has the newest version and the trainer's exact bits."""
        self.await_version(self.dws_engine, self.version)
        self.assert_same_weights(self.dws_engine, self.live, self.source)

    def has(self, version: int) -> bool:
        grant = self.dws_engine.grant
        return grant is not None and grant.version == version

    def check_stays(self, before: Any, version: int) -> None:
        """Checks that the engine still runs `version`, with the bits of `before`."""
        self.assertEqual(self.dws_engine.wait_ready(0).version, version)
        self.assert_same_weights(self.dws_engine, self.live, before)

    def state(self, daemon: Daemon) -> str:
        return os.path.join(daemon.folder, "state")

    def ledger(self, daemon: Daemon) -> str:
        (name,) = (n for n in os.listdir(self.state(daemon)) if n.endswith(".ledger"))
        return os.path.join(self.state(daemon), name)


@unittest.skipUnless(can_mount(), "no mount namespaces for this user here")
class DiskTest(StorageCase):
    def restart_on(self, daemon: Daemon, disk: str) -> None:
        daemon.stop()
        state = self.state(daemon)
        shutil.rmtree(state)
        os.mkdir(state)
        daemon.command = on_disk(disk, state, daemon.command)
        daemon.start()

    def test_a_receiver_with_a_full_disk_commits_nothing_until_it_has_room(self) -> None:
        self.begin()
        self.restart_on(self.receiver, SMALL_DISK)
        self.publish()
        self.check()
        filler = fill(self.receiver, self.state(self.receiver))
        reason = "No space left on device"
        for _ in range(VERSIONS_MAX):
            before = {name: array.copy() for name, array in self.source.items()}
            self.publish()
            eventually(
                lambda: reason in self.receiver.page("/status") or self.has(self.version),
                lambda: self.receiver.page("/status"),
            )
            if not self.has(self.version):
                break
        # The receiver cannot record its intent, so the engine keeps its version.
        self.check_stays(before, self.version - 1)
        os.unlink(filler)
        self.check()
        self.publish()
        self.check()

    def test_a_sender_with_a_full_disk_announces_nothing_until_it_has_room(self) -> None:
        self.begin()
        self.restart_on(self.sender, SMALL_DISK)
        self.dws_trainer.reconnect()
        self.publish()
        self.check()
        filler = fill(self.sender, self.state(self.sender))
        before = self.source
        with self.assertRaisesRegex(dws.DwsError, "No space left on device"):
            for _ in range(VERSIONS_MAX):
                before = {name: array.copy() for name, array in self.source.items()}
                self.publish()
        # A version that is not recorded is not announced; after two of them the trainer has to wait.
        self.version -= 1
        grant = self.dws_engine.wait_ready(0)
        self.assertLess(grant.version, self.version)
        os.unlink(filler)
        self.await_version(self.dws_engine, self.version)
        self.check_stays(before, self.version)
        self.publish()
        self.check()

    def test_a_read_only_disk_is_refused_at_start(self) -> None:
        self.begin()
        for daemon in (self.receiver, self.sender):
            with self.assertRaisesRegex(DaemonFailed, "Read-only file system"):
                self.restart_on(daemon, READ_ONLY_DISK)
            self.check_stays(self.source, self.version)


class FsyncTest(StorageCase):
    def setUp(self) -> None:
        super().setUp()
        self.use_failpoints("SENDER", "RECEIVER")

    def restart_failing(self, daemon: Daemon) -> None:
        daemon.stop()
        os.environ["DWS_FAILPOINT"] = "ledger.append.before_sync:error@3"
        daemon.start()
        os.environ.pop("DWS_FAILPOINT")

    def check_goes_on(self, daemon: Daemon) -> None:
        for _ in range(6):
            self.publish()
            self.check()
        self.assertIn("failpoint ledger.append.before_sync", daemon.log_tail(1000))

    def test_a_receiver_recovers_after_its_disk_failed_once(self) -> None:
        self.begin()
        self.restart_failing(self.receiver)
        self.check_goes_on(self.receiver)

    def test_a_sender_recovers_after_its_disk_failed_once(self) -> None:
        self.begin()
        self.restart_failing(self.sender)
        self.dws_trainer.reconnect()
        self.check_goes_on(self.sender)


class LedgerCase(StorageCase):
    def damage(self, daemon: Daemon, keep: int, flip: int = -1) -> None:
        """Ends the daemon as a power cut does; cuts the last `-keep` bytes off its ledger."""
        daemon.kill()
        with open(self.ledger(daemon), "r+b") as file:
            content = bytearray(file.read()[:keep] if keep < 0 else file.read())
            if flip >= 0:
                content[flip] ^= 0x10
            file.seek(0)
            file.truncate()
            file.write(content)


class LedgerTest(LedgerCase):
    def test_a_torn_tail_of_a_ledger_is_cut_off(self) -> None:
        self.begin()
        for _ in range(3):
            self.publish()
            self.check()
        self.damage(self.receiver, -5)
        self.receiver.start()
        self.publish()
        self.check()
        self.damage(self.sender, -5)
        self.sender.start()
        self.dws_trainer.reconnect()
        self.version = max(self.version, self.dws_trainer.last_version)
        self.publish()
        self.check()

    def test_a_ledger_with_a_flipped_byte_is_refused_and_named(self) -> None:
        self.begin()
        for _ in range(3):
            self.publish()
            self.check()
        for daemon in (self.receiver, self.sender):
            size = os.path.getsize(self.ledger(daemon))
            self.damage(daemon, 0, size // 2)
            with self.assertRaises(DaemonFailed) as refused:
                daemon.start()
            self.assertIn(self.ledger(daemon), str(refused.exception))
            self.assertRegex(str(refused.exception), r"offset \d+|byte \d+")
            self.check_stays(self.source, self.version)
            # The operator removes it.
            os.unlink(self.ledger(daemon))
            daemon.start()
            if daemon is self.sender:
                self.begin_another_stream()
            self.publish()
            self.check()


class QuarantineTest(LedgerCase):
    """The same damage, with --quarantine-damaged-ledger: the daemons continue and still refuse old trainers."""

    def flip(self, daemon: Daemon) -> bytes:
        """Ends the daemon and flips a byte of its ledger; returns the damaged content."""
        self.damage(daemon, 0, os.path.getsize(self.ledger(daemon)) // 2)
        with open(self.ledger(daemon), "rb") as file:
            return file.read()

    def start_quarantining(self, daemon: Daemon, damaged: bytes) -> None:
        with self.assertRaisesRegex(DaemonFailed, "--quarantine-damaged-ledger"):
            daemon.start()
        daemon.command.append("--quarantine-damaged-ledger")
        daemon.start()
        with open(self.ledger(daemon) + ".damaged-1", "rb") as file:
            self.assertEqual(file.read(), damaged)
        self.assertIn("ledger_quarantined", daemon.log_tail(1000))

    def test_a_receiver_proves_memory_again_and_refuses_the_old_trainer(self) -> None:
        self.begin()
        for _ in range(3):
            self.publish()
            self.check()
        self.start_quarantining(self.receiver, self.flip(self.receiver))
        self.publish()
        self.check()
        # A sender that forgot everything serves an old trainer: the receiver still refuses it.
        stream = self.dws_trainer.stream
        wanted = {name: array.copy() for name, array in self.source.items()}
        self.dws_trainer.close()
        self.sender.stop()
        shutil.rmtree(self.state(self.sender))
        self.sender.start()
        old = self.trainer(stream=dws.Stream(stream.incarnation - 1, 77))
        old.register({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
        old.publish(self.version + 5)
        eventually(
            lambda: "an old trainer is running again" in self.receiver.log_tail(1000),
            lambda: self.receiver.log_tail(50),
        )
        self.check_stays(wanted, self.version)

    def test_a_sender_refuses_the_old_trainer_and_serves_its_own(self) -> None:
        self.begin()
        for _ in range(3):
            self.publish()
            self.check()
        stream = self.dws_trainer.stream
        self.start_quarantining(self.sender, self.flip(self.sender))
        old = self.trainer(stream=dws.Stream(stream.incarnation - 1, 77))
        with self.assertRaisesRegex(dws.DwsError, "was seen already"):
            old.register({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
        # A process of the job that returns with its old stream would count from 1 again.
        again = self.trainer(stream=stream)
        with self.assertRaisesRegex(dws.StateError, "ledger was lost"):
            again.register({n: np.zeros(s, np.float32) for n, s in SHAPES.items()})
        self.begin_another_stream()
        self.publish()
        self.check()

    def test_with_both_copies_damaged_no_daemon_starts(self) -> None:
        self.begin()
        for _ in range(3):
            self.publish()
            self.check()
        for daemon in (self.receiver, self.sender):
            self.flip(daemon)
            fence = self.ledger(daemon).replace(".ledger", ".fence")
            with open(fence, "r+b") as file:
                file.seek(20)
                file.write(b"?")
            daemon.command.append("--quarantine-damaged-ledger")
            with self.assertRaisesRegex(DaemonFailed, "stop every old trainer") as refused:
                daemon.start()
            self.assertIn(fence, str(refused.exception))
            self.check_stays(self.source, self.version)


if __name__ == "__main__":
    unittest.main()
