"""The kernels write the bytes that numpy makes of the definitions, and that ml_dtypes makes of quotients where it is installed."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.common.quantise import oracle, samples

PROGRAM = "tests/common/quantise/quantise_file"
DOCUMENT = "common/quantise/RECIPES.md"
SEED = int(os.environ.get("DWS_TEST_SEED", "20"), 0)


def run(recipe: str, instructions: str, bits: npt.NDArray[Any], folder: Path) -> dict[str, bytes]:
    source, stem = folder / "input", folder / "output"
    source.write_bytes(bits.tobytes())
    subprocess.run([PROGRAM, recipe, instructions, *map(str, bits.shape), source, stem], check=True)
    found = {}
    for role in ("codes", "scales", "tensor_scale"):
        path = folder / f"output.{role}"
        if path.exists():
            found[role] = path.read_bytes()
            path.unlink()
    return found


def instruction_sets() -> list[str]:
    """Those of this machine."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = ["portable"]
    if "avx2" in flags:
        found.append("avx2")
    if "avx512_vbmi2" in flags and "gfni" in flags:
        found.append("avx512")
    return found


def difference(found: bytes, expected: bytes) -> str:
    a, b = (np.frombuffer(part, np.uint8) for part in (found, expected))
    if a.size != b.size:
        return f"{a.size} bytes, expected {b.size}"
    at = np.flatnonzero(a != b)
    return f"{at.size} bytes differ, the first is {at[0]}: {a[at[0]]:#x}, expected {b[at[0]]:#x}"


class OracleTest(unittest.TestCase):
    def compare(self, recipe: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            for case, bits in samples.cases(oracle.columns_unit(recipe), SEED):
                if oracle.is_transposed(recipe):
                    bits = np.ascontiguousarray(np.swapaxes(bits, 1, 2))
                expected = {role: values.tobytes() for role, values in oracle.quantise(recipe, bits).items()}
                for instructions in instruction_sets():
                    found = run(recipe, instructions, bits, Path(name))
                    self.assertEqual(found.keys(), expected.keys(), f"{recipe}, {case}")
                    for role, value in expected.items():
                        if found[role] != value:
                            self.fail(f"{recipe}, {instructions}, {case}, seed {SEED}, {role}: "
                                      + difference(found[role], value))

    def test_all_kernels_write_what_the_definitions_say(self) -> None:
        listed = subprocess.run([PROGRAM, "list"], check=True, capture_output=True, text=True).stdout.split()
        self.assertEqual(sorted(listed), sorted(oracle.RECIPES))
        for recipe in listed:
            with self.subTest(recipe=recipe):
                self.compare(recipe)

    def test_every_recipe_is_defined(self) -> None:
        text = Path(DOCUMENT).read_text(encoding="utf-8")
        for recipe in oracle.RECIPES:
            self.assertIn(f"`{recipe}`", text)

    def test_tables_are_those_of_ml_dtypes(self) -> None:
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("there is no ml_dtypes here")
        values = samples.every_value().view(np.uint16)
        quotients = oracle.widen(values).astype(np.float32)
        finite = quotients[np.abs(quotients) <= 448]
        expected = finite.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        self.assertEqual(oracle.e4m3(finite).tobytes(), expected.tobytes())


if __name__ == "__main__":
    unittest.main()
