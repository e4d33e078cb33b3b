"""The wheel of the Python client: complete, and its entry points lead somewhere."""

import importlib
import importlib.metadata
import os
import re
import sys
import tomllib
import unittest
import zipfile

import dws

WHEEL = "clients/python/dws.whl"


class WheelTest(unittest.TestCase):
    def setUp(self) -> None:
        self.wheel = zipfile.ZipFile(WHEEL)
        self.addCleanup(self.wheel.close)

    def test_every_module_of_the_package_is_in_it(self) -> None:
        top = os.path.dirname(os.path.abspath(dws.__file__))
        modules = {
            os.path.relpath(os.path.join(folder, name), os.path.dirname(top))
            for folder, _, names in os.walk(top)
            for name in names
            if name.endswith((".py", ".typed"))
        }
        self.assertIn("dws/_proto/engine_pb2.py", modules)
        self.assertIn("dws/trainers/publisher.py", modules)
        self.assertLessEqual(modules, set(self.wheel.namelist()))

    def test_it_has_the_version_of_the_daemons(self) -> None:
        with open("common/service/build_version.h") as file:
            version = re.search(r'kBuildVersion = "(.*)"', file.read())
        assert version is not None
        about = self.wheel.read(f"delta_weight_sync-{version[1]}.dist-info/METADATA").decode()
        self.assertIn(f"Version: {version[1]}\n", about)
        self.assertEqual(self.wheel.read("dws/_version.py").decode(), f'__version__ = "{version[1]}"\n')

    def test_it_names_the_oldest_python_that_has_what_the_package_calls(self) -> None:
        about = next(name for name in self.wheel.namelist() if name.endswith("/METADATA"))
        # bisect_right with a key.
        self.assertIn("Requires-Python: >=3.10\n", self.wheel.read(about).decode())

    def test_all_places_require_the_same(self) -> None:
        with open("clients/python/pyproject.toml", "rb") as file:
            project = tomllib.load(file)["project"]
        wanted = dict(re.fullmatch(r"(\w+)>=([\d.]+)", each).groups() for each in project["dependencies"])
        wanted["python"] = project["requires-python"][2:]
        self.assertEqual(set(wanted), {"grpcio", "numpy", "protobuf", "python"})
        with open("deploy/debian/control") as file:
            depends = re.search(r"Package: python3-dws\n(?:.+\n)*?Depends: (.*)\n", file.read())
        assert depends is not None
        found = re.findall(r"(?:^|, )python3(?:-(\w+)|:any) \(>= (?:\d+:)?([\d.]+)\)", depends[1])
        self.assertEqual({name or "python": version for name, version in found}, wanted)
        for path in ("deploy/tarball/README.md", "docs/gpu.md"):
            with open(path) as file:
                text = file.read()
            for name, version in wanted.items():
                named = "Python" if name == "python" else f"`{name}`"
                self.assertEqual(re.findall(rf"{named} (\d[\d.]*\d)", text), [version], (path, name))

    def test_engines_find_functions_by_its_entry_points(self) -> None:
        sys.path.insert(0, os.path.abspath(WHEEL))
        self.addCleanup(sys.path.remove, os.path.abspath(WHEEL))
        found = importlib.metadata.distribution("delta-weight-sync").entry_points
        self.assertIn("sglang.srt.plugins", {point.group for point in found})
        for point in found:
            self.assertTrue(callable(getattr(importlib.import_module(point.module), point.attr)))


if __name__ == "__main__":
    unittest.main()
