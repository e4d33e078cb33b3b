"""dws.trainers.published_types: which weights dtype= casts."""

from __future__ import annotations

import unittest
from typing import Any

import torch

import dws
from dws.trainers.published_types import PublishedTypes, kept_by_model
from dws.trainers.publisher import Publisher
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
        for options, wanted in (({}, F32), ({"cast": ["e_score*"]}, BF16)):
            found = self.published_types(module, torch.bfloat16, **options)
            self.assertEqual(found, {"weight": BF16, "bias": BF16, "e_score_correction_bias": wanted})

    def test_what_a_model_of_transformers_keeps_is_not_cast(self) -> None:
        for dtype, norm in ((torch.bfloat16, BF16), (torch.float16, F32)):
            found = self.published_types(outer(), dtype)
            wanted = {"norm.weight": norm, "gate.weight": F32, "gate.e_score_correction_bias": F32}
            self.assertEqual({name: found[f"policy.model.{name}"] for name in wanted}, wanted)
        self.assertEqual(kept_by_model(outer(), None, ["policy.model.gate.weight"]), ())

    def test_patterns_keep_and_cast_more(self) -> None:
        for options, wanted in (
            ({"keep_in_fp32": ["*norm.weight"]}, [F32, BF16, F32]),
            ({"cast": ["*_bias"]}, [BF16, BF16, BF16]),
            ({"keep_in_fp32": ["gate.w*"], "cast": ["gate.e_*"]}, [BF16, F32, BF16]),
        ):
            found = self.published_types(Model(), torch.bfloat16, **options)
            names = ("norm.weight", "gate.weight", "gate.e_score_correction_bias")
            self.assertEqual([found[name] for name in names], wanted)
        found = self.published_types(outer(), torch.bfloat16, cast=["*.gate.weight"])
        self.assertEqual(found["policy.model.gate.weight"], BF16)

    def test_what_engines_keep_in_fp32_is_widened(self) -> None:
        module = Model().bfloat16()
        found = self.published_types(module, None, keep_in_fp32=["*.weight"])
        weights = {name for name, dtype in found.items() if dtype == F32}
        self.assertEqual(weights, {"norm.weight", "gate.weight"})
        wanted = module.gate.weight.detach().float().reshape(-1)
        self.assertTrue(torch.equal(self.published("gate.weight"), wanted))

    def test_a_pattern_without_effect_is_refused(self) -> None:
        for options, why in (
            ({"keep_in_fp32": ["*.bias"]}, r"keep_in_fp32= has '\*.bias'.*F32, found no weight"),
            ({"keep_in_fp32": ["steps"]}, "'steps', expected .* F32, found 'steps' I64"),
            ({"cast": ["gates.*"]}, r"cast= has 'gates.\*'.*BF16, found no weight"),
            ({"cast": ["steps"]}, "found 'steps' I64"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, why):
                self.published_types(Model(), torch.bfloat16, **options)
        self.assertIsNone(self.sender.register)

    def test_options_that_contradict_each_other_are_refused(self) -> None:
        for given, why in (
            ((None, (), ["a"]), "exceptions of dtype="),
            ((torch.bfloat16, ["a", "b"], ["b"]), r"\['b'\] are in keep_in_fp32= and in cast="),
            ((torch.bfloat16, "*bias"), "keep_in_fp32= is a text"),
        ):
            with self.assertRaisesRegex(dws.InvalidArgumentError, why):
                PublishedTypes(*given)  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
