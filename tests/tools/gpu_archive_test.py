"""The archive that tools/gpu_check.sh packs: unpacked, it works without the tree, over the fake driver."""

import importlib.util
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import dws
from tools.gpu_check.collect import summary

FAKES = [os.path.abspath(f"tests/fakes/{name}/lib") for name in ("cuda", "nccl")]
C_LIBRARY = r"^lib(c|m|dl|rt|pthread|resolv)\.so"
# Puts the folder of the first argument in front of the modules that an isolated interpreter has.
ISOLATED = "import sys; sys.path.insert(0, sys.argv.pop(1));"
IMPORT_ALL = """
import importlib, pkgutil, dws
print(dws.__file__)
for module in pkgutil.walk_packages(dws.__path__, "dws."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] not in ("ray", "transformers", "triton", "verl", "vllm"): raise
    print(module.name)
"""
# The archive's client and cluster, and the tree's test beside them.
RUN_TEST = """
import runpy, dws, tests.integration.cluster
for module in (dws, tests.integration.cluster):
    assert module.__file__.startswith(sys.path[0]), module.__file__
tests.__path__.append("tests")
tests.integration.__path__.append("tests/integration")
runpy.run_path("tests/integration/cuda_sync_test.py", run_name="__main__")
"""


class GpuArchiveTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        archive = os.path.join(folder.name, "gpu_check.tar.xz")
        subprocess.run(["tools/gpu_check/pack.sh", ".", "c0ffee", archive], check=True)
        subprocess.run(["tar", "-C", folder.name, "-xJf", archive], check=True)
        cls.unpacked = Path(folder.name, "gpu_check")

    def isolated(self, code: str, *arguments: str) -> str:
        """The output of `code` in an interpreter that knows the archive's modules and not the tree's."""
        done = subprocess.run(
            [sys.executable, "-I", "-c", ISOLATED + code, self.unpacked / "python", *arguments],
            env={"LD_LIBRARY_PATH": FAKES[0]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_it_has_every_module_of_the_client_and_they_can_be_imported(self) -> None:
        path, *modules = self.isolated(IMPORT_ALL).splitlines()
        self.assertTrue(path.startswith(str(self.unpacked)), path)
        wanted = [module.name for module in pkgutil.walk_packages(dws.__path__, "dws.")]
        self.assertIn("dws.trainers.publisher", wanted)
        self.assertEqual(modules, wanted)

    def test_its_programs_need_the_c_library_of_the_machine_and_nothing_else(self) -> None:
        programs = sorted(self.unpacked.glob("bin/*"))
        self.assertEqual(len(programs), 4)
        own = str(self.unpacked / "lib")
        for path in [*programs, *self.unpacked.glob("lib/*")]:
            done = subprocess.run(["ldd", path], stdout=subprocess.PIPE, text=True, check=True)
            found = re.findall(r"(\S+) => (.+?)(?: \(|$)", done.stdout, re.MULTILINE)
            for name, where in found:
                # A path below bin/.. is one below the folder.
                if not os.path.normpath(where).startswith(own):
                    self.assertRegex(name, C_LIBRARY, f"{path.name} takes it from {where}")
        names = {path.name for path in self.unpacked.glob("lib/*")}
        self.assertLessEqual({"libstdc++.so.6", "libgcc_s.so.1"}, names)

    def test_its_client_keeps_live_weights_equal_over_the_fake_driver(self) -> None:
        name = "CudaSyncTest.test_live_weights_follow_live_weights_bit_for_bit"
        self.assertIn("\nOK\n", self.isolated(RUN_TEST, name))

    def test_its_script_runs_its_programs_and_the_checks_of_pytorch(self) -> None:
        out = self.unpacked / "results.json"
        options = ["--only=info,memory,staging,torch,job,fsdp,on_demand,sanitize", "--size=1MiB", "--rounds=1"]
        options += ["--job-sizes=0.001", "--job-deltas=2", "--fsdp-sizes=0.001", "--fsdp-deltas=2"]
        done = subprocess.run(
            [self.unpacked / "run.sh", "--out", out, *options],
            env={
                "PATH": os.environ["PATH"],
                "PYTHON": sys.executable,
                "PYTHONNOUSERSITE": "1",
                "GPU_CHECK_DRIVER": ":".join(FAKES),
            },
            cwd=self.unpacked,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        content = json.loads(out.read_text())
        failed = [result for result in content["results"] if result["status"] == "failed"]
        self.assertEqual((done.returncode, failed), (0, []), done.stdout)
        self.assertIn(f"in total: {summary(content)}", done.stdout)
        self.assertEqual((content["commit"], content["fake_driver"]), ("c0ffee", True))
        passed = {r["section"] for r in content["results"] if r["status"] == "passed"}
        wanted = {"memory", "staging"}
        if importlib.util.find_spec("torch") is not None:
            wanted.update(("torch", "job"))
            results = [r for r in content["results"] if r["section"] == "job"]
            equal = [r["name"] for r in results if r["name"].startswith("equal weights")]
            versions = [int(name.split(", ")[1].split()[1]) for name in equal]
            self.assertEqual(versions, [1, 2, 3, 4, 5, 6, 10])
            self.assertEqual(sum(r["name"].startswith("P38") for r in results), 2)
        self.assertLessEqual(wanted, passed)
        self.assertLessEqual({"fsdp", "on_demand", "sanitize"}, {r["section"] for r in content["results"]})


if __name__ == "__main__":
    unittest.main()
