"""dws.held.copies: finds tensors made from a weight by their elements, and no others."""

from __future__ import annotations

import unittest
import unittest.mock
from typing import Any

import torch

from dws.held import copies
from dws.held.copies import constant_copies, find_copies

WIDE = 1 << 10


def random(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape).to(dtype)


class CopiesTest(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(7)
        # One is too large to be searched at each place.
        self.weights = {
            "norm": random(64),
            "conv": random(16, 1, 4),
            "router": random(8, 128, dtype=torch.bfloat16),
            "gate": random(1, 128, dtype=torch.bfloat16),
            "up": random(2 * WIDE, WIDE // 4, dtype=torch.bfloat16),
            "packed": torch.randint(-(2**31), 2**31 - 1, (64, 32), dtype=torch.int32),
            "experts": random(4, 96, WIDE),
            "sinks": random(64),
        }
        assert self.weights["up"].numel() > copies._SMALL_ELEMENTS

    def padded(self, tensor: Any, *shape: int) -> Any:
        target = torch.zeros(shape, dtype=tensor.dtype)
        target[tuple(slice(0, extent) for extent in tensor.shape)] = tensor
        return target

    def test_copies_of_every_form_are_found_with_their_weight(self) -> None:
        w = self.weights
        made = {
            "wider type": (w["router"].float(), "router"),
            "narrower type": (w["norm"].bfloat16(), "norm"),
            "double": (w["conv"].double(), "conv"),
            "reshaped": (w["up"].reshape(-1, WIDE).clone(), "up"),
            "flattened": (w["conv"].flatten().clone(), "conv"),
            "transposed": (w["up"].t().contiguous(), "up"),
            "transposed, of a stack's part": (w["experts"][2].t().contiguous().bfloat16(), "experts"),
            "stack, transposed": (w["experts"].transpose(1, 2).contiguous(), "experts"),
            "stack, transposed and cast": (w["experts"].transpose(1, 2).contiguous().bfloat16(), "experts"),
            "stack, transposed and padded": (self.padded(w["experts"].transpose(1, 2), 4, WIDE, 128), "experts"),
            "stack, permuted": (w["experts"].permute(2, 0, 1).contiguous(), "experts"),
            "stack, permuted, cast and padded": (self.padded(w["experts"].permute(2, 0, 1).half(), WIDE, 8, 96), "experts"),
            "in parts, permuted": (w["router"].view(8, 8, 16).permute(2, 0, 1).contiguous(), "router"),
            "few rows, transposed": (w["experts"][:, :3].transpose(1, 2).contiguous(), "experts"),
            "rows": (w["up"][100:132].clone(), "up"),
            "one row": (w["up"][77].clone(), "up"),
            "a rank's columns": (w["experts"][:, :, WIDE // 2 :].clone(), "experts"),
            "an odd slice of a small one": (w["norm"][13:29].double(), "norm"),
            "four elements": (w["sinks"][8:12].clone(), "sinks"),
            "padded rows": (self.padded(w["up"], 2 * WIDE, WIDE), "up"),
            "a padded slice": (self.padded(w["sinks"][8:16], 64), "sinks"),
            "several, by rows": (torch.cat([w["router"], w["gate"]]), "router"),
            "several, by columns": (torch.cat([random(8, 16), w["router"].float()], 1), "router"),
            "rows in another order": (w["up"][torch.randperm(2 * WIDE)].clone(), "up"),
            "integers": (w["packed"].t().contiguous(), "packed"),
        }
        found = find_copies(self.weights, {name: tensor for name, (tensor, _) in made.items()})
        for name, (_, weight) in made.items():
            with self.subTest(name):
                self.assertEqual(found.get(name), weight)

    def test_a_permuted_slice_of_a_large_weight_is_found_without_other_tensors_of_its_width(self) -> None:
        half = self.weights["experts"][:, :, WIDE // 2 :]
        for name, copy in (("stack", half.transpose(1, 2)), ("part", half[1].t())):
            with self.subTest(name):
                self.assertEqual(find_copies(self.weights, {"copy": copy.contiguous()}), {"copy": "experts"})

    def test_what_is_no_copy_is_not_found(self) -> None:
        positions = torch.arange(4096)
        angles = positions[:, None] * torch.logspace(0, -4, 32)[None]
        others = {
            "zeros": torch.zeros(8, 128),
            "ones": torch.ones(64),
            "one scale": torch.ones(1),
            "a scale of each of three": torch.tensor([0.5, 1.5, 2.5]),
            "positions": positions,
            "table of experts": torch.arange(64, dtype=torch.int32),
            "rotary table": torch.cat([angles.cos(), angles.sin()], -1),
            "slopes": 2.0 ** -torch.arange(1.0, 9.0),
            "mask": torch.ones(64, 64).tril().bool(),
            "causal mask": torch.full((64, 64), float("-inf")).triu(1),
            "random of the same shape": random(64),
            "half zeros": torch.cat([torch.zeros(32), torch.ones(32)]),
            "cache": torch.zeros(2, 10, 16, 8, 64, dtype=torch.bfloat16),
        }
        alike = {
            "zeros.weight": torch.zeros(8, 128),
            "ones.weight": torch.ones(64),
            "positions": positions.clone(),
            "table": torch.arange(64, dtype=torch.int32),
            "half": torch.cat([torch.zeros(32), torch.ones(32)]),
        }
        self.assertEqual(find_copies({**self.weights, **alike}, others), {})

    def test_rows_that_begin_like_a_weight_and_go_on_otherwise_are_no_copy(self) -> None:
        other = random(8, 128, dtype=torch.bfloat16)
        other[:, :5] = self.weights["router"][:, :5]
        self.assertEqual(find_copies(self.weights, {"other": other}), {})

    def test_weights_of_one_number_are_told_by_where_a_tensor_is(self) -> None:
        weights = {"layer.norm.weight": torch.ones(64), "layer.bias": torch.zeros(64)}
        tensors = {
            "layer.norm.fp32": torch.ones(64, dtype=torch.float64),
            "layer.norm_fp32": torch.ones(1, 64),
            "layer.norm.other_number": torch.full((64,), 2.0),
            "layer.norm.other_shape": torch.ones(32),
            "layer.norm.differs": torch.cat([torch.ones(63), torch.zeros(1)]),
            "layer.norm.zeros": torch.zeros(64),
            "other.ones": torch.ones(64),
        }
        owners = {name: name.rpartition(".")[0] for name in tensors}
        expected = dict.fromkeys(["layer.norm.fp32", "layer.norm_fp32"], "layer.norm.weight")
        self.assertEqual(constant_copies(weights, tensors, owners), expected)

    def test_types_that_torch_hardly_computes_with_are_compared_as_bits(self) -> None:
        bits = torch.randint(1, 100, (8, 64), dtype=torch.uint8)
        for name in ("float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn_x2", "uint8"):
            kind = getattr(torch, name, None)
            if kind is None:
                continue
            with self.subTest(name):
                weights = {**self.weights, "weight": bits.view(kind)}
                tensors = {"copy": bits[2:5].clone().view(kind), "wide": random(8, 96)}
                self.assertEqual(find_copies(weights, tensors), {"copy": "weight"})

    def test_many_weights_are_looked_at_in_pieces(self) -> None:
        weights = {f"{number}": random(16, 24) for number in range(600)}
        tensors = {"copy": weights["577"].double(), "other": random(16, 24)}
        for name, value in (("_BATCH_WINDOWS", 100), ("_SMALL_WINDOWS", 1000)):
            with self.subTest(name), unittest.mock.patch.object(copies, name, value):
                self.assertEqual(find_copies(weights, tensors), {"copy": "577"})

    def test_bits_of_a_weight_in_a_type_of_the_same_size_are_a_copy(self) -> None:
        weights = {**self.weights, "bytes": torch.randint(-99, 99, (16, 64), dtype=torch.int8)}
        for name, copy in (
            ("router", self.weights["router"].view(torch.int16).clone()),
            ("norm", self.weights["norm"].view(torch.int32).clone()),
            ("packed", self.weights["packed"].view(torch.float32).clone()),
            ("bytes", weights["bytes"].view(torch.uint8).t().contiguous()),
        ):
            with self.subTest(name):
                self.assertEqual(find_copies(weights, {"copy": copy}), {"copy": name})

    def test_each_weight_is_read_once_for_all_wider_tensors(self) -> None:
        weights = {f"scales.{number}": random(16, 56) for number in range(12)}
        tensors = {f"cache.{number}": random(32, 96) for number in range(12)}
        tensors["fused"] = torch.cat([random(16, 40), weights["scales.7"]], 1)
        runs_of = unittest.mock.Mock(wraps=copies._runs_of)
        with unittest.mock.patch.object(copies, "_runs_of", runs_of):
            self.assertEqual(find_copies(weights, tensors), {"fused": "scales.7"})
        self.assertEqual(runs_of.call_count, len(weights) + len(tensors))


if __name__ == "__main__":
    unittest.main()
