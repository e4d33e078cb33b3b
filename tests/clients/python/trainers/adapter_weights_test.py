"""dws.trainers.adapter_weights: an adapter in a model that is built as peft builds it. tools/real.sh trainers has peft itself."""

from __future__ import annotations

import types
import unittest
from typing import Any

import torch

import dws
from dws.trainers.publisher import Publisher
from tests.clients.python.trainers.sender_case import SenderCase


class LoraLinear(torch.nn.Module):
    """See peft.tuners.lora.layer.Linear."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.base_layer = torch.nn.Linear(columns, rows, bias=False).requires_grad_(False)
        self.lora_A = torch.nn.ModuleDict()
        self.lora_B = torch.nn.ModuleDict()
        self.scaling: dict[str, float] = {}

    def add(self, name: str, config: Any) -> None:
        self.lora_A[name] = torch.nn.Linear(self.base_layer.in_features, config.r, bias=False)
        self.lora_B[name] = torch.nn.Linear(config.r, self.base_layer.out_features, bias=False)
        self.scaling[name] = config.lora_alpha / config.r


class PeftModel(torch.nn.Module):
    """See peft.PeftModel."""

    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.ModuleDict({"q_proj": LoraLinear(6, 4), "down_proj": LoraLinear(4, 8)})
        self.base_model = torch.nn.ModuleDict({"model": layers})
        self.peft_config: dict[str, Any] = {}

    def add(self, name: str, r: int = 2, lora_alpha: int = 3, **more: Any) -> None:
        given = {"peft_type": "LORA", "r": r, "lora_alpha": lora_alpha, **more}
        config = self.peft_config[name] = types.SimpleNamespace(**given, to_dict=lambda: given)
        for layer in self.layers():
            layer.add(name, config)

    def layers(self) -> list[Any]:
        return [module for module in self.modules() if isinstance(module, LoraLinear)]


def model() -> PeftModel:
    torch.manual_seed(1)
    made = PeftModel()
    made.add("default")
    made.add("code", r=1, lora_alpha=1)
    return made


class AdapterWeightsTest(SenderCase):
    def publisher(self, adapter: Any, **options: Any) -> Publisher:
        made = Publisher(self.sender.socket, "job", adapter=adapter, **options)
        self.addCleanup(made.close)
        return made

    def registered(self) -> dict[str, list[int]]:
        return {shard.tensor.name: list(shard.tensor.shape) for shard in self.sender.register.layout.shards}

    def test_one_adapter_is_registered_by_the_names_that_peft_saves(self) -> None:
        self.publisher("default").register(model())
        self.assertEqual(
            self.registered(),
            {
                "base_model.model.q_proj.lora_A.weight": [2, 4],
                "base_model.model.q_proj.lora_B.weight": [6, 2],
                "base_model.model.down_proj.lora_A.weight": [2, 8],
                "base_model.model.down_proj.lora_B.weight": [4, 2],
                "dws.adapter.lora_alpha": [3],
                "dws.adapter.use_rslora": [1],
            },
        )

    def test_the_parameters_of_the_model_are_what_the_sender_reads(self) -> None:
        trained = model()
        publisher = self.publisher("default")
        publisher.register(trained)
        weight = trained.layers()[0].lora_B["default"].weight
        with torch.no_grad():
            weight.fill_(7.0)
        self.assertEqual(self.sender.region().count(weight.detach().numpy().tobytes()), 1)
        publisher.publish(1)
        self.assertEqual(self.sender.published, [1])

    def test_socket_and_job_have_the_name_of_the_adapter(self) -> None:
        socket = self.sender.socket.replace("sender", "{adapter}")
        made = Publisher(socket, "run-{adapter}", adapter="sender")
        self.addCleanup(made.close)
        trained = model()
        trained.add("sender")
        made.register(trained)
        self.assertEqual(self.sender.register.job_id, "run-sender")

    def test_without_adapter_the_message_names_it(self) -> None:
        with self.assertRaisesRegex(dws.LayoutError, "peft_config.*adapter= of Publisher"):
            self.publisher(None).register(model())

    def test_what_engines_would_not_get_is_refused_by_name(self) -> None:
        dora = model()
        dora.add("x", use_dora=True)
        trained = model()
        trained.layers()[0].base_layer.requires_grad_(True)
        scaled = model()
        scaled.layers()[1].scaling["x"] = 9.0
        for what, name, one in (
            ("no adapter 'x', found ..code', 'default'.", "x", model()),
            ("use_dora=True", "x", dora),
            ("q_proj.base_layer.weight' is trained beside adapter 'default'", "default", trained),
            ("no adapter", "default", torch.nn.Linear(2, 2)),
        ):
            with self.subTest(what), self.assertRaisesRegex(dws.LayoutError, what):
                self.publisher(name).register(one)
        self.assertIsNone(self.sender.register)

    def test_an_adapter_that_is_another_one_now_is_not_published(self) -> None:
        def scaled(one: PeftModel) -> None:
            one.layers()[1].scaling["default"] = 9.0

        def loaded(one: PeftModel) -> None:
            one.layers()[0].add("default", one.peft_config["default"])

        def deleted(one: PeftModel) -> None:
            del one.peft_config["default"]

        def wider(one: PeftModel) -> None:
            one.add("default", r=2, lora_alpha=5)

        def halved(one: PeftModel) -> None:
            one.peft_config["default"].to_dict()["lora_alpha"] = 0.5

        for change, what in (
            (halved, "lora_alpha=0.5, expected a whole number from 1 .*; it was otherwise when it was registered"),
            (scaled, "scaled by 9.0 in 'base_model.model.down_proj'"),
            (loaded, "another parameter 'base_model.model.q_proj.lora_A.weight'"),
            (deleted, "no adapter 'default'"),
            (wider, "had r 2, lora_alpha 3, use_rslora False when it was registered"),
        ):
            trained = model()
            publisher = self.publisher("default")
            publisher.register(trained)
            publisher.publish(1)
            change(trained)
            with self.subTest(what), self.assertRaisesRegex(dws.StateError, what):
                publisher.publish(2)
            publisher.close()


if __name__ == "__main__":
    unittest.main()
