"""Runs the documentation's blocks marked `pair` (docs_blocks.py) beside a sender and a receiver that
have a trainer and an engine. Only folders, ports and the paths of programs are changed."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import unittest
from pathlib import Path

import dws
import numpy as np

from tests.integration.cluster import Cluster
from tests.tools.docs_blocks import Block, all_blocks

TOP = Path("WORKSPACE").resolve().parent
PROGRAMS = ("sender_daemon/dws-sender", "receiver_daemon/dws-receiver", "tools/dwsctl/dwsctl")
BLOCK_SECONDS = 60.0
# The ports of the units and of deploy/config.
PORTS = {"7750": ("sender", "http"), "7760": ("receiver", "http")}


def shape_of(text: str) -> list[str]:
    """The words of an output that are the same in each run: without numbers and their units, where lines break, and paths."""
    text = re.sub(r"\n {12}(?=\S)", " ", text)  # a field that goes on in the next line
    text = re.sub(r"(unix:)?(?<!\w)/[\w./-]+", "PATH", text)
    text = re.sub(r"\d[\d.:a-f-]*(?: ?(?:[KMGT]?i?B/s|[KMGT]/s|[KMGT]iB|[KMGTB]|us|ms|s|min|x|%)(?!\w))?", "#", text)
    text = re.sub(r"missing: .*|# bytes", "PART", text)  # machines differ in what they have
    return [" ".join(line.split()) for line in text.splitlines()]


class DocsCommandsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = self.enterContext(Cluster())
        self.sender = self.cluster.start_sender()
        self.receiver = self.cluster.start_receiver("rollout-0")
        self.folder = Path(self.cluster.folder)
        for name in ("bin", "run", "here"):
            (self.folder / name).mkdir()
        for program in PROGRAMS:
            (self.folder / "bin" / os.path.basename(program)).symlink_to(os.path.abspath(program))
        (self.folder / "run/sender-0.sock").symlink_to(self.sender.socket)
        (self.folder / "run/receiver-rollout-0.sock").symlink_to(self.receiver.socket)
        self.start_job()

    def start_job(self) -> None:
        """Starts a trainer that has published, and an engine that stays attached."""
        self.trainer = self.enterContext(dws.Trainer(self.sender.socket, job_id=self.cluster.job_id))
        views = self.trainer.register({"w": np.zeros((1024, 1024), np.float32)})
        over, ready = threading.Event(), threading.Event()

        def engine() -> None:
            with dws.Engine(self.receiver.socket) as live:
                live.attach({"w": np.zeros((1024, 1024), np.float32)})
                while not over.is_set():
                    with live.running(timeout=BLOCK_SECONDS):
                        ready.set()
                    over.wait(0.01)  # between two forward passes

        thread = threading.Thread(target=engine)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(over.set)
        for version in (1, 2, 3):
            views["w"].reshape(-1)[:: 97 * version] += 1.0
            self.trainer.publish(version)
            self.trainer.wait(version, policy="all", timeout=BLOCK_SECONDS)
        self.assertTrue(ready.wait(BLOCK_SECONDS))

    def place(self, text: str) -> str:
        text = text.replace("/run/dws", str(self.folder / "run"))
        daemons = {"sender": self.sender, "receiver": self.receiver}
        for number, (daemon, name) in PORTS.items():
            text = text.replace(f"127.0.0.1:{number}", f"127.0.0.1:{daemons[daemon].ports[name]}")
        return text

    def run_block(self, block: Block) -> None:
        environment = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(self.folder / "here"),
                       "LC_ALL": "C.UTF-8"}
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", self.place(block.text)],
                              cwd=self.folder / "here", env=environment, capture_output=True, text=True,
                              timeout=BLOCK_SECONDS)
        self.assertEqual(done.returncode, 0, f"{block}\n{block.text}{done.stdout}{done.stderr}")
        if block.output is not None:
            self.assertEqual(shape_of(done.stdout), shape_of(block.output), f"{block}\n{done.stdout}")

    def test_every_command_for_a_running_pair_works(self) -> None:
        blocks = [block for block in all_blocks(TOP) if block.mark == "pair"]
        self.assertTrue(blocks)
        for block in blocks:
            with self.subTest(str(block)):
                self.run_block(block)
        self.assertGreater(sum(block.output is not None for block in blocks), 5)

    def test_shapes_differ_in_words_and_not_in_numbers(self) -> None:
        one = shape_of("  took  7.4 ms since it was announced: queue 77 us, stage 305\n            us, x 1.0x\n")
        self.assertEqual(one, shape_of("  took     1.2 s since it was announced: queue 7 us, stage 12 ms, x 12x\n"))
        self.assertNotEqual(one, shape_of("  took  7.4 ms since it was published: queue 77 us, stage 305 us, x 1x\n"))
        self.assertNotEqual(shape_of("a\nb\n"), shape_of("a\n"))


if __name__ == "__main__":
    unittest.main()
