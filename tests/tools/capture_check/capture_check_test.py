"""tools/capture_check.sh without engines: what it says, and that its comparison finds a wrong mapping."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from typing import Any
from unittest import mock

import torch

from dws.plugins.canonical import Parallel
from tests.clients.python.engine_models import Config, PaddedModel, checkpoint, save_checkpoint
from tools.capture_check import compare

SCRIPT = "tools/capture_check.sh"


class CaptureCheckTest(unittest.TestCase):
    def run_it(self, *command: str) -> subprocess.CompletedProcess[str]:
        environ = {k: v for k, v in os.environ.items() if k != "DWS_ENGINES"}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)

    def test_without_engines_it_skips_and_says_so(self) -> None:
        ended = self.run_it(SCRIPT)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stdout, "^skipped: no folder with engines is named")
        options = ("--engines=/nonexistent", "--modules=.", "--checkpoints=/nonexistent")
        engines = (sys.executable, "-m", "tools.capture_check.engines", *options)
        ended = self.run_it(*engines, "--only=*/llama/tp1")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stdout, "skipped: /nonexistent/vllm has no vllm(.|\n)*has no sglang")
        ended = self.run_it(*engines, "--only=nothing")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("'nothing' matches no case, expected for example vllm/llama/tp1", ended.stderr)

    def test_an_unknown_argument_is_refused(self) -> None:
        ended = self.run_it(SCRIPT, "--engine=x")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("--engine=x: unknown argument; see --help", ended.stderr)


class CompareTest(unittest.TestCase):
    def compared(self, change: Any = None) -> compare.Compared:
        config = Config(num_hidden_layers=1, num_experts=4)
        weights = checkpoint(config, seed=1)
        model = PaddedModel(config, 1, 2)
        model.load_weights(weights)
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(os.path.join(folder, "model.safetensors"), weights)
            with torch.no_grad(), mock.patch.object(
                compare, "agreed_mapping", side_effect=change or compare.agreed_mapping
            ):
                return compare.compare(model, config, Parallel(1, 2), folder)

    def test_a_mapping_as_the_engine_loads_passes(self) -> None:
        found = self.compared()
        self.assertEqual(found.wrong, [])
        self.assertEqual(len(found.left), 2)

    def test_a_mapping_with_one_other_source_is_found(self) -> None:
        def changed(*arguments: Any) -> Any:
            agreed = real(*arguments)
            agreed.mapping["model.layers.0.input_layernorm.weight"] = "model.norm.weight"
            return agreed

        real = compare.agreed_mapping
        self.assertRegex(self.compared(changed).wrong[0], "'model.*input_layernorm.weight' is not")

    def test_a_mapping_by_the_table_alone_proves_nothing(self) -> None:
        def without(model: Any, config: Any, rank: Any, given: Any, weights: Any) -> Any:
            return real(model, config, rank, given, None)

        real = compare.agreed_mapping
        self.assertRegex(self.compared(without).wrong[0], "the table alone")


if __name__ == "__main__":
    unittest.main()
