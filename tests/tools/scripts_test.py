"""Each script of tools/ says how it is used, at once: --help installs, builds and downloads nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

TOP = Path("WORKSPACE").resolve().parent
SCRIPTS = sorted(path.relative_to(TOP) for path in TOP.glob("tools/*.sh"))
# All that --help may run.
PROGRAMS = ("bash", "dirname", "sed")
# Programs that their scripts pass options to.
OPTIONS_OF = {
    "demo.sh": "tools/demo/options.py",
    "real.sh": "tools/real/main.py",
    "simulate.sh": "tests/simulation/simulate.cc",
}


class HelpTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.programs = folder.name
        for program in PROGRAMS:
            found = shutil.which(program)
            assert found is not None
            os.symlink(found, Path(folder.name) / program)

    def run_it(self, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", script, *arguments], cwd=TOP, env={"PATH": self.programs},
                              capture_output=True, text=True, timeout=30)

    def help(self, script: Path, *arguments: str) -> str:
        ended = self.run_it(script, *arguments)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""), script)
        return ended.stdout

    def test_each_script_prints_its_usage_without_any_other_program(self) -> None:
        self.assertGreater(len(SCRIPTS), 10)
        for script in SCRIPTS:
            with self.subTest(script=str(script)):
                for option in ("--help", "-h"):
                    usage = self.help(script, option)
                    self.assertGreater(len(usage.split()), 10)
                    self.assertNotIn("shellcheck", usage)
                if os.access(TOP / script, os.X_OK):
                    self.assertIn(str(script), usage)

    def test_help_among_other_arguments_is_help_too(self) -> None:
        for script, arguments in (("demo.sh", ("--steps", "4")), ("real.sh", ("engines",)),
                                  ("bench.sh", ("codec",)), ("test.sh", ("--config=asan",))):
            self.assertIn(script, self.help(Path("tools") / script, *arguments, "--help"))

    def test_help_for_the_program_that_a_script_runs_is_passed_on(self) -> None:
        for script, argument in (("bazel.sh", "build"), ("python.sh", "trainer.py")):
            ended = self.run_it(Path("tools") / script, argument, "--help")
            self.assertNotEqual(ended.returncode, 0)  # it was about to run the program
            self.assertEqual(ended.stdout, "")

    def test_the_usage_has_every_option_of_the_program(self) -> None:
        for script, source in OPTIONS_OF.items():
            text = (TOP / source).read_text()
            options = set(re.findall(r'add_(?:argument|option|flag)\(\s*"(--[\w-]+)"', text))
            self.assertGreater(len(options), 3, source)
            said = set(re.findall(r"--[\w-]+", self.help(Path("tools") / script, "--help")))
            self.assertLessEqual(options, said, script)


if __name__ == "__main__":
    unittest.main()
