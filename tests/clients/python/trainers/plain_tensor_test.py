"""dws.arrays.require_plain: tensors that are not their memory are refused by name, on every way in."""

from __future__ import annotations

import types
import unittest
from typing import Any, Callable, Iterator

import numpy as np
import torch
from torch._subclasses import FakeTensorMode

import dws
from dws.arrays import require_plain
from dws.attachment import Attachment
from dws.declare import Parallel, from_megatron, from_module
from dws.plugins import canonical
from dws.plugins.attach import AttachedRank, AttachOptions, EngineRank
from dws.trainers.publisher import Publisher
from dws.trainers.weight_transfer import WeightTransfer
from tests.clients.python.trainers.sender_case import SenderCase, ShardedTensor

ROWS = 4


def weight() -> torch.Tensor:
    return torch.arange(ROWS * 2, dtype=torch.float32).reshape(ROWS, 2)


class Quantised(torch.Tensor):
    """As the classes of torchao and Transformer Engine: FP32 outside, integers and a scale inside."""

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, data.shape, dtype=data.dtype, requires_grad=data.requires_grad
        )

    def __init__(self, data: torch.Tensor) -> None:
        self.scale = 7 / 127
        self.data8 = (data.detach() / self.scale).to(torch.int8)

    def __tensor_flatten__(self) -> Any:
        return ["data8"], self.scale

    def dequantize(self) -> torch.Tensor:
        return self.data8.float() * self.scale

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return args[0]
        plain = [each.dequantize() if isinstance(each, cls) else each for each in args]
        return function(*plain, **(kwargs or {}))


class OverMemory(Quantised):
    """With memory of its own, which is not what it stands for."""

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> Any:
        return torch.Tensor._make_subclass(cls, data.detach().clone())


class Params4bit(torch.nn.Parameter):
    """Like that of bitsandbytes."""

    quant_state = "nf4"


def int8_params() -> torch.Tensor:
    kind = type("Int8Params", (torch.nn.Parameter,), {"__module__": "bitsandbytes.nn.modules"})
    return kind(torch.zeros(ROWS, 2, dtype=torch.int8), requires_grad=False)  # type: ignore[no-any-return]


def freed() -> torch.Tensor:
    """The state in which FSDP2 leaves a gathered parameter."""
    tensor = weight()
    (tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()).resize_(0)
    return tensor


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(ROWS, 2)


# What it is, and what the message says.
KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "quantised": (lambda: Quantised(weight()), r"Quantised, a wrapper.*dequantize\(\)"),
    "over memory": (lambda: OverMemory(weight()), "OverMemory, a wrapper"),
    "fake": (fake, "FakeTensor, a wrapper"),
    "meta": (lambda: weight().to("meta"), "on the meta device"),
    "sparse": (lambda: weight().to_sparse(), "torch.sparse_coo"),
    "mkldnn": (lambda: weight().to_mkldnn(), "torch._mkldnn"),
    "qint8": (lambda: torch.quantize_per_tensor(weight(), 0.1, 0, torch.qint8), "torch.qint8"),
    "nested": (lambda: torch.nested.nested_tensor([weight()[0], weight()[1, :1]]), "nested"),
    "lazy": (lambda: torch.nn.parameter.UninitializedBuffer(), "UninitializedBuffer, without a shape"),
    "negated": (lambda: weight()._neg_view(), "negated"),
    "imaginary": (lambda: weight().to(torch.complex64).conj().imag, "negated"),
    "conjugated": (lambda: weight().to(torch.complex64).conj(), "conjugated|complex64"),
    "4 bits": (lambda: Params4bit(weight()), "quantised by bitsandbytes"),
    "8 bits": (int8_params, "quantised by bitsandbytes"),
    "freed": (freed, "no memory of its own"),
    "zeros": (lambda: torch._efficientzerotensor((ROWS, 2)), "no memory"),
}


def module(tensor: Any) -> Any:
    made = torch.nn.Module()
    made.layer = torch.nn.Module()
    made.layer._buffers["w"] = tensor
    made.layer._parameters["v"] = torch.nn.Parameter(weight())
    return made


def sharded(tensor: Any) -> Any:
    part = ShardedTensor(weight(), 0, 1)
    part.local = tensor
    return part


class PlainTensorTest(SenderCase):
    def trainer(self) -> dws.Trainer:
        made = dws.Trainer(self.sender.socket, job_id="job")
        self.addCleanup(made.close)
        return made

    def put(self, tensor: Any) -> None:
        trainer = self.trainer()
        trainer.register_ring({"layer.w": weight()}, 1 << 19, 2)
        with trainer.version(1) as version:
            version.put("layer.w", tensor)

    def send_weights(self, tensor: Any) -> None:
        transfer = WeightTransfer(self.sender.socket, "job")
        self.addCleanup(transfer.destroy)
        weights: Iterator[tuple[str, Any]] = iter([("layer.w", tensor)])
        transfer.send_weights(weights)

    def replaced(self, tensor: Any) -> None:
        """A weight that becomes another kind during the training."""
        made = module(weight())
        publisher = Publisher(self.sender.socket, "job")
        self.addCleanup(publisher.close)
        publisher.register(made)
        made.layer._buffers["w"] = tensor
        publisher.publish(1)

    def ways(self) -> dict[str, Callable[[Any], Any]]:
        def publisher(dtype: Any) -> Publisher:
            return Publisher(self.sender.socket, "job", dtype=dtype)

        return {
            "Publisher": lambda t: publisher(None).register(module(t)),
            "Publisher, cast": lambda t: publisher(torch.bfloat16).register(module(t)),
            "its part": lambda t: publisher(None).register(module(sharded(t))),
            "Trainer, module": lambda t: self.trainer().register(module(t)),
            "Trainer, dict": lambda t: self.trainer().register({"layer.w": t}),
            "put": self.put,
            "send_weights": self.send_weights,
            "replaced": self.replaced,
            "from_module": lambda t: self.trainer().register(from_module(module(t))),
            "plugin": lambda t: AttachedRank(
                self.sender.socket, module(t), None, EngineRank(0, 1, canonical.Parallel()), None, AttachOptions(), None
            ),
            "Engine, module": lambda t: Attachment(module(t), None),
            "Engine, dict": lambda t: Attachment({"layer.w": t}, None),
        }

    def test_each_kind_is_refused_by_name_on_each_way_in(self) -> None:
        for kind, (make, why) in KINDS.items():
            for way, call in self.ways().items():
                with self.subTest(kind=kind, way=way):
                    with self.assertRaisesRegex(dws.DwsError, f"'layer.w'.*{why}"):
                        call(make())
        self.assertEqual(self.sender.published, [])

    def test_a_ring_needs_no_more_than_shapes(self) -> None:
        for tensor in (weight().to("meta"), Quantised(weight())):
            self.trainer().register_ring(module(tensor), 1 << 19, 2)
            found = {s.tensor.name: list(s.tensor.shape) for s in self.sender.register.layout.shards}
            self.assertEqual(found, {"layer.v": [ROWS, 2], "layer.w": [ROWS, 2]})
        with self.assertRaisesRegex(dws.LayoutError, "'layer.w' is a .*without a shape"):
            self.trainer().register_ring(module(torch.nn.parameter.UninitializedBuffer()))

    def test_a_dtensor_is_taken_by_the_publisher_alone(self) -> None:
        class DTensor(torch.Tensor):
            placements = ()

        tensor = weight().as_subclass(DTensor)
        for call in (
            lambda: self.trainer().register({"layer.w": tensor}),
            lambda: Attachment({"layer.w": tensor}, None),
        ):
            with self.assertRaisesRegex(dws.LayoutError, "'layer.w' is a .*DTensor.*Publisher"):
                call()

    def test_a_wrapper_of_a_device_is_refused_when_it_is_described(self) -> None:
        class OnDevice(Quantised):
            is_cuda = True  # type: ignore[assignment]

        for target in (module(OnDevice(weight())), {"layer.w": OnDevice(weight())}):
            with self.assertRaisesRegex(dws.LayoutError, "'layer.w' is a .*OnDevice"):
                Attachment(target, None).describe()
            with self.assertRaisesRegex(dws.LayoutError, "'layer.w'.*wrapper"):
                self.trainer().register(target)

    def test_a_tensor_of_megatron_is_refused_by_its_own_name(self) -> None:
        config = types.SimpleNamespace(
            model_type="qwen3", num_hidden_layers=1, hidden_size=8, num_attention_heads=2,
            num_key_value_heads=1, head_dim=4, intermediate_size=6, vocab_size=5, tie_word_embeddings=True,
        )
        chunk = {"embedding.word_embeddings.weight": Quantised(torch.zeros(5, 8))}
        with self.assertRaisesRegex(dws.LayoutError, "'embedding.word_embeddings.weight' is a .*Quantised"):
            Publisher(self.sender.socket, "job").register(from_megatron(chunk, config, Parallel()))

    def test_masked_arrays_are_refused(self) -> None:
        masked = np.ma.masked_array(np.ones(4, np.float32), [0, 1, 0, 0])
        for call in (
            lambda: self.trainer().register({"layer.w": masked}),
            lambda: Attachment({"layer.w": masked}, None),
        ):
            with self.assertRaisesRegex(dws.LayoutError, "'layer.w' is a masked array"):
                call()
        with self.assertRaisesRegex(dws.DTypeError, "'layer.w'.*'O'"):
            Attachment({"layer.w": np.array([1, "a"], object)}, None)

    def test_what_is_plain_passes(self) -> None:
        class Own(torch.nn.Parameter):
            """As those of vLLM: functions of its own, and the elements in memory."""

            @classmethod
            def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return super().__torch_function__(function, types, args, kwargs or {})

        plain = (
            weight(), torch.nn.Parameter(weight()), Own(weight()), torch.zeros(0, 3), weight()[1:], torch.tensor(3),
            weight().double(), torch.tensor([True]), np.ones(3), "no tensor", None,
        )
        for each in plain:
            require_plain("w", each)
        expanded = torch.ones(1).expand(ROWS)
        views = {"layer.v": weight().reshape(-1).tolist(), "layer.w": [1.0] * ROWS}
        publisher = Publisher(self.sender.socket, "job")
        self.addCleanup(publisher.close)
        publisher.register(module(expanded))
        publisher.publish(1)
        self.assertEqual({name: self.published(name).tolist() for name in views}, views)


if __name__ == "__main__":
    unittest.main()
