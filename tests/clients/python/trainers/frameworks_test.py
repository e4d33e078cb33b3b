"""dws.trainers.hf, grpo and weight_transfer in stand-ins for transformers and TRL: which versions
they publish, and when."""

from __future__ import annotations

import sys
import types
import unittest
from typing import Any, Iterator
from unittest import mock

import torch

import dws
from dws.trainers.grpo import generation_by_dws
from dws.trainers.weight_transfer import WeightTransfer
from tests.clients.python.trainers.sender_case import SenderCase

_transformers = types.ModuleType("transformers")
_transformers.TrainerCallback = object  # type: ignore[attr-defined]
with mock.patch.dict(sys.modules, {"transformers": _transformers}):
    from dws.trainers.hf import PublishCallback


class VLLMClient:
    """As TRL's, without a server."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def init_communicator(self, device: int = 0) -> None:
        self.calls.append("init_communicator")

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset_prefix_cache")


class VLLMGeneration:
    """As TRL's: joins the server's group when it is made, sends weights in sync_weights."""

    def __init__(self, model: Any, mode: str = "colocate") -> None:
        self.model, self.mode = model, mode
        self.accelerator = mock.Mock(is_main_process=True)
        self.vllm_client = VLLMClient()
        self.vllm_client.init_communicator()

    def sync_weights(self) -> None:
        self.vllm_client.calls.append("sent by NCCL")


def trl_modules() -> dict[str, types.ModuleType]:
    names = (
        "trl",
        "trl.generation",
        "trl.generation.vllm_client",
        "trl.generation.vllm_generation",
    )
    found = {name: types.ModuleType(name) for name in names}
    found["trl.generation.vllm_client"].VLLMClient = VLLMClient  # type: ignore[attr-defined]
    generation = found["trl.generation.vllm_generation"]
    generation.VLLMGeneration = VLLMGeneration  # type: ignore[attr-defined]
    return found


class CallbackCase(SenderCase):
    def setUp(self) -> None:
        super().setUp()
        self.model = torch.nn.Linear(3, 2)
        self.state = types.SimpleNamespace(global_step=0)

    def callback(self, **options: Any) -> PublishCallback:
        callback = PublishCallback(self.sender.socket, "job", **options)
        self.addCleanup(callback.close)
        return callback

    def begin(self, callback: PublishCallback) -> None:
        callback.on_train_begin(None, self.state, None, model=self.model)

    def step(self, callback: PublishCallback) -> None:
        with torch.no_grad():
            self.model.weight.add_(1)
        self.state.global_step += 1
        callback.on_step_end(None, self.state, None, model=self.model)


class PublishCallbackTest(CallbackCase):
    def test_the_first_the_last_and_every_second_state_are_published(self) -> None:
        callback = self.callback(every_steps=2)
        self.begin(callback)
        self.assertEqual(self.sender.published, [1])
        for _ in range(5):
            self.step(callback)
        self.assertEqual(self.sender.published, [1, 3, 5])
        callback.on_train_end(None, self.state, None)
        self.assertEqual(self.sender.published, [1, 3, 5, 6])
        self.assertTrue(
            torch.equal(self.published("weight"), self.model.weight.detach().reshape(-1))
        )

    def test_exceptions_of_the_cast_are_passed_on(self) -> None:
        self.model.register_buffer("scale", torch.ones(1))
        for options, types in (
            ({}, {"weight": "BF16", "bias": "BF16", "scale": "F32"}),
            (
                {"dtypes": {"bias": torch.float32, "scale": "BF16"}},
                {"weight": "BF16", "bias": "F32", "scale": "BF16"},
            ),
        ):
            self.begin(self.callback(dtype=torch.bfloat16, **options))
            shards = self.sender.register.layout.shards
            found = {s.tensor.name: dws.DType(s.tensor.dtype).name for s in shards}
            self.assertEqual(found, types)

    def test_copies_to_the_host_may_be_asked_for(self) -> None:
        for options, on_device in (({}, True), ({"on_device": False}, False)):
            with mock.patch("dws.trainers.hf.Publisher") as made:
                self.begin(self.callback(**options))
            self.assertIs(made.call_args.kwargs["on_device"], on_device)

    def test_a_resumed_training_goes_on_with_its_steps_in_a_new_stream(self) -> None:
        callback = self.callback()
        self.begin(callback)
        first = self.sender.register.stream
        self.state.global_step = 40
        self.begin(callback)
        self.assertEqual(self.sender.published, [1, 41])
        self.assertNotEqual(self.sender.register.stream, first)

    def test_it_waits_if_asked_and_no_longer(self) -> None:
        callback = self.callback(wait=2, wait_timeout=1)
        self.begin(callback)
        with mock.patch.object(
            dws.Trainer, "wait", side_effect=dws.NotCommittedError("late")
        ) as wait:
            with self.assertRaises(dws.NotCommittedError):
                self.step(callback)
        self.assertEqual(wait.call_args.args, (2, 2, 1))
        self.assertEqual(self.sender.published, [1, 2])

    def test_the_weights_of_the_best_checkpoint_are_the_last_version(self) -> None:
        for best, published in (("checkpoint-1", [1, 2, 3]), (None, [1, 2])):
            self.state = types.SimpleNamespace(global_step=0, best_model_checkpoint=best)
            callback = self.callback()
            self.begin(callback)
            self.step(callback)
            with torch.no_grad():
                self.model.weight.fill_(7 if best else 8)
            args = types.SimpleNamespace(load_best_model_at_end=True)
            callback.on_train_end(args, self.state, None)
            self.assertEqual(self.sender.published, published)
            self.sender.published.clear()

    def test_all_is_not_met_while_a_receiver_is_left_out(self) -> None:
        behind = dws.results.ReceiverBehind("r1", 4, 0, 301.0, "")
        result = dws.WaitResult(("r0",), 0, 0.1, left_out=(behind,), present=2)
        callback = self.callback(wait=1)
        transfer = WeightTransfer(self.sender.socket, "job")
        self.addCleanup(transfer.destroy)
        with mock.patch.object(dws.Trainer, "wait", return_value=result):
            self.begin(callback)
            self.assertIs(callback.bring("any", 1), result)
            for go_on in (
                lambda: callback.bring("all", 1),
                lambda: self.begin(self.callback(wait="all")),
                lambda: transfer.send_weights(iter([("w", torch.zeros(2))])),
            ):
                with self.assertRaisesRegex(dws.NotCommittedError, r"left out are r1 \(has 4\)") as e:
                    go_on()
                self.assertEqual(e.exception.left_out, (behind,))

    def test_misuse_is_refused(self) -> None:
        with self.assertRaisesRegex(dws.InvalidArgumentError, "every_steps 0: expected at least 1"):
            self.callback(every_steps=0)
        with self.assertRaisesRegex(dws.StateError, "no training is under way"):
            self.callback().bring("all", 1)


class GenerationTest(CallbackCase):
    def test_weights_are_published_where_they_would_be_sent(self) -> None:
        callback = self.callback(every_steps=100)
        with mock.patch.dict(sys.modules, trl_modules()), generation_by_dws(callback):
            generation = VLLMGeneration(self.model, mode="server")
        self.begin(callback)
        self.step(callback)
        self.assertEqual(self.sender.published, [1])
        generation.sync_weights()
        self.assertEqual(self.sender.published, [1, 2])
        self.assertEqual(generation.vllm_client.calls, ["reset_prefix_cache"])
        generation.accelerator.wait_for_everyone.assert_called_once_with()
        self.step(callback)
        generation.sync_weights()
        self.assertEqual(self.sender.published, [1, 2, 3])

    def test_trainers_made_elsewhere_keep_their_way(self) -> None:
        with mock.patch.dict(sys.modules, trl_modules()):
            with self.assertRaises(RuntimeError), generation_by_dws(self.callback()):
                raise RuntimeError
        generation = VLLMGeneration(self.model, mode="server")
        generation.sync_weights()
        self.assertEqual(generation.vllm_client.calls, ["init_communicator", "sent by NCCL"])

    def test_an_engine_in_the_trainers_process_is_refused(self) -> None:
        with mock.patch.dict(sys.modules, trl_modules()), generation_by_dws(self.callback()):
            with self.assertRaisesRegex(dws.InvalidArgumentError, "vllm_mode is 'colocate'"):
                VLLMGeneration(self.model)

    def test_another_trl_is_refused_by_what_it_lacks(self) -> None:
        modules = trl_modules()
        del modules["trl.generation.vllm_generation"].VLLMGeneration  # type: ignore[attr-defined]
        with mock.patch.dict(sys.modules, modules):
            with self.assertRaisesRegex(dws.StateError, "VLLMGeneration"):
                with generation_by_dws(self.callback()):
                    self.fail("the block must not run")


class WeightTransferTest(SenderCase):
    def transfer(self) -> WeightTransfer:
        transfer = WeightTransfer(self.sender.socket, "job", timeout=1)
        self.addCleanup(transfer.destroy)
        return transfer

    def weights(self, value: float) -> Iterator[tuple[str, torch.Tensor]]:
        """One tensor after the other in the same memory, as gathered ones may be."""
        memory = torch.zeros(6)
        for name in ("b", "a"):
            memory.fill_(value + (name == "a"))
            yield name, memory.reshape(2, 3)

    def test_streamed_weights_are_versions(self) -> None:
        transfer = self.transfer()
        transfer.init_weight_transfer()
        for version in (1, 2):
            transfer.pause()
            transfer.send_weights(self.weights(10 * version))
            transfer.resume()
            self.assertEqual(self.sender.published, list(range(1, version + 1)))
            values = [float(self.sender.slices[i].view("f4")[-1]) for i in range(2)]
            self.assertEqual(values, [10 * version + 1, 10 * version])

    def test_a_registration_that_failed_is_tried_again(self) -> None:
        transfer = self.transfer()
        with mock.patch.object(
            dws.Trainer, "register_ring", side_effect=dws.DaemonUnavailableError("no sender")
        ):
            with self.assertRaises(dws.DaemonUnavailableError):
                transfer.send_weights(self.weights(1))
        transfer.send_weights(self.weights(1))
        self.assertEqual(self.sender.published, [1])

    def test_other_weights_than_the_first_time_are_refused(self) -> None:
        transfer = self.transfer()
        transfer.send_weights(self.weights(1))
        for weights, why in (
            ([("b", torch.zeros(2, 3))], "version 2 lacks 1 weights, such as 'a'"),
            ([("c", torch.zeros(2, 3))], "'c' was not among the weights"),
        ):
            with self.assertRaisesRegex(dws.StateError, why):
                transfer.send_weights(iter(weights))
        self.assertEqual(self.sender.published, [1])
        transfer.send_weights(self.weights(2))
        self.assertEqual(self.sender.published, [1, 2])


if __name__ == "__main__":
    unittest.main()
