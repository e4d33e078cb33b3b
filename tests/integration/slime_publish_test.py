"""A sender publishes slime's version folders. The reader that applies them to a copy of the base is
independent of DWS: Python, numpy, zstandard, xxhash. Then a receiver follows the same folder.
"""

import hashlib
import json
import os
import shutil
import struct
import unittest
import zlib
from typing import Any, Callable, Optional

import numpy as np
import xxhash
import zstandard

import dws
from tests.integration.cluster import Daemon
from tests.integration.integration_case import IntegrationCase, change, eventually

INDEX = "model.safetensors.index.json"
DTYPES = {"F32": np.float32, "F16": np.float16, "U8": np.uint8}
# Types that numpy lacks, as bits, are read too.
READ_AS = {**DTYPES, "BF16": np.uint16, "F8_E4M3": np.uint8, "I32": np.int32}
CHECKSUMS: dict[str, Callable[[bytes], str]] = {
    "xxh3-128": xxhash.xxh3_128_hexdigest,
    "adler32": lambda content: f"{zlib.adler32(content):08x}",
}


def read_file(path: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The metadata and the tensors of a safetensors file; U8 lists as bytes."""
    with open(path, "rb") as file:
        content = file.read()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(content[8 + size + begin : 8 + size + end], READ_AS[entry["dtype"]])
        tensors[name] = array.reshape(entry["shape"]).copy()
    return metadata, tensors


def write_checkpoint(folder: str, weights: dict[str, Any], types: Optional[dict[str, str]] = None) -> None:
    """`types`: those of all tensors, by name; without them numpy's."""
    names = {np.dtype(kind): name for name, kind in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, weight in weights.items():
        header[name] = {
            "dtype": types[name] if types else names[weight.dtype],
            "shape": list(weight.shape),
            "data_offsets": [end, end + weight.nbytes],
        }
        end += weight.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for weight in weights.values():
            file.write(weight.tobytes())


class SlimeReader:
    """An engine's reader as in slime: applies one version after the other in place."""

    def __init__(self, folder: str, weights: dict[str, Any]) -> None:
        self.folder = folder
        self.weights = {name: weight.copy() for name, weight in weights.items()}
        self.version = 0
        self.deltas = 0

    def check_files(self, version: int) -> tuple[dict[str, Any], list[str]]:
        """Checks that the folder has what its index names, and nothing else. Returns the index and the shards."""
        folder = os.path.join(self.folder, f"weight_v{version:06d}")
        with open(os.path.join(folder, INDEX)) as file:
            index = json.load(file)
        metadata: dict[str, str] = index["metadata"]
        assert all(isinstance(value, str) for value in metadata.values()), metadata
        assert metadata["version"] == f"{version:06d}", metadata
        shards = sorted(set(index["weight_map"].values()))
        count = len(shards)
        assert shards == [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(count)], shards
        # Readers remove what a full version lacks.
        beside = set() if "delta_encoding" in metadata else {"config.json"}
        assert set(os.listdir(folder)) == {INDEX, *shards, *beside}
        return index, shards

    def apply(self, version: int) -> dict[str, Any]:
        """Returns the metadata of its index."""
        index, shards = self.check_files(version)
        metadata: dict[str, str] = index["metadata"]
        folder = os.path.join(self.folder, f"weight_v{version:06d}")
        for shard in shards:
            digests, tensors = read_file(os.path.join(folder, shard))
            named = {name for name, file in index["weight_map"].items() if file == shard}
            assert set(tensors) == named
            for name, entry in tensors.items():
                if "delta_encoding" in metadata:
                    self._apply(metadata, name, entry, digests[name])
                else:
                    assert entry.dtype == self.weights[name].dtype
                    assert entry.shape == self.weights[name].shape
                    self.weights[name] = entry
        if "delta_encoding" in metadata:
            assert metadata["base_version"] == f"{self.version:06d}", (metadata, self.version)
            self.deltas += 1
        else:
            assert set(index["weight_map"]) == set(self.weights)
        self.version = version
        return metadata

    def _apply(self, metadata: dict[str, str], name: str, entry: Any, digest: str) -> None:
        assert metadata["compression_format"] == "zstd"
        frame = entry.tobytes()
        payload = zstandard.ZstdDecompressor().decompress(frame)  # needs the size in the frame
        assert zstandard.frame_content_size(frame) == len(payload)
        held = self.weights[name]
        after = np.frombuffer(held.tobytes(), np.uint8).copy()
        if metadata["delta_encoding"] == "xor":
            after ^= np.frombuffer(payload, np.uint8)
        else:
            (count,) = struct.unpack_from("<I", payload)
            assert len(payload) == 4 + 5 * count
            positions = np.frombuffer(payload, "<u4", count, 4)
            after[positions] = np.frombuffer(payload, np.uint8, count, 4 + 4 * count)
        assert CHECKSUMS[metadata["checksum_format"]](after.tobytes()) == digest, name
        self.weights[name] = np.frombuffer(after.tobytes(), held.dtype).reshape(held.shape).copy()


class SlimePublishTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.random = np.random.default_rng(17)
        self.versions = os.path.join(self.cluster.folder, "versions")
        self.base = os.path.join(self.cluster.folder, "base")
        self.given: dict[str, Any] = {
            "layer.0.w": self.random.standard_normal((300, 257), np.float32),
            "layer.1.w": self.random.standard_normal(70_000).astype(np.float16),
            "layer.1.untouched": self.random.standard_normal(100, np.float32),
        }
        write_checkpoint(self.base, self.given)
        os.makedirs(os.path.join(self.base, "folders stay out"))
        for name in ("config.json", ".hidden"):
            with open(os.path.join(self.base, name), "w", encoding="utf-8") as file:
                file.write(name)

    def sender(self, *flags: str) -> Daemon:
        return self.cluster.start_sender(
            0, f"--slime-dir={self.versions}", f"--slime-checkpoint={self.base}", *flags
        )

    def publish(self, trainer: dws.Trainer, source: dict[str, Any], version: int) -> None:
        for name, array in source.items():
            if "untouched" not in name:
                change(array, self.random, 0.01)
        trainer.publish(version)

    def await_folder(self, version: int) -> None:
        path = os.path.join(self.versions, f"weight_v{version:06d}", INDEX)
        eventually(lambda: os.path.exists(path), lambda: f"no {path}: {self.cluster.logs()}")

    def assert_same(self, held: dict[str, Any], source: dict[str, Any]) -> None:
        self.assertEqual(set(held), set(source))
        for name, array in source.items():
            self.assertEqual(held[name].tobytes(), array.tobytes(), name)

    def test_unmodified_readers_follow_bit_for_bit(self) -> None:
        for encoding, checksum in (("xor", "xxh3-128"), ("overwrite", "adler32")):
            with self.subTest(encoding):
                shutil.rmtree(self.versions, ignore_errors=True)
                sender = self.cluster.start_sender(
                    0,
                    f"--slime-dir={self.versions}",
                    f"--slime-checkpoint={self.base}",
                    f"--slime-encoding={encoding}",
                    f"--slime-checksum={checksum}",
                    name=encoding,
                )
                local = os.path.join(self.cluster.folder, f"local-{encoding}")
                write_checkpoint(local, self.given)
                reader = SlimeReader(self.versions, self.given)
                trainer = dws.Trainer(sender.socket, "test", 0, 1)
                self.addCleanup(trainer.close)
                source = trainer.register(
                    {name: array.copy() for name, array in self.given.items()}
                )
                for version in range(1, 5):
                    self.publish(trainer, source, version)
                    self.await_folder(version)
                    metadata = reader.apply(version)
                    self.assert_same(reader.weights, source)
                    if version > 1:
                        self.assertEqual(metadata["delta_encoding"], encoding)
                        self.assertEqual(metadata["checksum_format"], checksum)
                self.assertEqual(reader.deltas, 3)
                self.assertFalse([n for n in os.listdir(self.versions) if n.endswith(".new")])
                self.follow(local, source, 4)
                eventually(
                    lambda: sender.metric("dws_sender_slime_newest_version") == 4,
                    lambda: sender.page("/metrics"),
                )
                self.assertEqual(sender.metric("dws_sender_slime_versions_total", 'kind="full"'), 1)
                self.assertEqual(sender.metric("dws_sender_slime_failing"), 0)
                trainer.close()
                sender.stop()

    def follow(self, local: str, source: dict[str, Any], version: int) -> None:
        """Lets a receiver bring a copy of the base to that version, from the same folder."""
        receiver = self.cluster.start_receiver(
            f"follower-{os.path.basename(local)}",
            f"--slime-dir={self.versions}",
            f"--checkpoint={local}",
            "--slime-poll-ms=20",
            senders=False,
        )

        def there() -> bool:
            try:
                return receiver.metric("dws_follower_version") == version
            except KeyError:
                return False  # the checkpoint is not open yet

        eventually(there, lambda: receiver.log_tail())
        _, held = read_file(os.path.join(local, "model.safetensors"))
        self.assert_same(held, source)
        receiver.stop()

    def test_a_sender_whose_folder_is_another_runs_is_not_ready_until_it_is_free(self) -> None:
        theirs = os.path.join(self.versions, "weight_v000001")
        os.makedirs(theirs)
        with open(os.path.join(theirs, INDEX), "w", encoding="utf-8") as file:
            json.dump({"metadata": {}, "weight_map": {}}, file)
        sender = self.sender("--folder-stale-after=1")
        trainer = self.trainer()
        source = trainer.register({name: array.copy() for name, array in self.given.items()})
        eventually(lambda: sender.readyz()[0] == 503, lambda: str(sender.readyz()))
        reason = sender.readyz()[1]
        self.assertIn("for more than 1 s nothing can be published to --slime-dir", reason)
        self.assertIn(self.versions, reason)
        self.assertGreater(sender.metric("dws_sender_slime_seconds_failing"), 1)
        self.assertRegex(sender.log_tail(), r"(?m)^\S+ W dws-sender readiness ready=false")
        self.publish(trainer, source, 1)  # publishing itself goes on
        shutil.rmtree(self.versions)
        self.await_folder(1)
        eventually(lambda: sender.readyz()[0] == 200, lambda: str(sender.readyz()))
        self.assertEqual(sender.metric("dws_sender_slime_seconds_failing"), 0)

    def test_with_a_named_base_the_first_version_is_a_delta_that_proves_it(self) -> None:
        sender = self.sender("--slime-first=base", "--slime-keep=3")
        reader = SlimeReader(self.versions, self.given)
        local = os.path.join(self.cluster.folder, "local")
        write_checkpoint(local, self.given)
        other = {name: array.copy() for name, array in self.given.items()}
        other["layer.1.untouched"][7] += 1
        trainer = self.trainer()
        source = trainer.register({name: array.copy() for name, array in self.given.items()})
        change(source["layer.0.w"], self.random, 0.001)  # not quite the base
        trainer.publish(1)
        self.await_folder(1)
        first = os.path.join(self.versions, "weight_v000001")
        size = sum(os.path.getsize(os.path.join(first, name)) for name in os.listdir(first))
        self.assertLess(size, sum(array.nbytes for array in source.values()) / 50)
        metadata = reader.apply(1)
        self.assertEqual((metadata["delta_encoding"], metadata["base_version"]), ("xor", "000000"))
        self.assert_same(reader.weights, source)
        with self.assertRaisesRegex(AssertionError, "layer.1.untouched"):
            SlimeReader(self.versions, other).apply(1)
        self.follow(local, source, 1)

        # One that began with other weights refuses deltas, and names the tensor, until a full version.
        wrong = os.path.join(self.cluster.folder, "wrong")
        write_checkpoint(wrong, other)
        receiver = self.cluster.start_receiver(
            "wrong",
            f"--slime-dir={self.versions}",
            f"--checkpoint={wrong}",
            "--slime-poll-ms=20",
            senders=False,
        )
        eventually(
            lambda: receiver.page("/metrics").find("dws_follower_failing{") >= 0
            and receiver.metric("dws_follower_failing") == 1,
            receiver.log_tail,
        )
        self.assertIn("layer.1.untouched", receiver.log_tail(100))
        self.assertEqual(receiver.metric("dws_follower_version"), 0)
        for version in (2, 3):
            self.publish(trainer, source, version)
            self.await_folder(version)
            self.assertEqual(reader.apply(version)["delta_encoding"], "xor")
            self.assert_same(reader.weights, source)
        self.publish(trainer, source, 4)  # full, because of --slime-keep
        eventually(lambda: receiver.metric("dws_follower_version") == 4, receiver.log_tail)
        _, held = read_file(os.path.join(wrong, "model.safetensors"))
        self.assert_same(held, source)
        self.follow(local, source, 4)
        self.assertEqual(sender.metric("dws_sender_slime_versions_total", 'kind="full"'), 1)

        # A sender that starts again has nothing to compare with.
        stream = trainer.stream
        trainer.close()
        sender.kill()
        sender.start()
        trainer = self.trainer(stream=stream)
        source = trainer.register({name: array.copy() for name, array in source.items()})
        self.publish(trainer, source, 5)
        self.follow(local, source, 5)
        eventually(lambda: receiver.metric("dws_follower_version") == 5, receiver.log_tail)

    def test_versions_published_in_full_are_full_checkpoints(self) -> None:
        sender = self.sender()
        reader = SlimeReader(self.versions, self.given)
        local = os.path.join(self.cluster.folder, "local")
        write_checkpoint(local, self.given)
        trainer = self.trainer()
        source = trainer.register({name: array.copy() for name, array in self.given.items()})
        for version, full in enumerate((False, False, True, False, True), start=1):
            for array in source.values():
                change(array, self.random, 0.9 if full else 0.01)
            trainer.publish(version, full=full)
            self.await_folder(version)
            metadata = reader.apply(version)
            self.assert_same(reader.weights, source)
            self.assertEqual("delta_encoding" in metadata, version in (2, 4))
        self.follow(local, source, 5)
        self.assertEqual(sender.logged("slime_chain_broken"), 0)
        # Faster than they are written: those that are overwritten before that are left out.
        for version in range(6, 16):
            for array in source.values():
                change(array, self.random, 0.9)
            trainer.publish(version, full=version != 12)
        self.await_folder(15)
        reader.apply(15)
        self.assert_same(reader.weights, source)
        self.assertEqual(sender.logged("slime_publish_failed"), 0)

    def test_a_restarted_sender_continues_and_another_run_is_refused(self) -> None:
        sender = self.sender("--slime-keep=2")
        reader = SlimeReader(self.versions, self.given)
        trainer = self.trainer()
        source = trainer.register({name: array.copy() for name, array in self.given.items()})
        for version in (1, 2):
            self.publish(trainer, source, version)
            self.await_folder(version)
            reader.apply(version)
        stream, held = trainer.stream, {name: array.copy() for name, array in source.items()}
        trainer.close()
        sender.stop()
        sender.start()
        trainer = self.trainer(stream=stream)
        source = trainer.register(held)
        for version in (3, 4, 5):  # 3 is full: the sender has nothing to compare with
            self.publish(trainer, source, version)
            self.await_folder(version)
            reader.apply(version)
            self.assert_same(reader.weights, source)
        self.assertEqual(reader.deltas, 3)
        eventually(
            lambda: sorted(name for name in os.listdir(self.versions) if name[0] == "w")
            == ["weight_v000003", "weight_v000004", "weight_v000005"],
            lambda: str(os.listdir(self.versions)),
        )

        # A new run counts from 1 again. Its trainer can publish, and the folder stays unchanged.
        trainer.close()
        before = tree_digest(self.versions)
        trainer = self.trainer()
        source = trainer.register({name: array.copy() for name, array in self.given.items()})
        eventually(
            lambda: sender.metric("dws_sender_slime_failing") == 1, lambda: sender.log_tail()
        )
        self.publish(trainer, source, 1)
        self.assertIn("it has versions of stream", sender.log_tail(100))
        slime = json.loads(sender.page("/status"))["sender"]["slime"]
        self.assertIn("empty the folder", slime["failing"])
        self.assertEqual(before, tree_digest(self.versions))
        for name in os.listdir(self.versions):
            if name.startswith("weight_v"):
                shutil.rmtree(os.path.join(self.versions, name))
        self.await_folder(1)
        reader = SlimeReader(self.versions, self.given)
        reader.apply(1)
        self.assert_same(reader.weights, source)


def tree_digest(folder: str) -> str:
    """Over all names and bytes below it."""
    digest = hashlib.sha256()
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)
            digest.update(os.path.relpath(path, folder).encode())
            with open(path, "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()


if __name__ == "__main__":
    unittest.main()
