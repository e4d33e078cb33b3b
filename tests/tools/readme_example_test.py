"""Runs README's section "By hand": its daemons, its trainer, its engine and its dwsctl commands. And
the engine on asyncio of docs/engines.md in the place of its engine.

Only the folder and the paths of the built programs are changed.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

DEADLINE_SECONDS = 120.0
# What dwsctl's commands print while an engine runs.
EXPECTED = {
    "status": r"state +ready\n",
    "verify": "all as published at version 5",
    "plan": r"1\.05 million parameters",
}
_BLOCK = re.compile(r"^```(?:sh|python) (\S+)\n(.*?)^```$", re.M | re.S)


def blocks(document: str = "README.md") -> dict[str, str]:
    """Its named code blocks, by name."""
    return dict(_BLOCK.findall(Path(document).read_text()))


class ReadmeTest(unittest.TestCase):
    def setUp(self) -> None:
        # A short path, because it is part of the paths of sockets.
        folder = tempfile.TemporaryDirectory(prefix="dws-readme-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def place(self, text: str) -> str:
        return text.replace("/tmp/dws", str(self.folder)).replace("bazel-bin/", "")

    def start(self, name: str, command: list[str]) -> subprocess.Popen:
        log = open(self.folder / f"{name}.log", "w")  # closed with the process
        self.addCleanup(log.close)
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def start_daemon(self, command: list[str]) -> None:
        """Returns once the daemon serves; checks that it has opened no TCP port."""
        name = command[0].rpartition("/")[2]
        ports = self.folder / f"{name}.ports"
        process = self.start(name, [*command, f"--ports-file={ports}"])
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not ports.exists():
            self.assertIsNone(process.poll(), self.log(name))
            self.assertLess(time.monotonic(), deadline, self.log(name))
            time.sleep(0.01)
        self.assertEqual(json.loads(ports.read_text()), {})

    def start_daemons(self, script: str) -> None:
        script = self.place(script).replace("\\\n", " ")
        commands = [shlex.split(line.rstrip(" &")) for line in script.splitlines()]
        daemons = [command for command in commands if "_daemon/" in command[0]]
        self.assertEqual(len(daemons), 2)
        for daemon in daemons:
            self.start_daemon(daemon)

    def start_python(self, name: str, script: str) -> subprocess.Popen:
        path = self.folder / name
        path.write_text(self.place(script))
        return self.start(name, [sys.executable, "-u", str(path)])

    def run_commands(self, script: str) -> None:
        """README's "run" block: two Python scripts side by side, then dwsctl while the engine runs."""
        example = blocks()
        scripts = {}
        for line in self.place(script).splitlines():
            program, *words = shlex.split(line)
            if program == "tools/python.sh":
                scripts[words[0]] = self.start_python(words[0], example[words[0]])
                continue
            self.wait_for(scripts)
            done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stdout, EXPECTED[words[0]])
            scripts = {}

    def wait_for(self, scripts: dict[str, subprocess.Popen]) -> None:
        """Returns when the trainer has ended and the engine has its last version."""
        for name, process in scripts.items():
            if name == "engine.py":
                self.wait_for_version(5, process)
                continue
            try:
                status = process.wait(DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                self.fail(f"{name} did not end:\n{self.log(name)}\n{self.log('dws-sender')}\n"
                          f"{self.log('dws-receiver')}")
            self.assertEqual(status, 0, self.log(name))

    def wait_for_version(self, version: int, engine: subprocess.Popen) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            ended = engine.poll()  # before the log is read, which has the last line then
            if re.search(rf"^version {version}: .*sum", self.log("engine.py"), re.M):
                return
            self.assertIsNone(ended, self.log("engine.py"))
            self.assertLess(time.monotonic(), deadline, self.log("dws-receiver"))
            time.sleep(0.01)

    def test_the_example_runs_and_both_sides_print_the_same_sums(self) -> None:
        example = blocks()
        self.start_daemons(example["daemons"])
        self.run_commands(example["run"])
        self.check_sums()

    def test_the_engine_on_asyncio_prints_the_same_sums(self) -> None:
        example = blocks()
        self.start_daemons(example["daemons"])
        self.wait_for({
            "trainer.py": self.start_python("trainer.py", example["trainer.py"]),
            "engine.py": self.start_python("engine.py", blocks("docs/engines.md")["engine.py"]),
        })
        self.check_sums()

    def check_sums(self) -> None:
        sums = re.compile(r"^version (\d+): .*sum (\S+)$", re.M)
        published = dict(sums.findall(self.log("trainer.py")))
        committed = dict(sums.findall(self.log("engine.py")))
        self.assertEqual(sorted(published), ["1", "2", "3", "4", "5"])
        self.assertEqual(committed["5"], published["5"])
        self.assertLessEqual(committed.items(), published.items())
        # The first version is all of the weights.
        sizes = re.findall(r"^version \d+: (\d+) bytes", self.log("trainer.py"), re.M)
        self.assertEqual(int(sizes[0]), 4 * 1024 * 1024)
        self.assertLess(max(map(int, sizes[1:])), 100_000)


if __name__ == "__main__":
    unittest.main()
