"""gpu_check over the fake driver at a tiny size, its output, and the committed results."""

import datetime
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tools.gpu_check.collect import collect, summary

GPU_CHECK = "tools/gpu_check/gpu_check"
FAKE_DRIVER = "tests/fakes/cuda/lib:tests/fakes/nccl/lib"
RESULTS = Path("tests/gpu/results")


def run(*options: str, driver: str = FAKE_DRIVER) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, results, last line."""
    done = subprocess.run(
        [
            GPU_CHECK,
            "--size=1MiB",
            "--rounds=1",
            "--kernel-tests=tests/gpu/gpu_tests",
            *options,
        ],
        env={**os.environ, "LD_LIBRARY_PATH": driver},
        stdout=subprocess.PIPE,
        text=True,
    )
    *lines, last = done.stdout.splitlines()
    return done.returncode, [json.loads(line) for line in lines], last


def summary_of(results: list[dict[str, Any]]) -> str:
    return summary({"results": results})


class GpuCheckTest(unittest.TestCase):
    def test_every_section_passes_over_the_fake_driver(self) -> None:
        status, results, last = run("--only=info,memory,staging,ipc,kill,nccl,capture,slowdown")
        failed = [result for result in results if result["status"] == "failed"]
        self.assertEqual((status, failed), (0, []))
        self.assertEqual(last, summary_of(results))
        for section in ("info", "memory", "staging", "ipc", "kill", "capture", "slowdown"):
            passed = [r for r in results if r["section"] == section and r["status"] == "passed"]
            self.assertGreater(len(passed), 0, section)
        for result in results:
            self.assertTrue(result.get("fake_driver"), result)
            if result["status"] == "skipped":
                self.assertIn("note", result)

    def test_benchmarks_have_a_ratio_to_a_reference_of_the_same_run(self) -> None:
        status, results, _ = run("--only=bench")
        self.assertEqual(status, 0, results)
        for name in ("P8 commit, mode A, 1 %", "P9 stage, mode B, 1 %", "P10 full digest"):
            (result,) = (r for r in results if r["name"].startswith(name))
            figure = result["figure"]
            self.assertGreater(figure["ratio"], 0)
            self.assertRegex(figure["bar"], r"^[<>]= \d")
            self.assertGreater(figure["reference"], 0)

    def test_kernels_of_a_file_are_used_instead_of_the_programs(self) -> None:
        with tempfile.NamedTemporaryFile() as image:
            for content, passes in ((b"DWHOSTK1", True), (b"no image", False)):
                image.seek(0)
                image.write(content)
                image.flush()
                status, results, _ = run("--only=slowdown", f"--kernels={image.name}")
                self.assertEqual(status == 0, passes, results)

    def test_without_a_driver_it_says_so_and_fails(self) -> None:
        status, results, last = run("--only=info", driver="nowhere")
        self.assertEqual(status, 1)
        self.assertEqual([result["status"] for result in results], ["failed"])
        self.assertIn("libcuda", results[0]["note"])
        self.assertEqual(last, "0 passed, 1 failed, 0 skipped")

    def test_without_a_gpu_the_torch_check_is_reported_as_skipped(self) -> None:
        done = subprocess.run(
            [sys.executable, "tools/gpu_check/torch_check.py", "--bin=nowhere", "--only=native"],
            stdout=subprocess.PIPE,
            text=True,
        )
        result = json.loads(done.stdout)
        self.assertEqual((done.returncode, result["status"]), (0, "skipped"))
        self.assertIn("PyTorch", result["note"])

    def test_results_are_collected_with_machine_and_date(self) -> None:
        text = "\n".join(
            [
                '{"section": "info", "name": "device", "status": "passed", "facts": {"name": "G"}}',
                '{"section": "ipc", "name": "a", "status": "passed"}',
                '{"section": "ipc", "name": "b", "status": "skipped", "note": "why"}',
                "2 passed, 0 failed, 1 skipped",
            ]
        )
        now = datetime.datetime(2026, 3, 1, tzinfo=datetime.timezone.utc)
        content = collect(text, "./run.sh", "c0ffee", now)
        self.assertEqual(content["machine"], {"name": "G"})
        self.assertEqual(content["date"], "2026-03-01T00:00:00Z")
        self.assertFalse(content["fake_driver"])
        self.assertEqual(summary(content), "1 passed, 0 failed, 1 skipped")

    def test_committed_results_are_of_real_gpus(self) -> None:
        paths = list(RESULTS.glob("*"))
        self.assertNotEqual(paths, [])
        for path in paths:
            content = json.loads(path.read_text())
            self.assertEqual(content["format"], 1, path)
            self.assertFalse(content["fake_driver"], path)
            self.assertTrue(content["machine"]["driver"], path)
            date, commit = content["date"][:10], content["commit"]
            self.assertTrue(path.name.startswith(date), path)
            self.assertTrue(commit.startswith(path.stem.rsplit("-", 1)[1]), path)


if __name__ == "__main__":
    unittest.main()
