"""find_computed: what is computed from a weight element by element is found, and nothing else."""

from __future__ import annotations

import math
import unittest
from typing import Any

import torch

from dws.held.computed import find_computed


def quantised(weight: Any, tile: int, levels: float) -> Any:
    """Rows in tiles that have a scale each, rounded, as INT8."""
    tiles = weight.float().reshape(weight.shape[0], -1, tile)
    scales = tiles.abs().amax(-1, keepdim=True) / levels
    return (tiles / scales).round().to(torch.int8).reshape(weight.shape)


class ComputedTest(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(5)
        self.weights = {
            "norm": torch.rand(64).to(torch.bfloat16),
            "log": torch.randn(16),
            "matrix": torch.randn(96, 128).to(torch.bfloat16),
            "other": torch.randn(96, 128).to(torch.bfloat16),
            "stack": torch.randn(4, 32, 64),
            "ones": torch.ones(64),
            "rising": torch.arange(64.0),
        }

    def found(self, tensor: Any) -> Any:
        return find_computed(self.weights, {"it": tensor}).get("it")

    def test_elements_of_a_weight_after_a_function_are_found(self) -> None:
        w = self.weights
        for name, tensor in (
            ("norm", 1 + w["norm"].float()),
            ("norm", (2 * w["norm"]).half()),
            ("log", -w["log"].exp()),
            ("matrix", w["matrix"].float() * 0.3),
            ("matrix", (w["matrix"].float() * 3).t().contiguous()),
            ("matrix", quantised(w["matrix"], 32, 127)),
            ("other", quantised(w["other"], 128, 7)),
            ("other", quantised(w["other"], 128, 127).t().contiguous()),
            ("stack", (w["stack"].double() ** 3).permute(2, 0, 1).contiguous()),
            ("norm", (1 + w["norm"].float()).reshape(1, 1, 64)),
        ):
            with self.subTest(name, shape=tuple(tensor.shape), dtype=tensor.dtype):
                self.assertEqual(self.found(tensor), name)

    def test_what_no_weight_determines_is_not_found(self) -> None:
        w = self.weights
        angles = torch.arange(96.0)[:, None] * 10000 ** (-torch.arange(64.0) / 64)
        for what, tensor in (
            ("noise", torch.randn(96, 128)),
            ("one changed element", torch.cat([w["norm"][:5].float(), torch.zeros(1), w["norm"][6:].float()]) + 1),
            ("another order of rows", (w["matrix"].float() + 1).flip(0)),
            ("a rotary cache", torch.cat([angles.cos(), angles.sin()], -1)),
            ("frequencies", 10000 ** (-torch.arange(64.0) / 64)),
            ("positions", torch.arange(64)),
            ("ones", torch.full((64,), 2.0)),
            ("zeros", torch.zeros(96, 128)),
            ("a mask", torch.ones(96, 128).tril()),
            ("few elements", 1 + w["log"][:8]),
            ("not a number", torch.full((64,), math.nan)),
            ("truth", torch.rand(64) < 0.5),
            ("scalar", torch.tensor(3.0)),
            ("empty", torch.zeros(0)),
            ("several in one element", torch.randn(64).to(torch.complex64)),
        ):
            with self.subTest(what):
                self.assertIsNone(self.found(tensor))

    def test_a_table_that_rises_like_a_weight_says_nothing(self) -> None:
        self.assertIsNone(self.found(torch.arange(64.0) * 2 + 1))

    def test_a_product_of_two_weights_is_not_found(self) -> None:
        """A limit that the documents name."""
        self.assertIsNone(self.found(self.weights["matrix"].float() * self.weights["other"].float()))

    def test_each_of_many_weights_is_told_apart(self) -> None:
        weights = {f"layer.{n}": torch.rand(64) for n in range(5000)}
        tensors = {f"it.{n}": 1 + weights[f"layer.{n}"] for n in (0, 4095, 4096, 4999)}
        expected = {name: f"layer.{name[3:]}" for name in tensors}
        self.assertEqual(find_computed(weights, tensors), expected)


if __name__ == "__main__":
    unittest.main()
