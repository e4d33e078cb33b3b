"""tools/real.sh capture without engines: its comparison finds a wrong mapping."""

from __future__ import annotations

import os
import tempfile
import unittest
from typing import Any
from unittest import mock

import torch

from dws.plugins.canonical import Parallel
from tests.clients.python.engine_models import Config, PaddedModel, checkpoint, save_checkpoint
from tools.real.capture import compare


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
