"""Versions go through a directory, with or without a connection between the daemons."""

import glob
import json
import os
import stat
import unittest
from typing import Any

import numpy as np

import dws
from tests.integration.cluster import Daemon, DaemonFailed
from tests.integration.integration_case import IntegrationCase, change, eventually


def weights(random: np.random.Generator) -> dict[str, Any]:
    return {
        "f32": random.standard_normal((700, 257), np.float32),
        "f16": random.standard_normal(70_000).astype(np.float16),
    }


class SharedDirTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(11)
        self.root = os.path.join(self.cluster.folder, "shared")

    def shared(self, *flags: str) -> tuple[str, ...]:
        return (f"--shared-dir={self.root}", *flags)

    def start_shared(self, *flags: str) -> tuple[Daemon, Daemon]:
        """A sender, and a receiver that knows it only by the directory."""
        sender = self.cluster.start_sender(0, *self.shared(*flags))
        receiver = self.cluster.start_receiver(
            "receiver-0", *self.shared("--shared-poll-ms=20", *flags), senders=False
        )
        return sender, receiver

    def rank_folder(self) -> str:
        return os.path.join(self.root, "test", "rank-00000")

    def publish(self, trainer: dws.Trainer, source: dict[str, Any], version: int) -> None:
        for array in source.values():
            change(array, self.random, 0.01)
        trainer.publish(version)

    def follow(
        self, trainer: dws.Trainer, source: Any, engine: dws.Engine, live: Any, version: int
    ) -> None:
        self.publish(trainer, source, version)
        self.assertEqual(trainer.wait(version).committed, ("receiver-0",))
        grant = self.await_version(engine, version)
        self.assert_same_weights(engine, live, source)
        self.assert_token(grant, [trainer], [source])

    def first_version(self, receiver: Daemon) -> tuple[dws.Trainer, Any, dws.Engine, Any]:
        """Returns trainer, its weights, engine and its weights, at version 1."""
        given = weights(self.random)
        trainer = self.trainer()
        source = trainer.register(given)
        engine = self.engine(receiver)
        # The receiver learns the layout from the first version.
        self.publish(trainer, source, 1)
        live = engine.attach({name: np.zeros_like(array) for name, array in given.items()})
        self.await_version(engine, 1)
        return trainer, source, engine, live

    def test_a_sender_whose_directory_fails_is_not_ready_unless_it_is_kept_so(self) -> None:
        for after in (1, 0):
            with self.subTest(after):
                with open(self.root, "w", encoding="utf-8"):
                    pass  # not a directory
                flags = self.shared(f"--folder-stale-after={after}")
                sender = self.cluster.start_sender(0, *flags, name=f"sender-{after}")
                trainer = dws.Trainer(sender.socket, "test", 0, 1)
                source = trainer.register(weights(self.random))
                self.publish(trainer, source, 1)
                age = "dws_sender_shared_seconds_failing"
                eventually(lambda: sender.metric(age) > 1.5, sender.log_tail)
                code = 503 if after else 200
                eventually(lambda: sender.readyz()[0] == code, lambda: str(sender.readyz()))
                status = json.loads(sender.page("/status"))
                self.assertEqual(status["ready"], not after)
                self.assertIn("nothing can be published to --shared-dir", status["reason"])
                os.remove(self.root)
                newest = "dws_sender_shared_newest_version"
                eventually(lambda: sender.metric(newest) == 1, sender.log_tail)
                eventually(lambda: sender.readyz()[0] == 200, lambda: str(sender.readyz()))
                trainer.close()
                sender.stop()
                os.rename(self.root, f"{self.root}-{after}")

    def test_an_engine_follows_through_restarts_of_both_daemons(self) -> None:
        sender, receiver = self.start_shared()
        trainer, source, engine, live = self.first_version(receiver)
        self.assert_same_weights(engine, live, source)
        for version in (2, 3):
            self.follow(trainer, source, engine, live, version)
        self.assertEqual(sender.metric("dws_sender_receiver_present"), 1)

        receiver.kill()
        self.publish(trainer, source, 4)
        receiver.start()
        self.await_version(engine, 4)
        self.assert_same_weights(engine, live, source)
        self.follow(trainer, source, engine, live, 5)

        # A restarted sender has no snapshot: it publishes in full, in the same stream.
        stream = trainer.stream
        trainer.close()
        sender.stop()
        sender.start()
        trainer = self.trainer(stream=stream)
        held = source
        source = trainer.register({name: array.copy() for name, array in held.items()})
        for version in (6, 7):
            self.follow(trainer, source, engine, live, version)
        self.assertEqual(engine.grant.stream, stream)

        # A restarted trainer begins a new stream, and the old one's files are removed.
        trainer.close()
        trainer = self.trainer()
        source = trainer.register({name: array.copy() for name, array in source.items()})
        for version in (1, 2):
            self.follow(trainer, source, engine, live, version)
        streams = [name for name in os.listdir(self.rank_folder()) if name.startswith("stream-")]
        self.assertEqual(len(streams), 1)

    def test_damaged_files_are_never_applied_and_are_repaired(self) -> None:
        _, receiver = self.start_shared()
        trainer, source, engine, live = self.first_version(receiver)
        receiver.stop()
        self.publish(trainer, source, 2)
        deltas: list[str] = []

        def written() -> bool:
            deltas[:] = [
                os.path.join(place, "delta")
                for place, _, names in os.walk(self.rank_folder())
                if {"delta", "manifest"} <= set(names)
            ]
            return bool(deltas)

        eventually(written, lambda: "a delta in the directory")
        with open(deltas[-1], "r+b") as file:
            file.seek(-9, os.SEEK_END)
            byte = file.read(1)
            file.seek(-9, os.SEEK_END)
            file.write(bytes([byte[0] ^ 4]))
        receiver.start()
        self.await_version(engine, 2)
        self.assert_same_weights(engine, live, source)
        self.assertIn("do not have the SHA-256", receiver.log_tail(400))
        for version in (3, 4):
            self.follow(trainer, source, engine, live, version)

    def test_receivers_join_after_the_welcome_was_lost_or_damaged(self) -> None:
        sender, receiver = self.start_shared()
        trainer, source, engine, live = self.first_version(receiver)
        for number, fault in enumerate(("lost", "damaged"), 1):
            with self.subTest(fault):
                (path,) = glob.glob(os.path.join(self.rank_folder(), "stream-*", "welcome-*"))
                if fault == "lost":
                    os.unlink(path)
                else:
                    with open(path, "r+b") as file:
                        byte = file.read(1)
                        file.seek(0)
                        file.write(bytes([byte[0] ^ 4]))
                joined = self.cluster.start_receiver(
                    f"receiver-{number}", *self.shared("--shared-poll-ms=20"), senders=False
                )
                late = self.engine(joined)
                zeros = late.attach({name: np.zeros_like(array) for name, array in source.items()})
                self.await_version(late, 1)
                self.assert_same_weights(late, zeros, source)
                self.assertEqual(joined.logged("shared_dir_trouble"), 1)
                self.assertEqual(sender.logged("shared_welcome_rewritten"), number)
        self.await_version(engine, 1)
        self.assert_same_weights(engine, live, source)

    def test_versions_are_signed_and_the_hook_commands_run(self) -> None:
        os.makedirs(self.cluster.folder, exist_ok=True)
        key = os.path.join(self.cluster.folder, "key")
        with open(key, "w") as file:
            file.write("0123456789abcdef0123456789abcdef\n")
        told = os.path.join(self.cluster.folder, "told")
        script = os.path.join(self.cluster.folder, "tell me")
        with open(script, "w") as file:
            file.write(f'#!/bin/sh\necho "$1 $DWS_SHARED_DIR $DWS_VERSION" >> {told}\nexit 3\n')
        os.chmod(script, stat.S_IRWXU)
        sender = self.cluster.start_sender(
            0, *self.shared(f"--shared-dir-key={key}", f"--shared-after-write='{script}' written")
        )
        flags = self.shared("--shared-poll-ms=20")
        unsigned = self.cluster.start_receiver("unsigned", *flags, senders=False)
        receiver = self.cluster.start_receiver(
            "receiver-0", *flags, f"--shared-dir-key={key}", senders=False
        )
        given = weights(self.random)
        trainer = self.trainer()
        source = trainer.register(given)
        self.publish(trainer, source, 1)
        engine = self.engine(receiver)
        live = engine.attach({name: np.zeros_like(array) for name, array in given.items()})
        self.await_version(engine, 1)
        self.follow(trainer, source, engine, live, 2)
        with open(told) as file:
            self.assertIn(f"written {self.root} 2\n", file.readlines())
        # The command failed each time, but no version was lost.
        self.assertIn("shared_after_write_failed", sender.log_tail(400))
        self.assertIn("has no key to check it with", unsigned.log_tail(400))

    def test_required_commands_hold_back_what_they_must_make_visible(self) -> None:
        os.makedirs(self.cluster.folder, exist_ok=True)
        written, read = (os.path.join(self.cluster.folder, name) for name in ("w", "r"))
        sender = self.cluster.start_sender(
            0,
            *self.shared(
                f"--shared-after-write=test -e {written}", "--shared-after-write-required"
            ),
        )
        receiver = self.cluster.start_receiver(
            "receiver-0",
            *self.shared(
                "--shared-poll-ms=20",
                f"--shared-before-read=test -e {read}",
                "--shared-before-read-required",
            ),
            senders=False,
        )
        given = weights(self.random)
        trainer = self.trainer()
        source = trainer.register(given)
        self.publish(trainer, source, 1)
        eventually(lambda: sender.metric("dws_sender_shared_failing") == 1, sender.log_tail)
        told = self.shared_status(sender)
        self.assertIn("after version 1, which counts as published when", told["failing"])
        self.assertNotIn("newest_version", {key for key, value in told.items() if value != "0"})
        eventually(
            lambda: "shared_before_read_failed" in receiver.log_tail(400), receiver.log_tail
        )
        self.assertEqual(receiver.logged("shared_dir_found"), 0)
        for name in (written, read):
            with open(name, "w"):
                pass
        engine = self.engine(receiver)
        live = engine.attach({name: np.zeros_like(array) for name, array in given.items()})
        self.await_version(engine, 1)
        self.assert_same_weights(engine, live, source)
        eventually(lambda: sender.metric("dws_sender_shared_failing") == 0, sender.log_tail)
        self.follow(trainer, source, engine, live, 2)

        # Versions are not read while the command fails, and all are read afterwards.
        os.unlink(read)
        eventually(
            lambda: receiver.log_tail(400).count("shared_before_read_failed") == 2,
            receiver.log_tail,
        )
        for version in (3, 4):
            self.publish(trainer, source, version)
        eventually(lambda: self.shared_status(sender)["newest_version"] == "4", sender.log_tail)
        self.assertEqual(engine.grant.version, 2)
        with open(read, "w"):
            pass
        self.await_version(engine, 4)
        self.assert_same_weights(engine, live, source)

    def test_an_unwritable_folder_is_reported_and_used_again_later(self) -> None:
        sender, receiver = self.start_shared()
        trainer, source, engine, live = self.first_version(receiver)
        told = self.shared_status(sender)
        self.assertEqual((told["folder"], told["newest_version"]), (self.root, "1"))
        self.assertEqual(told["failing"], "")

        # A lost mount leaves something else at its path.
        aside = self.rank_folder() + ".aside"
        os.rename(self.rank_folder(), aside)
        with open(self.rank_folder(), "w"):
            pass
        self.publish(trainer, source, 2)
        eventually(lambda: sender.metric("dws_sender_shared_failing") == 1, sender.log_tail)
        self.assertIn(self.rank_folder(), self.shared_status(sender)["failing"])
        self.assertEqual(engine.grant.version, 1)
        os.unlink(self.rank_folder())
        os.rename(aside, self.rank_folder())
        self.await_version(engine, 2)
        self.assert_same_weights(engine, live, source)
        eventually(lambda: sender.metric("dws_sender_shared_failing") == 0, sender.log_tail)
        self.follow(trainer, source, engine, live, 3)

    def shared_status(self, sender: Daemon) -> Any:
        return json.loads(sender.page("/status"))["sender"]["shared"]

    def test_bytes_come_from_the_directory_even_with_a_connection(self) -> None:
        sender = self.cluster.start_sender(0, *self.shared())
        receiver = self.cluster.start_receiver("receiver-0", *self.shared("--shared-poll-ms=20"))
        given = weights(self.random)
        given["large"] = self.random.integers(0, 1 << 16, 8 << 20, dtype=np.uint16)
        trainer = self.trainer()
        source = trainer.register(given)
        engine = self.engine(receiver)
        live = engine.attach({name: np.zeros_like(array) for name, array in given.items()})
        for version in (1, 2, 3):
            self.follow(trainer, source, engine, live, version)
        # The deltas are too large for an announcement.
        came = {
            (content, way): receiver.metric(
                "dws_receiver_source_bytes_total", f'content="{content}",source="{way}"'
            )
            for content, way in (
                ("delta", "inline"),
                ("delta", "shared-dir"),
                ("delta", "grpc"),
                ("full", "shared-dir"),
                ("full", "grpc"),
            )
        }
        self.assertGreater(came.pop(("delta", "shared-dir")), 2 * (64 << 10))
        self.assertEqual(
            came.pop(("full", "shared-dir")), sum(array.nbytes for array in source.values())
        )
        self.assertEqual(set(came.values()), {0})
        served = [
            sender.metric("dws_sender_served_bytes_total", f'kind="{kind}"')
            for kind in ("squash", "full")
        ]
        self.assertEqual(served, [0, 0])
        self.assertFalse(os.path.exists(os.path.join(self.rank_folder(), "receivers")))
        # Where a way is required for full tensors, the directory brings deltas only.
        required = self.cluster.start_receiver("receiver-1", *self.shared("--full-way=same-host"))
        late = self.engine(required)
        zeros = late.attach({name: np.zeros_like(array) for name, array in given.items()})
        self.await_version(late, 3)
        self.assert_same_weights(late, zeros, source)
        came = [
            required.metric("dws_receiver_source_bytes_total", f'content="full",source="{way}"')
            for way in ("same-host", "grpc")
        ]
        self.assertEqual(came, [sum(array.nbytes for array in source.values()), 0])
        with self.assertRaisesRegex(DaemonFailed, "full tensors come from a directory"):
            self.cluster.start_receiver(
                "receiver-2", *self.shared("--full-way=same-host"), senders=False
            )


if __name__ == "__main__":
    unittest.main()
