"""A daemon of dws.daemons ends with the process that started it, and only with that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Callable

import dws
from tests.integration.cluster import SENDER

WAIT_SECONDS = 60.0
# Two ticks of a daemon, which looks for its owner in each.
TICKS_SECONDS = 2.5

# Each prints the pid of a daemon and then does something else; {top} and {sender} are paths.
_START = """
import multiprocessing, os, signal, sys, time
import dws
def start():
    return dws.daemons.sender("job", run_dir={top!r}, program={sender!r})
def say(*what):
    print(*what, flush=True)
"""
WAITS = _START + """
daemon = start()
say(daemon.pid)
time.sleep(600)
"""
FORKS = _START + """
daemon = start()
child = os.fork()
if child == 0:
    time.sleep(600)
say(daemon.pid, child)
time.sleep(600)
"""
CHILDREN_STOP = _START + """
with start() as daemon:
    if os.fork() == 0:
        for call in (daemon.stop, daemon.close, daemon.kill, daemon.start):
            try:
                call()
            except dws.StateError as error:
                assert f"belongs to process {{os.getppid()}}" in str(error), error
            else:
                os._exit(1)
        sys.exit()  # out of the block, and through what runs at the end of a process
    status = os.wait()[1]
    process = multiprocessing.get_context("fork").Process(target=daemon.__exit__, args=(None,))
    process.start()
    process.join()
    daemon.check()
    say(daemon.pid, status, process.exitcode)
"""
JUST_ENDS = _START + """
say(start().pid)
"""
FAILS = _START + """
daemon = start()
say(daemon.pid)
raise SystemExit(7)
"""


def runs(pid: int) -> bool:
    """Returns whether the process exists and is not a zombie that waits for its parent."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class OwnerTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp", ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.top = folder.name

    def owner(self, script: str) -> subprocess.Popen[str]:
        text = script.format(top=self.top, sender=os.path.abspath(SENDER))
        process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        return process

    def said(self, process: subprocess.Popen[str]) -> list[int]:
        assert process.stdout is not None
        return list(map(int, process.stdout.readline().split()))

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.01)

    def test_it_ends_when_its_owner_is_killed_and_the_next_one_has_its_folder(self) -> None:
        owner = self.owner(WAITS)
        (daemon,) = self.said(owner)
        with self.assertRaisesRegex(dws.StateError, f"process {daemon}, started by process {owner.pid}"):
            dws.daemons.sender("job", run_dir=self.top, program=SENDER)
        owner.kill()
        owner.wait()
        with dws.daemons.sender("job", run_dir=self.top, program=SENDER) as again:
            self.assertFalse(runs(daemon))  # it was waited for
            self.assertIn("ended_owner_pid", again.log_tail(1000))
        self.assertEqual(os.listdir(self.top), [])

    def test_it_ends_when_its_owner_is_killed_though_a_fork_of_it_lives(self) -> None:
        owner = self.owner(FORKS)
        daemon, child = self.said(owner)
        self.addCleanup(os.kill, child, signal.SIGKILL)
        owner.kill()
        owner.wait()
        self.eventually(lambda: not runs(daemon), "the daemon has not ended")
        self.assertTrue(runs(child))
        with dws.daemons.sender("job", run_dir=self.top, program=SENDER) as again:  # the fork holds no lock
            again.check()

    def test_forks_cannot_stop_it(self) -> None:
        owner = self.owner(CHILDREN_STOP)
        _, status, exit_code = self.said(owner)
        self.assertEqual((status, exit_code), (0, 0))
        self.assertEqual(owner.wait(WAIT_SECONDS), 0)
        self.assertEqual(os.listdir(self.top), [])

    def test_it_ends_with_its_owner_that_does_not_stop_it(self) -> None:
        for script, status in ((JUST_ENDS, 0), (FAILS, 7)):
            owner = self.owner(script)
            (daemon,) = self.said(owner)
            self.assertEqual(owner.wait(WAIT_SECONDS), status)
            self.assertFalse(runs(daemon))
            self.assertEqual(os.listdir(self.top), [])

    def test_it_does_not_end_with_the_thread_that_has_started_it(self) -> None:
        started: list[dws.daemons.Daemon] = []
        thread = threading.Thread(
            target=lambda: started.append(dws.daemons.sender("job", run_dir=self.top, program=SENDER))
        )
        thread.start()
        thread.join(WAIT_SECONDS)
        with started[0] as daemon:
            with self.assertRaises(subprocess.TimeoutExpired):
                assert daemon.process is not None
                daemon.process.wait(TICKS_SECONDS)
            daemon.check()


if __name__ == "__main__":
    unittest.main()
