"""dws.plugins.cast_parameters: what commits write in the trainer's type is cast into the engine's parameters, to the bit."""

from __future__ import annotations

import os
import tempfile
import unittest
from typing import Any, Callable
from unittest import mock

import grpc
import numpy as np
import torch

import dws
from dws._proto import engine_pb2
from dws.dtypes import DType
from dws.mapping import Part, Parts, Slice, Viewed
from dws.plugins import cast_parameters
from dws.plugins.agreed_mapping import Weights
from dws.plugins.attach import AttachedRank, AttachOptions, EngineRank
from dws.plugins.canonical import Canonical, Parallel
from dws.plugins.cast_parameters import CastParameters, casts_of, turned_types, within_limit
from dws.torch_module import named_tensors
from tests.clients.python.engine_models import Config, PaddedModel, checkpoint, save_checkpoint
from tests.clients.python.fake_daemons import FakeReceiver, resume

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
GATE = "model.layers.0.mlp.gate.weight"
# 1 and its neighbours in BF16, numbers below the normal ones, both zeros, infinity and NaNs.
SPECIAL_BITS = [0x3F80, 0x3F81, 0xBF7F, 0x0001, 0x8001, 0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0x7F81, 0xFFFF]


def special(shape: tuple[int, ...]) -> torch.Tensor:
    bits = np.resize(np.array(SPECIAL_BITS, np.uint16), shape)
    return torch.from_numpy(bits.view(np.int16)).view(BF16)


def bits_of(tensor: torch.Tensor) -> Any:
    signed = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return tensor.detach().contiguous().view(signed).numpy().view(f"u{tensor.element_size()}")


class Router(torch.nn.Module):
    """Rows of which the last one is padding."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = torch.nn.Parameter(torch.ones(3, dtype=BF16))
        self.weight = torch.nn.Parameter(torch.full((5, 6), 7.5, dtype=dtype), requires_grad=False)


# Rows 0 and 1 are rows 2 and 3 of one tensor, rows 2 and 3 columns of another.
MAPPING = {
    "weight": Parts([Part(Slice("a", 0, 2, 4), [(0, 2)]), Part(Slice("b", 1, 0, 6), [(2, 4), (0, 6)])]),
    "norm": "norm",
}


class CastParametersTest(unittest.TestCase):
    def made(self, own: torch.dtype, published: DType) -> tuple[Router, CastParameters, torch.Tensor]:
        router = Router(own)
        casts = CastParameters(router, MAPPING, {"weight": published})
        return router, casts, named_tensors(casts.target)[f"weight ({published.name})"]

    def test_the_twin_is_attached_in_the_place_of_the_parameter(self) -> None:
        router, casts, twin = self.made(F32, DType.BF16)
        tensors = named_tensors(casts.target)
        self.assertEqual(list(tensors), ["norm", "weight", "weight (BF16)"])
        self.assertIs(tensors["norm"], router.norm)
        self.assertEqual((twin.dtype, tuple(twin.shape)), (BF16, (5, 6)))
        self.assertTrue((twin == 7.5).all())
        self.assertEqual(casts.mapping, {"norm": "norm", "weight": None, "weight (BF16)": MAPPING["weight"]})
        self.assertIn("1 parameters are cast after each commit that changes them (weight F32 of BF16; 0 MiB", casts.how())

    def test_every_kind_of_number_is_widened_to_the_bit(self) -> None:
        router, casts, twin = self.made(F32, DType.BF16)
        twin.copy_(special((5, 6)))
        casts.write(None)
        wanted = bits_of(special((5, 6))).astype(np.uint32) << 16
        self.assertTrue(np.array_equal(bits_of(router.weight)[:4], wanted[:4]))
        self.assertTrue((router.weight[4] == 7.5).all())  # padding

    def test_fp16_is_widened_and_fp32_narrowed_as_numpy_does_it(self) -> None:
        router, casts, twin = self.made(F32, DType.F16)
        values = torch.linspace(-3, 5, 30).reshape(5, 6)
        twin.copy_(values)
        casts.write(None)
        self.assertTrue(np.array_equal(router.weight[:4].numpy(), values[:4].numpy().astype(np.float16).astype(np.float32)))
        router, casts, twin = self.made(BF16, DType.F32)
        twin.copy_(values)
        casts.write(None)
        bits = bits_of(values).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to the nearest, ties to even
        self.assertTrue(np.array_equal(bits_of(router.weight)[:4], rounded[:4].astype(np.uint16)))

    def test_inference_tensors_are_written_too(self) -> None:
        with torch.inference_mode():
            router = Router(F32)
        casts = CastParameters(router, MAPPING, {"weight": DType.BF16})
        named_tensors(casts.target)["weight (BF16)"].fill_(2.0)
        casts.write(None)
        self.assertTrue((router.weight[:4] == 2.0).all())

    def test_only_what_has_changed_is_written_and_the_rest_is_read(self) -> None:
        router, casts, twin = self.made(F32, DType.BF16)
        twin.fill_(2.0)
        casts.write(None)
        with self.assertNoLogs():  # type: ignore[attr-defined]
            casts.write(frozenset({"norm"}))
            casts.write(frozenset())
        with torch.no_grad():
            router.weight[1, 2] += 2**-20  # that BF16 cannot tell
        with self.assertLogs("dws.plugins.cast_parameters", "WARNING") as logs:
            casts.write(frozenset({"norm"}))
        self.assertIn("something else than a commit has changed parameter 'weight'", logs.output[0])
        self.assertTrue((router.weight[:4] == 2.0).all())
        twin.fill_(3.0)
        casts.write(frozenset({"b"}))
        self.assertTrue((router.weight[:4] == 3.0).all())

    def test_a_parameter_that_was_replaced_is_written_where_passes_find_it(self) -> None:
        router, casts, twin = self.made(F32, DType.BF16)
        twin.fill_(2.0)
        router.weight = torch.nn.Parameter(torch.zeros(5, 6), requires_grad=False)
        casts.write(None)
        self.assertTrue((router.weight[:4] == 2.0).all())
        for other in (torch.zeros(5, 6, dtype=BF16), torch.zeros(5, 5)):
            router.weight = torch.nn.Parameter(other, requires_grad=False)
            with self.assertRaisesRegex(dws.LayoutError, r"'weight': expected torch.float32 \[5, 6\].* and found torch"):
                casts.write(None)
        del router.weight
        with self.assertRaisesRegex(dws.LayoutError, "found none"):
            casts.write(None)

    def test_a_parameter_that_does_not_keep_what_is_written_fails_the_commit(self) -> None:
        _, casts, twin = self.made(F32, DType.BF16)
        twin.fill_(2.0)
        wrong: Callable[..., None] = lambda cast, now: now.copy_(torch.full((5, 6), 2.0 + 2**-20))
        with mock.patch.object(cast_parameters._Cast, "write", wrong):
            with self.assertRaisesRegex(dws.LayoutError, "'weight' torch.float32: expected the elements of torch.bfloat16"):
                casts.write(None)

    def test_which_parameters_are_cast(self) -> None:
        canonical = {
            **{name: Canonical((4,), DType.BF16) for name in ("a", "b")},
            "wide": Canonical((4,), DType.F32),
            "codes": Canonical((4,), DType.F8_E4M3),
        }
        tensors = {
            **{name: torch.zeros(4, dtype=F32) for name in ("router", "bias", "mixed", "scale", "own", "given")},
            **{name: torch.zeros(4, dtype=BF16) for name in ("same", "narrow", "narrow given")},
            "int": torch.zeros(4, dtype=torch.int32),
        }
        mapping: dict[str, Any] = {
            **{"router": dws.Fused(["a", "b"]), "bias": "wide", "mixed": dws.Fused(["a", "wide"]), "scale": "codes"},
            **{"own": None, "given": "a", "same": "a", "narrow": "wide", "narrow given": "wide", "int": "a"},
        }
        found = casts_of(tensors, mapping, canonical, ["given", "narrow given"])
        self.assertEqual(found, {"router": DType.BF16, "given": DType.BF16, "narrow": DType.F32})

    def test_an_engine_in_another_type_as_a_whole_is_not_cast(self) -> None:
        module = torch.nn.Module()
        module.router, module.rest = (torch.nn.Parameter(torch.zeros(n)) for n in (1, 1))
        types = {"router": DType.BF16}
        self.assertEqual(within_limit(module, types), types)
        self.assertEqual(within_limit(module, {**types, "rest": DType.BF16}), {})


class TransposedTest(unittest.TestCase):
    """Experts as gpt-oss has them: the engine's are [expert, column, row], with a column of padding."""

    MAPPING = {"weight": Viewed(Parts([Part(Slice("up", 2, 4, 8), [(0, 2), (0, 6), (0, 4)])]), (2, 5, 6), (0, 2, 1))}

    def made(self, own: torch.dtype) -> tuple[torch.nn.Parameter, CastParameters, torch.Tensor]:
        experts = torch.nn.Module()
        weight = experts.weight = torch.nn.Parameter(torch.full((2, 5, 6), 7.5, dtype=own), requires_grad=False)
        types = turned_types(experts, self.MAPPING)
        self.assertEqual(types, {"weight": DType.of(own)})
        casts = CastParameters(experts, self.MAPPING, {"weight": DType.BF16})
        return weight, casts, named_tensors(casts.target)["weight (BF16)"]

    def test_the_twin_has_the_order_of_the_checkpoint(self) -> None:
        _, casts, twin = self.made(BF16)
        self.assertEqual((tuple(twin.shape), twin.is_contiguous()), ((2, 6, 5), True))
        self.assertEqual(casts.mapping, {"weight": None, "weight (BF16)": self.MAPPING["weight"].source})
        self.assertRegex(casts.how(), "^; 1 parameters are transposed after each commit that changes them .weight; 0 MiB kept")

    def test_what_is_written_is_transposed_to_the_bit_and_padding_stays(self) -> None:
        for own in (BF16, F32):
            weight, casts, twin = self.made(own)
            twin.copy_(special((2, 6, 5)))
            casts.write(None)
            wanted = bits_of(special((2, 6, 5))).transpose(0, 2, 1)[:, :4].astype(np.uint32)
            found = bits_of(weight)[:, :4]
            self.assertTrue(np.array_equal(found, wanted if own is BF16 else wanted << 16))
            self.assertTrue((weight[:, 4] == 7.5).all())

    def test_only_what_has_changed_is_written_and_the_rest_is_read(self) -> None:
        weight, casts, twin = self.made(BF16)
        twin.fill_(2.0)
        casts.write(None)
        with self.assertNoLogs():  # type: ignore[attr-defined]
            casts.write(frozenset({"down"}))
        with torch.no_grad():
            weight[1, 3, 5] = 1.0
        with self.assertLogs("dws.plugins.cast_parameters", "WARNING"):
            casts.write(frozenset({"down"}))
        self.assertTrue((weight[:, :4] == 2.0).all())
        twin.fill_(3.0)
        casts.write(frozenset({"up"}))
        self.assertTrue((weight[:, :4] == 3.0).all())


class Receiver(FakeReceiver):
    """Refuses what the real one refuses: views of another type than the trainer publishes."""

    def __init__(self, folder: str, published: dict[str, DType]) -> None:
        self.published = published
        super().__init__(folder)

    def Attach(self, request: Any, context: Any) -> Any:
        for view in request.views:
            wanted = self.published.get(view.tensor, DType.BF16)
            if view.dtype != wanted.value:
                text = f"view '{view.engine_name}' is {DType(view.dtype).name}, tensor '{view.tensor}' is {wanted.name}"
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        return super().Attach(request, context)


class AttachTest(unittest.TestCase):
    """A model of an engine that keeps its router in FP32, attached to a stand-in for the receiver."""

    CONFIG = Config(num_hidden_layers=1, num_experts=4)

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.weights = checkpoint(self.CONFIG, seed=1)
        self.model = PaddedModel(self.CONFIG, 0, 1)
        self.model.tensor(GATE).data = self.model.tensor(GATE).data.float()
        self.save(self.weights)

    def save(self, weights: Any) -> None:
        save_checkpoint(os.path.join(self.folder, "model.safetensors"), weights)
        self.model.load_weights(weights)

    def attached(self, published: dict[str, DType], checked: bool = False) -> tuple[AttachedRank, Receiver]:
        receiver = Receiver(self.folder, published)
        self.addCleanup(receiver.stop)
        options = AttachOptions(checkpoint=self.folder if checked else None, timeout=20)
        rank = EngineRank(0, 1, Parallel())
        found = AttachedRank(receiver.socket, self.model, self.CONFIG, rank, None, options, Weights(self.folder))
        self.addCleanup(found.close)
        return found, receiver

    def views(self, receiver: Receiver) -> list[tuple[str, str]]:
        return [(v.engine_name, DType(v.dtype).name) for v in receiver.attached.views if v.tensor == GATE]

    def test_a_commit_of_a_bf16_trainer_reaches_the_router_in_fp32(self) -> None:
        for checked in (False, True):
            attached, receiver = self.attached({}, checked)
            self.assertIn("1 parameters are cast after each commit", attached.mapping_by)
            self.assertEqual(self.views(receiver), [(f"{GATE} (BF16)", "BF16")])
            self.assertTrue(receiver.attached.has_post_commit_hook)
            new = checkpoint(self.CONFIG, seed=2)[GATE]
            self.commit(receiver, new)
            live = self.model.tensor(GATE)
            self.assertIs(live.dtype, F32)
            self.assertTrue(np.array_equal(bits_of(live), bits_of(new).astype(np.uint32) << 16))
            # The model of SGLang holds it so: the twin is no copy that goes stale.
            object.__setattr__(self.model, "_dws_attached", attached)
            with attached.engine.running(20):
                pass
            self.assertIsNone(attached.engine.stopped)
            attached.close()
            receiver.stop()
            self.model.load_weights(self.weights)

    def commit(self, receiver: Receiver, new: torch.Tensor) -> None:
        """Writes the twin, as a commit does, and has the engine's hook run."""
        down, up = receiver.leases.get(timeout=20)
        up.get(timeout=20)
        view = next(view for view in receiver.attached.views if view.tensor == GATE)
        memory = np.frombuffer(receiver.writable_region(), np.uint16)
        memory[view.offset_bytes // 2 :][: new.numel()] = bits_of(new).reshape(-1)
        down.put(engine_pb2.LeaseDown(post_commit=engine_pb2.PostCommit(pause_id=1, version=1)))
        self.assertEqual(up.get(timeout=20).post_commit_done.error, "")
        down.put(resume(1, 1))

    def test_a_trainer_that_publishes_the_engines_types_is_attached_as_it_is(self) -> None:
        attached, receiver = self.attached({GATE: DType.F32})
        self.assertNotIn("cast", attached.mapping_by)
        self.assertEqual(self.views(receiver), [(GATE, "F32")])
        self.assertFalse(receiver.attached.has_post_commit_hook)

    def test_a_trainer_with_fewer_bits_than_the_checkpoint_is_refused(self) -> None:
        self.save({**self.weights, GATE: self.weights[GATE].float()})
        self.refused({}, f"view '{GATE}' is F32, tensor '{GATE}' is BF16$")

    def test_a_trainer_with_neither_types_is_refused_by_both(self) -> None:
        self.refused(
            {GATE: DType.F16},
            rf"view '{GATE}' is F32, tensor '{GATE}' is F16; and with 1 parameters as the engine's checkpoint has them, such "
            rf"as '{GATE}': .*view '{GATE} \(BF16\)' is BF16, tensor '{GATE}' is F16. Publish each weight in the type",
        )

    def refused(self, published: dict[str, DType], message: str) -> None:
        before = {name: tensor.clone() for name, tensor in named_tensors(self.model).items()}
        with self.assertRaisesRegex(dws.InvalidArgumentError, message):
            self.attached(published)
        for name, tensor in named_tensors(self.model).items():
            self.assertTrue(torch.equal(tensor, before[name]), name)

    def test_a_cast_that_loses_bits_is_made_as_the_loader_makes_it(self) -> None:
        norm = "model.norm.weight"
        wide = self.weights[norm].float() + 2**-12
        self.save({**self.weights, norm: wide})
        attached, receiver = self.attached({norm: DType.F32, GATE: DType.BF16})
        views = [(v.engine_name, DType(v.dtype).name) for v in receiver.attached.views if v.tensor == norm]
        self.assertEqual(views, [(f"{norm} (F32)", "F32")])
        self.assertIn("2 parameters are cast", attached.mapping_by)


if __name__ == "__main__":
    unittest.main()
