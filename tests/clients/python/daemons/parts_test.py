"""The parts of dws.daemons: options as flags, where programs are found, folders, and why a daemon has ended."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import dws
from dws.daemons import programs
from dws.daemons.ending import how_it_ended, why_not_run
from dws.daemons.options import flags_of
from dws.daemons.run_folder import RunFolder


class OptionsTest(unittest.TestCase):
    def test_each_kind_of_value(self) -> None:
        options: dict[str, Any] = {
            "retain_bytes": "16GiB", "threads": 4, "insecure": True, "huge_pages": False, "tls_ca": Path("/a/ca.pem"),
            "allow_user": ["ann", "bob"], "slime_dir": None, "share": 0.5, "train_peers": (),
        }  # fmt: skip
        self.assertEqual(
            flags_of(options),
            ["--retain-bytes=16GiB", "--threads=4", "--insecure", "--huge-pages=false", "--tls-ca=/a/ca.pem",
             "--allow-user=ann", "--allow-user=bob", "--share=0.5"],
        )  # fmt: skip

    def test_what_is_no_value_of_a_flag_is_refused(self) -> None:
        wrong: tuple[tuple[dict[str, Any], str], ...] = (
            ({"threads": {}}, "threads={}: expected a string, a number, a path or a list of these, found dict"),
            ({"allow_user": [None]}, "allow_user=None: expected .*found NoneType"),
            ({"job": b"x"}, "found bytes"),
            ({"job": "a\0b"}, "without NUL"),
            ({"socket": "/s"}, "give run_dir="),
            ({"ports_file": "/s"}, "Daemon.ports"),
            ({"owner_pid": 1}, "owner_pid=: "),
        )
        for options, message in wrong:
            with self.subTest(options), self.assertRaisesRegex(dws.InvalidArgumentError, message):
                flags_of(options)


class EndingTest(unittest.TestCase):
    def test_each_way_to_end_is_told_with_what_to_do(self) -> None:
        for code, words in ((0, "asked to stop"), (1, "the log says why"), (2, "configuration has mistakes"),
                            (3, "--quarantine-damaged-ledger"), (-signal.SIGKILL, "SIGKILL.*memory ran out"),
                            (-signal.SIGSEGV, "SIGSEGV.*report it"), (-99, "signal 99"), (127, "exit status 127$")):  # fmt: skip
            self.assertRegex(how_it_ended(code), words)

    def test_why_the_kernel_did_not_run_it(self) -> None:
        for number, path, words in ((errno.ENOENT, "/none", "/none cannot be run: No such file or directory$"),
                                    (errno.ENOENT, "/bin/sh", "glibc's loader"), (errno.EACCES, "/x", "noexec"),
                                    (errno.ENOEXEC, "/x", "x86-64, found Linux")):  # fmt: skip
            self.assertRegex(why_not_run(path, OSError(number, os.strerror(number))), words)

    def test_the_error_keeps_its_lines_and_escapes_the_rest(self) -> None:
        error = pickle.loads(pickle.dumps(dws.DaemonFailedError("it ended", "one\ntwo\x1b[31m\n", 2)))
        self.assertEqual(str(error), "it ended:\none\ntwo\\x1b[31m")
        self.assertEqual((error.status, error.log_tail), (2, "one\ntwo\\x1b[31m"))
        self.assertIsInstance(error, dws.DaemonUnavailableError)


class ProgramsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name)

    def program(self, path: str) -> str:
        file = self.top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
        return str(file)

    def found(self, site: str) -> str:
        """What a package in `site` finds."""
        module = str(self.top / site / "dws/daemons/programs.py")
        with mock.patch.object(programs, "__file__", module), mock.patch.dict(os.environ, PATH=f"{self.top}/path"):
            return programs.find_program("dws-sender")

    def test_that_of_the_installation_comes_before_that_on_the_path(self) -> None:
        with self.assertRaisesRegex(dws.DaemonUnavailableError, "Install the wheel delta_weight_sync-"):
            self.found("nowhere/lib/python3.12/site-packages")
        on_path = self.program("path/dws-sender")
        self.assertEqual(self.found("nowhere/lib/python3.12/site-packages"), on_path)
        for program, site in (("venv/bin/dws-sender", "venv/lib/python3.12/site-packages"),
                              ("target/bin/dws-sender", "target"), ("archive/bin/dws-sender", "archive/python")):  # fmt: skip
            path = self.program(program)
            self.assertEqual(self.found(site), path)

    def test_a_named_file_has_to_be_a_program(self) -> None:
        plain = self.top / "plain"
        plain.write_text("")
        for path in (str(plain), str(self.top), "/none"):
            with self.assertRaisesRegex(dws.DaemonUnavailableError, f"{path}: expected dws-sender, found no executable"):
                programs.find_program("dws-sender", path)


class RunFolderTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.top = folder.name

    def folder(self, job_id: str, role: str = "sender-0", **options: Any) -> RunFolder:
        return RunFolder(job_id, role, f"the {role}", **{"run_dir": self.top, **options})

    def test_different_names_have_different_folders_in_which_sockets_fit(self) -> None:
        names = ["run7", "run 7", "run_7", "run/7", "..", ".", "a" * 24, "a" * 25, "a" * 300, "ü" * 100, "x-0123abcd"]
        paths = [self.folder(name, role).path for name in names for role in ("sender-0", "receiver-" + "r" * 256)]
        self.assertEqual(len(set(paths)), 2 * len(names))
        for path in paths:
            self.assertEqual(os.path.dirname(os.path.dirname(os.path.realpath(path))), os.path.realpath(self.top))
            self.assertLessEqual(len(os.fsencode(path + "/d.sock.handles")), 107)
        self.assertTrue(self.folder("run7").path.endswith("/run7/sender-0"))

    def test_a_path_that_is_too_long_is_refused_or_replaced(self) -> None:
        long = os.path.join(self.top, "x" * 90)
        with self.assertRaisesRegex(dws.InvalidArgumentError, r"a path of \d+ bytes, expected at most 107: .*shorter by"):
            self.folder("run7", run_dir=long)
        with mock.patch.object(tempfile, "tempdir", long):
            folder = self.folder("parts-test", run_dir=None)
        self.assertEqual(folder.path, f"/tmp/dws-{os.getuid()}/parts-test/sender-0")
        folder.remove()
        self.assertFalse(os.path.exists(os.path.dirname(folder.path)))

    def test_a_folder_of_somebody_else_is_refused(self) -> None:
        os.symlink("/tmp", f"{self.top}/dws-{os.getuid()}")
        with mock.patch.object(tempfile, "tempdir", self.top), self.assertRaisesRegex(
            dws.InvalidArgumentError, "expected a folder of user"
        ):
            self.folder("run7", run_dir=None)

    def test_the_lock_is_held_by_who_has_the_descriptor(self) -> None:
        first, second = self.folder("run7"), self.folder("run7")
        lock = first.lock(0)
        first.write_holder(lock, 1234)
        with self.assertRaisesRegex(dws.StateError, f"process 1234, started by process {os.getpid()}, in {first.path}"):
            second.lock(60)  # at once: its owner is there
        second.remove()  # not while it is used
        self.assertTrue(os.path.exists(first.path))
        os.close(lock)
        again = second.lock(0)
        os.close(again)
        second.remove()
        self.assertEqual(os.listdir(self.top), [])
        os.close(first.lock(0))  # makes the folder again


if __name__ == "__main__":
    unittest.main()
