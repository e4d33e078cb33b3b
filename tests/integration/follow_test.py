"""A receiver that follows a folder of slime's versions: the local checkpoint gets every version, and an
engine over HTTP loads it. The folder's writer is independent of DWS: Python, numpy, zstandard, xxhash.
"""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from typing import Any, Optional

import numpy as np

from tests.integration.cluster import RECEIVER, Daemon, DaemonFailed
from tests.integration.integration_case import eventually
from tests.integration.slime_writer import SlimeWriter

FAILPOINTS = RECEIVER + "-failpoints"
ENGINE = "tests/fakes/engine_server/engine_server.py"
# Exchanges two folders as fast as it can until it is stopped or its time limit ends.
EXCHANGER = """
import ctypes, sys
one, other = (path.encode() for path in sys.argv[1:])
renameat2, here, exchange = ctypes.CDLL(None).renameat2, -100, 2
for _ in range(2_000_000):
    renameat2(here, one, here, other, exchange)
"""


class FakeEngine:
    """The process of tests/fakes/engine_server."""

    def __init__(self, kind: str, model: str) -> None:
        self._command = [sys.executable, ENGINE, "--kind", kind, "--model", model]
        self.port = 0
        self.start()

    def start(self) -> None:
        """Starts it; again after a close, on the same port."""
        command = [*self._command, "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().split()[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def fake(self, body: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + "/fake", data)
        with urllib.request.urlopen(request, timeout=20) as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class FollowTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.versions, self.local = self.path("versions"), self.path("local")
        os.makedirs(self.versions)
        self.random = np.random.default_rng(5)
        weights = {
            f"layer.{i}.w": self.random.integers(0, 1 << 16, (200 + i, 300)).astype(np.uint16)
            for i in range(4)
        }
        self.writer = SlimeWriter(self.versions, weights)
        self.writer.checkpoint(self.local)
        self.daemon: Optional[Daemon] = None

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def start(self, *flags: str, binary: str = RECEIVER) -> Daemon:
        os.makedirs(self.path("r"), exist_ok=True)
        command = [
            binary,
            "--job-id=job",
            "--receiver-id=follower",
            f"--slime-dir={self.versions}",
            f"--checkpoint={self.local}",
            "--slime-poll-ms=20",
            *flags,
        ]
        daemon = Daemon("follower", self.path("r"), command)
        daemon.start()
        self.addCleanup(daemon.release_ports)
        self.addCleanup(lambda: daemon.process is not None and daemon.stop())
        self.daemon = daemon
        return daemon

    def publish(self, share: float = 0.01) -> None:
        changes = {}
        for name, weight in self.writer.weights.items():
            if self.random.random() < 0.3:
                continue
            after = weight.copy()
            after[self.random.random(after.shape) < share] ^= 1
            changes[name] = after
        self.writer.publish(changes)

    def ready(self, daemon: Daemon, version: int, name: str = "version") -> bool:
        try:
            return daemon.metric(f"dws_follower_{name}") == version
        except KeyError:
            return False

    def await_version(self, daemon: Daemon, version: int, name: str = "version") -> None:
        eventually(lambda: self.ready(daemon, version, name), lambda: daemon.log_tail())

    def is_ready(self, daemon: Daemon) -> bool:
        try:
            return daemon.page("/readyz") == "ready\n"
        except urllib.error.HTTPError as error:
            error.close()
            return False

    def assert_local(self) -> None:
        """Checks that the local checkpoint holds the writer's weights and names their version."""
        with open(os.path.join(self.local, "model.safetensors"), "rb") as file:
            content = file.read()
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        for name, weight in self.writer.weights.items():
            begin, end = header[name]["data_offsets"]
            self.assertEqual(content[8 + size + begin : 8 + size + end], weight.tobytes(), name)
        with open(os.path.join(self.local, ".weight_sync", "state.json")) as state:
            self.assertEqual(int(json.load(state)["version"]), self.writer.version)

    def test_the_local_checkpoint_follows_bit_for_bit(self) -> None:
        daemon = self.start()
        for version in range(1, 5):
            self.publish()
            self.await_version(daemon, version)
            self.assert_local()
        for _ in range(3):  # caught up in one step
            self.publish(0.3)
        self.await_version(daemon, 7)
        self.assert_local()
        self.assertEqual(daemon.page("/readyz"), "ready\n")
        daemon.stop()
        self.publish()
        daemon.start()
        self.await_version(daemon, 8)
        self.assert_local()

    def test_engines_over_http_load_every_version(self) -> None:
        for kind in ("sglang", "vllm"):
            with self.subTest(kind):
                engine = FakeEngine(kind, self.local)
                self.addCleanup(engine.close)
                daemon = self.start(f"--engine-url={engine.url}")
                first = self.writer.version
                self.await_version(daemon, first, "loaded_version")
                for version in (first + 1, first + 2):
                    self.publish()
                    self.await_version(daemon, version, "loaded_version")
                    self.assert_local()
                    state = engine.fake()
                    self.assertFalse(state["paused"])
                    self.assertEqual(state["weight_version"], str(version))
                daemon.stop()

    def test_an_engine_that_fails_to_load_is_reported_and_retried(self) -> None:
        engine = FakeEngine("sglang", self.local)
        self.addCleanup(engine.close)
        daemon = self.start(f"--engine-url={engine.url}")
        self.await_version(daemon, 0, "loaded_version")
        engine.fake({"fault": "/update_weights_from_disk", "do": "refuse", "times": 2})
        self.publish()
        self.await_version(daemon, 1, "loaded_version")
        self.assertIn("follow_failed", daemon.log_tail())
        self.assertFalse(engine.fake()["paused"])

    def test_an_engine_that_may_still_be_paused_is_not_ready(self) -> None:
        engine = FakeEngine("sglang", self.local)
        self.addCleanup(engine.close)
        daemon = self.start(f"--engine-url={engine.url}")
        self.await_version(daemon, 0, "loaded_version")
        engine.fake({"fault": "/pause_generation", "do": "status", "code": 500})
        engine.fake({"fault": "/continue_generation", "do": "status", "code": 500})
        self.publish()
        eventually(lambda: not self.is_ready(daemon), daemon.log_tail)
        engine.fake({"fault": "/pause_generation"})
        engine.fake({"fault": "/continue_generation"})
        self.await_version(daemon, 1, "loaded_version")
        eventually(lambda: self.is_ready(daemon), daemon.log_tail)  # told at the end of the look
        self.assertFalse(engine.fake()["paused"])

    def test_a_stopped_receiver_finishes_its_load_and_leaves_the_engine_running(self) -> None:
        engine = FakeEngine("sglang", self.local)
        self.addCleanup(engine.close)
        daemon = self.start(f"--engine-url={engine.url}")
        self.await_version(daemon, 0, "loaded_version")
        engine.fake({"fault": "/update_weights_from_disk", "do": "slow", "seconds": 1, "times": 1})
        self.publish()
        eventually(lambda: engine.fake()["paused"], daemon.log_tail)
        daemon.stop()
        state = engine.fake()
        self.assertFalse(state["paused"])
        self.assertEqual(state["weight_version"], "1")

    def test_an_engine_that_was_restarted_loads_again(self) -> None:
        engine = FakeEngine("sglang", self.local)
        self.addCleanup(engine.close)
        daemon = self.start(f"--engine-url={engine.url}")
        self.publish()
        self.await_version(daemon, 1, "loaded_version")
        engine.close()
        engine.start()
        eventually(lambda: engine.fake()["weight_version"] == "1", daemon.log_tail)
        self.await_version(daemon, 1, "loaded_version")
        eventually(lambda: self.is_ready(daemon), daemon.log_tail)  # told at the end of the look

    def test_a_receiver_killed_at_any_point_completes_the_version_after_its_restart(self) -> None:
        engine = FakeEngine("vllm", self.local)
        self.addCleanup(engine.close)
        url = f"--engine-url={engine.url}"
        for point in ("follow.after_apply", "follow.after_pause", "follow.after_load"):
            with self.subTest(point):
                self.publish(0.2)
                os.environ["DWS_FAILPOINT"] = f"{point}:kill"
                daemon = None
                try:
                    daemon = self.start(url, binary=FAILPOINTS)
                    assert daemon.process is not None
                    daemon.process.wait(20)
                    daemon.process = None
                except DaemonFailed:
                    pass  # it died before it was ready
                finally:
                    del os.environ["DWS_FAILPOINT"]
                daemon = self.start(url)
                self.await_version(daemon, self.writer.version, "loaded_version")
                self.assert_local()
                self.assertFalse(engine.fake()["paused"])
                daemon.stop()

    def test_the_docs_list_the_followers_metrics(self) -> None:
        engine = FakeEngine("sglang", self.local)
        self.addCleanup(engine.close)
        daemon = self.start(f"--engine-url={engine.url}")
        self.publish()
        self.await_version(daemon, 1, "loaded_version")
        shown = set(re.findall(r"^(dws_follower_\w+){", daemon.page("/metrics"), re.MULTILINE))
        with open("docs/metrics.md") as docs:
            self.assertEqual(
                shown, set(re.findall(r"^\| `(dws_follower_\w+)`", docs.read(), re.MULTILINE))
            )

    def test_a_version_of_another_run_is_refused_and_named(self) -> None:
        daemon = self.start()
        self.publish()
        self.await_version(daemon, 1)
        held = {name: weight.copy() for name, weight in self.writer.weights.items()}
        for weight in self.writer.weights.values():
            weight ^= 0x1234  # a run with other initial weights
        self.publish(0.5)
        eventually(lambda: daemon.metric("dws_follower_failing") == 1, daemon.log_tail)
        self.assertIn("layer.", daemon.log_tail())
        self.writer.weights, self.writer.version = held, 1
        self.assert_local()

    def test_a_new_run_stays_refused_after_a_version_equal_to_the_old_runs(self) -> None:
        base = {name: weight.copy() for name, weight in self.writer.weights.items()}
        first, second, third = (f"layer.{i}.w" for i in range(3))
        daemon = self.start()
        self.writer.publish({first: base[first] ^ 1})
        self.writer.publish({})
        self.await_version(daemon, 2)
        held = dict(self.writer.weights)
        daemon.stop()
        # Another run from the same base, whose version 2 is empty too.
        shutil.rmtree(self.versions)
        os.makedirs(self.versions)
        self.writer.weights, self.writer.version = dict(base), 0
        self.writer.publish({second: base[second] ^ 2})
        self.writer.publish({})
        self.writer.publish({third: base[third] ^ 4})
        other = dict(self.writer.weights)
        self.writer.weights, self.writer.version = held, 2
        daemon.start()
        eventually(lambda: daemon.metric("dws_follower_failing") == 1, daemon.log_tail)
        self.assertIn("version 000001 there is not the one that was applied here", daemon.log_tail())
        self.assert_local()
        daemon.stop()
        # The receiver still refuses when the folder no longer shows the difference.
        for version in (1, 2):
            shutil.rmtree(os.path.join(self.versions, f"weight_v{version:06d}"))
        daemon.start()
        eventually(lambda: daemon.metric("dws_follower_failing") == 1, daemon.log_tail)
        self.assertIn("another run", daemon.log_tail())
        self.assert_local()
        self.writer.weights, self.writer.version = other, 4
        self.writer.checkpoint(os.path.join(self.versions, "weight_v000004"), indexed=True)
        self.await_version(daemon, 4)
        self.assert_local()

    def other_runs_delta(self) -> str:
        """Has the receiver's run publish version 1. Returns version 2 of a run whose version 1 differs and
        whose version 2 changes a tensor that is equal in both."""
        base = {name: weight.copy() for name, weight in self.writer.weights.items()}
        first, second, third = (f"layer.{i}.w" for i in range(3))
        self.writer.publish({first: base[first] ^ 1})
        other = SlimeWriter(self.path("other"), {**base, second: base[second] ^ 2})
        other.version = 1
        other.publish({third: base[third] ^ 4})
        return os.path.join(other.folder, "weight_v000002")

    def await_unproved(self, daemon: Daemon) -> None:
        eventually(lambda: daemon.metric("dws_follower_unproved") == 1, daemon.log_tail)
        self.assertIn("nothing proves that this is the version 000001", daemon.log_tail())
        self.assert_local()

    def test_another_runs_delta_is_refused_when_the_applied_version_is_gone(self) -> None:
        daemon = self.start("--stale-after=1")
        delta = self.other_runs_delta()
        self.await_version(daemon, 1)
        shutil.rmtree(os.path.join(self.versions, "weight_v000001"))
        os.rename(delta, os.path.join(self.versions, "weight_v000002"))
        self.await_unproved(daemon)
        eventually(lambda: daemon.readyz()[0] == 503, lambda: str(daemon.readyz()))
        self.assertIn("more than 1 s", daemon.readyz()[1])
        self.assertIn("nothing proves", daemon.readyz()[1])
        self.assertEqual(daemon.metric("dws_follower_version_lag"), 1)
        daemon.stop()  # a restart changes nothing
        daemon.start()
        self.await_unproved(daemon)
        # A full version of the other run is complete.
        self.writer.version = 3
        folder = os.path.join(self.versions, "weight_v000003")
        self.writer.checkpoint(folder, indexed=True)
        self.await_version(daemon, 3)
        eventually(lambda: daemon.readyz()[0] == 200, lambda: str(daemon.readyz()))
        self.assertEqual(daemon.metric("dws_follower_unproved"), 0)

    def test_another_runs_delta_is_refused_when_the_folder_is_replaced(self) -> None:
        daemon = self.start()
        delta = self.other_runs_delta()
        self.await_version(daemon, 1)
        os.rename(self.versions, self.path("old"))
        os.rename(os.path.dirname(delta), self.versions)
        self.await_unproved(daemon)

    def test_a_delta_beside_the_applied_version_is_reported_as_unproved_or_refused(self) -> None:
        for rule in ("content", "folder"):
            with self.subTest(rule):
                daemon = self.start(f"--slime-proof={rule}")
                if rule == "content":
                    delta = self.other_runs_delta()
                    self.await_version(daemon, 1)
                    os.rename(delta, os.path.join(self.versions, "weight_v000002"))
                    self.await_unproved(daemon)
                else:
                    self.await_version(daemon, 2)
                    self.assertIn("base_not_proved", daemon.log_tail())
                daemon.stop()

    def test_a_version_that_lacks_a_shard_makes_the_receiver_not_ready(self) -> None:
        daemon = self.start("--stale-after=1")
        eventually(lambda: daemon.readyz()[0] == 200, lambda: str(daemon.readyz()))
        shard = "model-00000-of-00001.safetensors"
        self.writer.folder = self.path("other")
        self.publish(0.1)
        version = os.path.join(self.writer.folder, "weight_v000001")
        os.rename(os.path.join(version, shard), self.path("shard"))
        os.rename(version, os.path.join(self.versions, "weight_v000001"))
        eventually(lambda: daemon.readyz()[0] == 503, lambda: str(daemon.readyz()))
        for part in ("more than 1 s", "weight_v000001", shard):
            self.assertIn(part, daemon.readyz()[1])
        (line,) = [each for each in daemon.log_tail(100).splitlines() if "ready=false" in each]
        self.assertIn(shard, line)
        self.assertIn(" W dws-receiver readiness ", line)
        os.rename(self.path("shard"), os.path.join(self.versions, "weight_v000001", shard))
        self.await_version(daemon, 1)
        eventually(lambda: daemon.readyz()[0] == 200, lambda: str(daemon.readyz()))
        self.assert_local()

    def test_one_of_two_constantly_exchanged_folders_is_applied_whole(self) -> None:
        """Versions 1 of two runs that change the same tensors alternate at the path that is read."""
        base = dict(self.writer.weights)
        runs = []
        for change in (1, 2):
            self.writer.weights, self.writer.version = dict(base), 0
            self.writer.folder = self.path(f"run{change}")
            self.writer.publish({n: w ^ change for n, w in base.items()})
            runs.append(dict(self.writer.weights))
        published = os.path.join(self.versions, "weight_v000001")
        spare = os.path.join(self.path("run2"), "weight_v000001")
        os.rename(os.path.join(self.path("run1"), "weight_v000001"), published)
        exchanger = subprocess.Popen([sys.executable, "-c", EXCHANGER, published, spare])
        self.addCleanup(exchanger.wait)
        self.addCleanup(exchanger.kill)
        daemon = self.start()
        self.await_version(daemon, 1)
        daemon.stop()
        self.writer.version = 1
        with open(os.path.join(self.local, "model.safetensors"), "rb") as file:
            held = file.read()
        first = next(iter(base))
        self.writer.weights = runs[0] if runs[0][first].tobytes() in held else runs[1]
        self.assert_local()


if __name__ == "__main__":
    unittest.main()
