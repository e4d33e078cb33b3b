"""dws.trainers.published_types: which weights dtype= casts."""

from __future__ import annotations

import os
import unittest
from typing import Any

import torch

import dws
from dws.dtypes import DType
from dws.trainers.published_types import PublishedTypes, kept_by_model
from dws.trainers.publisher import Publisher
from tests.clients.python.engine_models import save_checkpoint
from tests.clients.python.trainers.sender_case import SenderCase

BF16, F32 = "BF16", "F32"


class Gate(torch.nn.Module):
    """A router as transformers has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 4))
        # Eight numbers that are one in BF16.
        self.register_buffer("e_score_correction_bias", torch.linspace(5.0001, 5.0009, 8))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.Linear(4, 1, bias=False)
        self.gate = Gate()
        self.register_buffer("steps", torch.tensor([3]))
        self.register_buffer("small", torch.ones(2, dtype=torch.float16))


class Keeping(torch.nn.Module):
    """As a PreTrainedModel, in a module that is none."""

    _keep_in_fp32_modules = ["no*m"]
    _keep_in_fp32_modules_strict = {"gate.weight"}

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()


def outer() -> Any:
    made = torch.nn.Module()
    made.policy = Keeping()
    return made


class PublishedTypesTest(SenderCase):
    def published_types(self, module: Any, dtype: Any, **options: Any) -> dict[str, str]:
        publisher = Publisher(self.sender.socket, "job", dtype=dtype, **options)
        self.addCleanup(publisher.close)
        publisher.register(module)
        publisher.publish(1)
        shards = self.sender.register.layout.shards
        return {s.tensor.name: dws.DType(s.tensor.dtype).name for s in shards}

    def test_a_wider_buffer_keeps_its_type_and_its_values(self) -> None:
        module = Model()
        found = self.published_types(module, torch.bfloat16)
        bias = module.gate.e_score_correction_bias
        self.assertEqual(
            found,
            {
                "norm.weight": BF16,
                "gate.weight": BF16,
                "gate.e_score_correction_bias": F32,
                "steps": "I64",
                "small": BF16,
            },
        )
        self.assertEqual(len(set(bias.bfloat16().tolist())), 1)
        self.assertEqual(self.published("gate.e_score_correction_bias").tolist(), bias.tolist())

    def test_the_routers_bias_is_not_cast_where_it_is_a_parameter(self) -> None:
        module = torch.nn.Linear(8, 1)
        module.e_score_correction_bias = torch.nn.Parameter(torch.ones(8))
        for options, wanted in (({}, F32), ({"dtypes": {"e_score*": BF16}}, BF16)):
            found = self.published_types(module, torch.bfloat16, **options)
            self.assertEqual(found, {"weight": BF16, "bias": BF16, "e_score_correction_bias": wanted})

    def test_what_a_model_of_transformers_keeps_is_not_cast(self) -> None:
        for dtype, norm in ((torch.bfloat16, BF16), (torch.float16, F32)):
            found = self.published_types(outer(), dtype)
            wanted = {"norm.weight": norm, "gate.weight": F32, "gate.e_score_correction_bias": F32}
            self.assertEqual({name: found[f"policy.model.{name}"] for name in wanted}, wanted)
        self.assertEqual(kept_by_model(outer(), None, ["policy.model.gate.weight"]), ())

    def test_patterns_come_before_what_is_spared(self) -> None:
        for options, wanted in (
            ({"*norm.weight": torch.float32}, [F32, BF16, F32]),
            ({"*_bias": torch.bfloat16}, [BF16, BF16, BF16]),
            ({"gate.w*": "float32", "gate.e_*": BF16}, [BF16, F32, BF16]),
            # The first that matches counts.
            ({"gate.w*": F32, "*ate.*": "F16"}, [BF16, F32, "F16"]),
        ):
            found = self.published_types(Model(), torch.bfloat16, dtypes=options)
            names = ("norm.weight", "gate.weight", "gate.e_score_correction_bias")
            self.assertEqual([found[name] for name in names], wanted)
        found = self.published_types(outer(), torch.bfloat16, dtypes={"*.gate.weight": BF16})
        self.assertEqual(found["policy.model.gate.weight"], BF16)

    def test_what_engines_keep_in_fp32_is_widened(self) -> None:
        module = Model().bfloat16()
        found = self.published_types(module, None, dtypes={"*.weight": F32})
        weights = {name for name, dtype in found.items() if dtype == F32}
        self.assertEqual(weights, {"norm.weight", "gate.weight"})
        wanted = module.gate.weight.detach().float().reshape(-1)
        self.assertTrue(torch.equal(self.published("gate.weight"), wanted))

    def test_each_weight_is_published_in_the_type_that_a_checkpoint_has(self) -> None:
        module = Model()
        held = {name: tensor.detach() for name, tensor in module.state_dict().items()}
        wanted = {"norm.weight": BF16, "gate.weight": F32, "gate.e_score_correction_bias": F32, "small": "F16"}
        self.save({name: held[name].to(DType[dtype].torch) for name, dtype in wanted.items()})
        for made in (module, Model().bfloat16()):
            # With dtype= too: it never touches a weight that the checkpoint has.
            for dtype in (None, torch.bfloat16):
                found = self.published_types(made, dtype, dtypes=self.folder)
                self.assertEqual(found, {**wanted, "steps": "I64"})
        bias = made.gate.e_score_correction_bias
        self.assertEqual(self.published("gate.e_score_correction_bias").tolist(), bias.float().tolist())

    def test_a_checkpoint_that_lacks_a_weight_or_has_it_quantised_is_refused(self) -> None:
        held = dict(Model().state_dict())
        del held["gate.weight"]
        self.save(held)
        with self.assertRaisesRegex(dws.LayoutError, "checkpoint '.*', which has no tensor 'gate.weight'"):
            self.published_types(Model(), None, dtypes=self.folder)
        self.save({**held, "gate.weight": torch.zeros(8, 4, dtype=torch.uint8)})
        with self.assertRaisesRegex(dws.LayoutError, r"'gate.weight' quantised \(U8\): pass dtype="):
            self.published_types(Model(), None, dtypes=self.folder)
        self.assertIsNone(self.sender.register)
        self.assertEqual(self.published_types(Model(), torch.bfloat16, dtypes=self.folder)["gate.weight"], BF16)

    def save(self, tensors: Any) -> None:
        save_checkpoint(os.path.join(self.folder, "model.safetensors"), tensors)

    def test_a_pattern_without_effect_is_refused(self) -> None:
        for options, why in (
            ({"*.bias": F32}, r"dtypes= has '\*.bias'.*F32, found no weight"),
            ({"steps": F32}, "'steps', expected .* F32, found 'steps' I64"),
            ({"gates.*": BF16}, r"dtypes= has 'gates.\*'.*BF16, found no weight"),
            ({"gate.*": F32, "gate.weight": BF16}, "'gate.weight', expected .* BF16, found 'gate.weight' F32"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, why):
                self.published_types(Model(), torch.bfloat16, dtypes=options)
        self.assertIsNone(self.sender.register)

    def test_types_that_cannot_be_are_refused(self) -> None:
        given: Any
        for given, kind, why in (
            ({"a*": "float12"}, dws.DTypeError, r"dtypes= has 'a\*': element type 'float12' is unknown"),
            ({"a": torch.int8}, dws.DTypeError, "has 'a': I8, expected one of F16, BF16, F32, F64"),
            ({"a": None}, dws.DTypeError, "has 'a': element type None is unknown"),
            ({"*": F32}, dws.InvalidArgumentError, r"has '\*', which spares no weight: pass dtype="),
            (["a"], dws.InvalidArgumentError, "dtypes= is a list, expected a dict of patterns"),
            (os.path.join(self.folder, "none"), dws.InvalidArgumentError, "checkpoint '.*none' cannot be listed"),
        ):
            with self.assertRaisesRegex(kind, why):
                PublishedTypes(torch.bfloat16, given)
        for given, why in (
            (torch.int32, "dtype=: I32, expected one of F16, BF16, F32, F64"),
            ("U8", "dtype=: U8, expected"),
            (torch.float8_e4m3fn if hasattr(torch, "float8_e4m3fn") else "F8_E4M3", "dtype=: F8_E4M3, expected"),
            ("float12", "dtype=: element type 'float12' is unknown"),
        ):
            with self.assertRaisesRegex(dws.DTypeError, why):
                self.published_types(Model(), given)
        self.assertIsNone(self.sender.register)


if __name__ == "__main__":
    unittest.main()
