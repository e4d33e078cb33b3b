"""Under --config=tsan, a race in a reactor of ours is reported and a guarded one is not."""

import subprocess
import unittest

PROGRAM = "tests/tsan/race_reactor"
TSAN_FOUND = 66  # TSan's exit status after a report


def run(mode: str) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAM, mode], capture_output=True, text=True, timeout=120, check=False)


class ReactorRaceTest(unittest.TestCase):
    def run_instrumented(self, mode: str) -> subprocess.CompletedProcess:
        result = run(mode)
        if result.stdout.startswith("not instrumented"):
            self.assertEqual(result.returncode, 0, result.stderr)
            self.skipTest("this build is not instrumented: run with --config=tsan")
        return result

    def test_a_race_in_a_reactor_is_reported(self) -> None:
        result = self.run_instrumented("planted")
        self.assertEqual(result.returncode, TSAN_FOUND, result.stderr)
        self.assertIn("WARNING: ThreadSanitizer: data race", result.stderr)
        self.assertIn("AddInReaction", result.stderr)

    def test_the_same_access_under_a_mutex_is_not_reported(self) -> None:
        result = self.run_instrumented("guarded")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("ThreadSanitizer", result.stderr)


if __name__ == "__main__":
    unittest.main()
