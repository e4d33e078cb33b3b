"""dwsctl's commands for checkpoints, run over files: estimate, pack, apply, squash."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

DWSCTL = os.path.abspath("tools/dwsctl/dwsctl")


def dwsctl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([DWSCTL, *arguments], capture_output=True, text=True, timeout=120)


def write_file(path: str, tensors: "dict[str, tuple[str, list[int], bytes]]") -> None:
    """A safetensors file, written from the format's description alone."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", "step": "7"}}
    offset = 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [offset, offset + len(content)],
        }
        offset += len(content)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, content in tensors.values():
            file.write(content)


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class CheckpointTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.random = random.Random(1)
        self.contents = {
            f"layers.{i}.weight": ("BF16", [256, 1024], bytearray(self.random.randbytes(524288)))
            for i in range(4)
        }
        self.contents["quantised"] = ("F8_E4M3", [64, 64], bytearray(self.random.randbytes(4096)))
        self.contents["odd"] = ("C64", [3], bytearray(self.random.randbytes(24)))
        self.write("v1")
        for version in (2, 3):
            for _, _, content in self.contents.values():
                for _ in range(max(len(content) // 200, 1)):
                    content[2 * self.random.randrange(len(content) // 2)] ^= 1
            self.write(f"v{version}")

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def write(self, name: str) -> None:
        os.mkdir(self.path(name))
        tensors = {key: (d, s, bytes(c)) for key, (d, s, c) in self.contents.items()}
        write_file(self.path(name + "/model.safetensors"), tensors)
        with open(self.path(name + "/config.json"), "w") as file:
            file.write("{}")

    def run_ok(self, *arguments: str) -> str:
        ran = dwsctl(*arguments)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""), arguments)
        return ran.stdout

    def pack(self, base: int, *flags: str) -> str:
        delta = self.path(f"{base + 1}.dws")
        self.run_ok(
            "pack",
            f"--base-version={base}",
            f"--version={base + 1}",
            self.path(f"v{base}"),
            self.path(f"v{base + 1}"),
            "-o",
            delta,
            *flags,
        )
        return delta

    def assert_same(self, name: str, expected: str) -> None:
        self.assertEqual(
            sorted(os.listdir(self.path(name))), sorted(os.listdir(self.path(expected)))
        )
        for file in os.listdir(self.path(expected)):
            self.assertEqual(
                read(self.path(f"{name}/{file}")), read(self.path(f"{expected}/{file}"))
            )

    def test_pack_and_apply_give_the_other_checkpoint(self) -> None:
        for profile in ("fast", "wan", "direct"):
            with self.subTest(profile):
                delta = self.pack(1, f"--profile={profile}")
                out = self.run_ok("apply", self.path("v1"), delta, "-o", self.path(profile))
                self.assertIn("version 2", out)
                self.assert_same(profile, "v2")

    def test_estimate_prints_the_sizes_that_pack_writes(self) -> None:
        estimate = json.loads(self.run_ok("estimate", "--json", self.path("v1"), self.path("v2")))
        self.assertEqual(estimate["fast_bytes"], os.path.getsize(self.pack(1)))
        self.assertEqual(estimate["wan_bytes"], os.path.getsize(self.pack(1, "--profile=wan")))
        self.assertGreater(estimate["slime_bytes"], estimate["fast_bytes"])
        self.assertEqual(estimate["groups"][0]["name"], "layers.*.weight")

    def test_estimate_fits_80_columns_and_takes_bandwidths(self) -> None:
        text = self.run_ok(
            "estimate",
            "--bandwidth=25Gbit/s",
            "--bandwidth",
            "1 MiB/s",
            self.path("v1"),
            self.path("v2"),
        )
        self.assertLessEqual(max(len(line) for line in text.splitlines()), 80)
        self.assertRegex(text, r"\n  25Gbit/s +\d")
        self.assertRegex(text, r"\n  1 MiB/s +\d")
        ran = dwsctl("estimate", "--bandwidth=fast", self.path("v1"), self.path("v2"))
        self.assertEqual(ran.returncode, 2)

    def test_estimate_compares_views_whose_names_have_commas(self) -> None:
        views = ["fp8-block128/deepseek", "int4-g128/amax7,except=*.0.weight,except=*.1.weight"]
        arguments = [*(f"--view={view}" for view in views), self.path("v1"), self.path("v2")]
        estimate = json.loads(self.run_ok("estimate", "--json", "--no-slime", *arguments))
        self.assertEqual([of["name"] for of in estimate["views"]], views)
        self.assertEqual([of["quantised"] for of in estimate["views"]], [4, 2])
        block, packed = estimate["views"]
        self.assertEqual(block["codes"], 4 * 256 * 1024)
        self.assertEqual(block["scales"], 4 * 2 * 8)
        self.assertEqual(packed["codes"], 2 * 256 * 1024)
        self.assertLess(block["fast_bytes"], estimate["fast_bytes"])
        self.assertIn("\n  int4-g128/amax7,except=...", self.run_ok("estimate", *arguments))

    def test_an_estimate_says_which_scales_of_whole_matrices_move(self) -> None:
        arguments = ["--view=nvfp4/modelopt", "--no-slime", self.path("v1"), self.path("v2")]
        (view,) = json.loads(self.run_ok("estimate", "--json", *arguments))["views"]
        self.assertEqual((view["codes"], view["scales"]), (4 * 256 * 1024, 4 * 256 * 1024 // 16))
        self.assertEqual(view["matrix_scales"], 4)
        moved = view["changed_matrix_scales"]
        self.assertIn(
            f"  nvfp4/modelopt: {moved} of 4 scales of matrices moved", self.run_ok("estimate", *arguments)
        )

    def test_a_view_that_cannot_be_is_refused_with_the_reason(self) -> None:
        self.contents["gate.weight"] = ("BF16", [4, 100], bytearray(800))
        self.write("gated")
        for view, reason in (
            ("fp8-block128", "expected one of: fp8-block128/deepseek,"),
            ("mxfp8/floor", "tensor gate.weight: recipe mxfp8/floor needs a multiple of 32 columns, found 100"),
            ("mxfp8/floor,only=x", "expected 'except=PATTERN' or 'share=PART+PART' after the recipe, found 'only=x'"),
        ):
            with self.subTest(view):
                ran = dwsctl("estimate", f"--view={view}", self.path("gated"), self.path("gated"))
                self.assertEqual((ran.returncode, ran.stdout), (2, ""))
                self.assertIn(reason, ran.stderr)

    def test_inspect_reads_what_pack_writes(self) -> None:
        lines = self.run_ok("inspect", "--json", self.pack(1)).splitlines()
        self.assertEqual(json.loads(lines[-1])["problems"], 0)

    def test_a_chain_is_applied_and_squashed(self) -> None:
        deltas = [self.pack(1), self.pack(2, "--profile=wan")]
        base = self.path("v1")
        ran = self.run_ok("apply", "--json", base, *deltas, "-o", self.path("out"))
        self.assertEqual(json.loads(ran)["version"], 3)
        self.assert_same("out", "v3")
        squashed = self.path("squashed.dws")
        self.run_ok("squash", "--base", base, *deltas, "-o", squashed)
        self.run_ok("apply", base, squashed, "-o", self.path("out2"))
        self.assert_same("out2", "v3")
        ran = dwsctl("squash", *deltas, "-o", squashed)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("--base", ran.stderr)

    def test_inputs_that_do_not_belong_together_have_their_exit_codes(self) -> None:
        delta = self.pack(1)
        ran = dwsctl("apply", self.path("v3"), delta, "-o", self.path("out"))
        self.assertEqual(ran.returncode, 5)
        self.assertIn("'layers.0.weight'", ran.stderr)
        self.assertFalse(os.path.exists(self.path("out")))
        with open(delta, "r+b") as file:
            file.truncate(os.path.getsize(delta) // 2)
        self.assertEqual(
            dwsctl("apply", self.path("v1"), delta, "-o", self.path("out")).returncode, 6
        )
        self.assertEqual(dwsctl("apply", self.path("v1"), "/nowhere", "-o", "x").returncode, 7)
        self.assertEqual(dwsctl("apply", self.path("v1"), delta).returncode, 2)
        del self.contents["odd"]
        self.write("other")
        ran = dwsctl("estimate", self.path("v1"), self.path("other"))
        self.assertEqual(ran.returncode, 5)
        self.assertIn("odd: only in A", ran.stdout)
        ran = dwsctl("pack", self.path("v1"), self.path("other"), "-o", self.path("x.dws"))
        self.assertEqual(ran.returncode, 5)

    def test_a_full_disk_leaves_no_file(self) -> None:
        ran = subprocess.run(
            ["bash", "-c", f"ulimit -f 100; exec '{DWSCTL}' apply \"$@\"", "-", self.path("v1")]
            + [self.pack(1), "-o", self.path("out")],
            capture_output=True,
            text=True,
            timeout=120,
            preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
        )
        self.assertEqual(ran.returncode, 7, ran.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["2.dws", "v1", "v2", "v3"])

    def test_the_official_library_reads_written_checkpoints(self) -> None:
        try:
            from safetensors import safe_open
        except ImportError:
            self.skipTest("the package safetensors is not installed")
        self.run_ok("apply", self.path("v1"), self.pack(1), "-o", self.path("out"))
        with safe_open(self.path("out/model.safetensors"), "numpy") as file:
            self.assertEqual(file.metadata(), {"format": "pt", "step": "7"})
            self.assertEqual(set(file.keys()), set(self.contents))


if __name__ == "__main__":
    unittest.main()
