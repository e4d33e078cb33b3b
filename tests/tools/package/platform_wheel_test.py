"""The wheel with the programs in it, and the check of what these need."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import stat
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

CLIENT = "clients/python/dws.whl"
NEEDS = "tools/package/elf_needs.py"
MAKE = "tools/package/platform_wheel.py"
PROGRAMS = ("dws-receiver", "dws-sender", "dwsctl")


class PlatformWheelTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name)
        for part, names in (("programs", PROGRAMS), ("licenses", ("VERSIONS", "libssl-dev"))):
            (self.top / part).mkdir()
            for name in names:
                (self.top / part / name).write_text(f"#!/bin/sh\necho {name}\n")

    def make(self, out: str, client: str = CLIENT) -> "subprocess.CompletedProcess[str]":
        (self.top / out).mkdir()
        return subprocess.run([sys.executable, MAKE, client, "manylinux_2_35_x86_64", str(self.top / "programs"),
                               str(self.top / "licenses"), str(self.top / out)], capture_output=True, text=True)  # fmt: skip

    def wheel(self, out: str = "out") -> zipfile.ZipFile:
        made = self.make(out)
        self.assertEqual(made.returncode, 0, made.stderr)
        path = Path(made.stdout.strip())
        self.assertRegex(path.name, r"^delta_weight_sync-[\d.]+-py3-none-manylinux_2_35_x86_64\.whl$")
        wheel = zipfile.ZipFile(path)
        self.addCleanup(wheel.close)
        return wheel

    def test_it_has_the_client_and_the_programs_and_their_licences(self) -> None:
        wheel = self.wheel()
        info = next(name for name in wheel.namelist() if name.endswith("/WHEEL")).rpartition("/")[0]
        about = wheel.read(f"{info}/WHEEL").decode()
        self.assertIn("Tag: py3-none-manylinux_2_35_x86_64\n", about)
        self.assertIn("Root-Is-Purelib: false\n", about)
        with zipfile.ZipFile(CLIENT) as client:
            for name in set(client.namelist()) - {f"{info}/WHEEL", f"{info}/RECORD"}:
                self.assertEqual(wheel.read(name), client.read(name), name)
        scripts = info.replace(".dist-info", ".data/scripts")
        for name in PROGRAMS:
            entry = wheel.getinfo(f"{scripts}/{name}")
            self.assertEqual(entry.external_attr >> 16, stat.S_IFREG | 0o755)
            self.assertEqual(wheel.read(entry), (self.top / "programs" / name).read_bytes())
        self.assertIn(f"{info}/licenses/libssl-dev", wheel.namelist())

    def test_its_record_has_the_hash_of_each_file(self) -> None:
        wheel = self.wheel()
        record = next(name for name in wheel.namelist() if name.endswith("/RECORD"))
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(wheel.read(record).decode()))}
        self.assertEqual(set(rows), set(wheel.namelist()))
        for name, (digest, size) in rows.items():
            if name == record:
                self.assertEqual((digest, size), ("", ""))
                continue
            found = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
            self.assertEqual((digest, int(size)), (f"sha256={found}", len(wheel.read(name))), name)

    def test_the_same_files_make_the_same_bytes(self) -> None:
        first = Path(str(self.wheel("first").filename)).read_bytes()
        for path in self.top.rglob("programs/*"):
            os.utime(path, (1, 1))
        self.assertEqual(Path(str(self.wheel("second").filename)).read_bytes(), first)

    def test_a_wheel_that_has_a_platform_is_refused(self) -> None:
        made = self.make("again", str(self.wheel().filename))
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("expected one Tag and 'Root-Is-Purelib: true' in WHEEL, found:", made.stderr)


class NeedsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name)

    def program(self, text: str, *flags: str) -> str:
        source, program = self.top / "program.c", self.top / "program"
        source.write_text(text)
        subprocess.run(["/usr/bin/gcc", str(source), "-o", str(program), *flags], check=True, timeout=60)
        return str(program)

    def needs(self, glibc: str, program: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, NEEDS, glibc, program], capture_output=True, text=True, timeout=60)

    def test_it_prints_the_oldest_glibc_that_has_all(self) -> None:
        # arc4random came with 2.36.
        program = self.program("#include <stdlib.h>\nint main(void) { return (int)arc4random(); }\n")
        found = self.needs("2.36", program)
        self.assertEqual((found.returncode, found.stdout, found.stderr), (0, "2.36\n", ""))

    def test_a_symbol_that_is_too_new_is_named(self) -> None:
        found = self.needs("2.35", self.program("#include <stdlib.h>\nint main(void) { return (int)arc4random(); }\n"))
        self.assertEqual((found.returncode, found.stdout), (1, ""))
        self.assertEqual(len(found.stderr.splitlines()), 1)
        self.assertIn("program uses arc4random of GLIBC_2.36: expected at most GLIBC_2.35", found.stderr)

    def test_a_library_that_is_not_of_glibc_is_named(self) -> None:
        program = self.program("#include <zlib.h>\nint main(void) { return (int)zlibCompileFlags(); }\n", "-lz")
        found = self.needs("2.36", program)
        self.assertEqual(found.returncode, 1)
        self.assertIn("program needs libz.so.1: expected no library but glibc's own", found.stderr)

    def test_what_is_no_program_is_an_error(self) -> None:
        (self.top / "text").write_text("text")
        found = self.needs("2.36", str(self.top / "text"))
        self.assertNotEqual(found.returncode, 0)
        self.assertIn("format not recognized", found.stderr)
        static = self.needs("2.36", self.program("int main(void) { return 0; }\n", "-static"))
        self.assertEqual(static.returncode, 1)
        self.assertIn("not a dynamic object", static.stderr)


if __name__ == "__main__":
    unittest.main()
