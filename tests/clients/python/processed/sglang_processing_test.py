"""dws.plugins.sglang_processing: its records of a model that is being built, and the calls that it
makes SGLang do."""

from __future__ import annotations

import unittest
from typing import Any

import torch

from dws.plugins.sglang_processing import SglangProcessing, record


class Method:
    def process_weights_after_loading(self, layer: Any) -> None:
        layer.weight = torch.nn.Parameter(layer.weight.data + 1, requires_grad=False)


class Loaded(torch.nn.Parameter):
    """With a loader, as SGLang's."""


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2, bias=False)
        self.layer.weight = Loaded(torch.zeros(2, 2), requires_grad=False)
        self.layer.weight.weight_loader = len
        self.layer.quant_method = Method()
        self.attention = torch.nn.Module()
        self.attention.kv_b_proj = torch.nn.Linear(2, 2)
        self.attention.w_kc = torch.zeros(1)
        self.derived: list[Any] = []

    def post_load_weights(self, weight_names: Any) -> None:
        self.derived.append(weight_names)


class SglangProcessingTest(unittest.TestCase):
    def setUp(self) -> None:
        self.model = Model()
        self.processing = SglangProcessing(self.model)

    def test_what_loaders_take_is_what_the_built_model_had(self) -> None:
        self.assertIsNone(self.processing.of("layer", self.model.layer))  # the hook was not applied
        self.assertIsNone(record(self.model))
        self.model.layer.quant_method.process_weights_after_loading(self.model.layer)
        found = self.processing.of("layer", self.model.layer)
        assert found is not None
        loaded = found.loaded["weight"]
        self.assertIsInstance(loaded, Loaded)
        self.assertEqual((loaded.device.type, loaded.weight_loader), ("meta", len))
        found.run()
        self.assertEqual(float(self.model.layer.weight.sum()), 8.0)
        self.assertIsNone(self.processing.of("attention.kv_b_proj", self.model.attention.kv_b_proj))

    def test_of_mla_the_model_derives_one_layer_but_not_while_it_loads(self) -> None:
        found = self.processing.of("model.layers.3.self_attn", self.model.attention)
        assert found is not None
        self.assertTrue(found.derives)
        with self.processing.loading():
            self.model.post_load_weights(weight_names=["all"])
        self.assertEqual(self.model.derived, [])
        found.run()
        self.assertEqual(self.model.derived, [["model.layers.3.self_attn.kv_b_proj.weight"]])


if __name__ == "__main__":
    unittest.main()
