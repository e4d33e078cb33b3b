"""tools/real.sh quickstart without torch: what it takes for agreement, and what it ends."""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path

from tools.real.quickstart.check import NAMES, PAGES, SERVED
from tools.real.quickstart.place import CheckFailed, Place, compare, told

TRAINER = {version: f"{version:012x}" for version in range(1, 5)}


class CompareTest(unittest.TestCase):
    def test_an_engine_may_skip_versions_but_not_the_last(self) -> None:
        self.assertEqual(compare(TRAINER, {1: TRAINER[1], 4: TRAINER[4]}, True), "equal digests at versions [1, 4]")
        with self.assertRaisesRegex(CheckFailed, r"published \[1, 2, 3, 4\], the engine had \[1, 3\]"):
            compare(TRAINER, {1: TRAINER[1], 3: TRAINER[3]}, True)
        with self.assertRaisesRegex(CheckFailed, "the engine had \\[\\]"):
            compare(TRAINER, {}, True)

    def test_a_digest_that_differs_is_named(self) -> None:
        with self.assertRaisesRegex(CheckFailed, r"versions \[2\]"):
            compare(TRAINER, {**TRAINER, 2: TRAINER[3]}, True)

    def test_a_trainer_that_published_too_little_fails(self) -> None:
        with self.assertRaises(CheckFailed):
            compare({1: "a"}, {1: "a"}, True)

    def test_answers_that_never_change_fail(self) -> None:
        self.assertEqual(compare(TRAINER, {1: "[5]", 4: "[6]"}, False), "answers of versions [1, 4]")
        with self.assertRaisesRegex(CheckFailed, "the same answers"):
            compare(TRAINER, {1: "[5]", 4: "[5]"}, False)

    def test_what_is_read_of_logs(self) -> None:
        log = "warning\nversion 1: 7 bytes, digest 0a1b2c\nversion 2: answers [5, 6]\nanother version 3: x\n"
        self.assertEqual(told(log), {1: "0a1b2c", 2: "answers [5, 6]"})


class PagesTest(unittest.TestCase):
    def test_each_quickstart_is_run(self) -> None:
        pages = {page.stem for page in Path("docs/quickstart").glob("*.md")}
        self.assertEqual(set(NAMES) - set(SERVED), pages)
        self.assertLessEqual({name.partition("-")[0] for name in SERVED}, pages)
        examples = {path.name for path in Path("clients/examples").glob("*.py")}
        for page in PAGES.values():
            for words in (page.trainer, page.engine, page.before):
                self.assertLessEqual({word for word in words if word.endswith(".py")}, examples)


class PlaceTest(unittest.TestCase):
    def test_its_end_ends_what_a_program_has_started(self) -> None:
        script = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
        with Place(sys.executable, dict(os.environ), None) as place:
            process = place.start("one", ["-c", script])
            while not (text := place.read("one").strip()):
                self.assertIsNone(process.poll())
        for pid in (process.pid, int(text)):
            stat = Path(f"/proc/{pid}/stat")
            self.assertTrue(not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX")

    def test_a_program_that_fails_is_reported_with_its_log(self) -> None:
        with Place(sys.executable, dict(os.environ), None) as place:
            with self.assertRaisesRegex(CheckFailed, "the engine ended with status 3"):
                place.wait("engine", place.start("engine", ["-c", "import sys; print('why'); sys.exit(3)"]))
            self.assertIn("--- engine.log\nwhy", place.ends())


if __name__ == "__main__":
    unittest.main()
