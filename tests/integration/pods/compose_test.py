"""The containers of deploy/container/compose.yaml, run as Docker Compose would run them but for the container engine: README's
example, where containers share the folder of the sockets and nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.kubernetes import dockerfile
from tests.integration.pods.sandbox import CLIENT, PATH, Container, Spec, make_image, run_until

FOLDER = Path("deploy/container")
WAIT_SECONDS = 60.0
# No network, as network_mode says, and what every container has of its own.
ALONE = ["unshare", "--net", "--ipc", "--uts"]


@unittest.skipIf(os.geteuid() != 0, "only root makes namespaces and runs as other users")
class ComposeTest(unittest.TestCase):
    def setUp(self) -> None:
        if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no namespaces here")
        folder = tempfile.TemporaryDirectory(prefix="dws-pods-", dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        os.chmod(self.folder, 0o755)
        self.image = make_image(self.folder / "image")
        self.file = FOLDER / "Dockerfile"
        self.compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
        self.user = int(dict(dockerfile.instructions(self.file))["USER"].split(":")[0])
        self.containers: dict[str, Container] = {}
        self.addCleanup(self.end)
        for name, volume in self.compose["volumes"].items():
            self.make_volume(name, volume.get("driver_opts", {}).get("o", f"uid={self.user},gid={self.user},mode=0750"))

    def end(self) -> None:
        for container in self.containers.values():
            container.kill()

    def make_volume(self, name: str, options: str) -> None:
        wanted = dict(option.split("=") for option in options.split(","))
        (self.folder / name).mkdir()
        os.chown(self.folder / name, int(wanted["uid"]), int(wanted["gid"]))
        os.chmod(self.folder / name, int(wanted["mode"], 8))

    def start(self, name: str) -> Container:
        """Starts a service after those that it depends on, which have to be healthy."""
        service = self.compose["services"][name]
        for other, condition in service.get("depends_on", {}).items():
            self.assertEqual(condition, {"condition": "service_healthy"})
            if other not in self.containers:
                self.start(other)
            run_until(lambda: self.health(other) == 0, WAIT_SECONDS, lambda: self.containers[other].log()[-2000:])
        variables = {"PATH": PATH, "PYTHONPATH": CLIENT, **service.get("environment", {})}
        spec = Spec(name, [*dockerfile.entrypoint(self.file), *service["command"]], variables,
                    [*self.image, *map(self.mount, service["volumes"])], self.user, self.user, service["read_only"])  # fmt: skip
        self.containers[name] = Container(spec, ALONE, True, self.folder / "containers" / name)
        return self.containers[name]

    def mount(self, text: str) -> tuple[str, str, bool]:
        source, target, *mode = text.split(":")
        there = FOLDER.resolve() / source if source.startswith(".") else self.folder / source
        return str(there.resolve()), target, mode == ["ro"]

    def health(self, name: str) -> int:
        """The exit status of the image's health check."""
        check = next(rest for word, rest in dockerfile.instructions(self.file) if word == "HEALTHCHECK")
        return self.containers[name].exec(json.loads(check.partition("CMD ")[2]), 5)

    def test_trainer_and_engine_print_the_same_sums(self) -> None:
        engine, trainer = self.start("engine"), self.start("trainer")
        self.check_namespaces()
        printed = self.lines_until(engine, "version 5: ")
        self.check_users("sender", "receiver", "engine")
        self.assertEqual(trainer.wait(WAIT_SECONDS), 0, trainer.log())
        published = dict(re.findall(r"^version (\d): .*sum (\S+)$", trainer.process.stdout.read(), re.M))  # type: ignore[union-attr]
        committed = dict(re.findall(r"^version (\d): sum (\S+)$", printed, re.M))
        self.assertEqual(sorted(published), list("12345"))
        self.assertEqual(committed["5"], published["5"])
        self.assertLessEqual(committed.items(), published.items())
        for name in ("receiver", "sender"):
            self.assertEqual(self.health(name), 0)
            self.containers[name].signal(signal.SIGSTOP)
            self.assertNotEqual(self.health(name), 0)
            self.containers[name].signal(signal.SIGCONT)
            self.containers[name].signal(signal.SIGTERM)
            grace = float(self.compose["services"][name]["stop_grace_period"].removesuffix("s"))
            self.assertEqual(self.containers[name].wait(grace), 0)

    def check_namespaces(self) -> None:
        for kind in ("net", "ipc", "uts", "mnt", "pid"):
            found = {container.namespace(kind) for container in self.containers.values()}
            self.assertEqual(len(found), 4, kind)
            self.assertNotIn(os.readlink(f"/proc/self/ns/{kind}"), found)

    def check_users(self, *names: str) -> None:
        for name in names:
            self.assertEqual(self.containers[name].status("CapEff"), "0" * 16)
            self.assertEqual(self.containers[name].status("Uid").split(), [str(self.user)] * 4)

    def lines_until(self, container: Container, beginning: str) -> str:
        """What it prints up to a line that begins so."""
        found: Any = ""
        assert container.process.stdout is not None
        for line in container.process.stdout:
            found += line
            if line.startswith(beginning):
                return str(found)
        self.fail(f"{container.spec.name} has ended: {container.log()}")


if __name__ == "__main__":
    unittest.main()
