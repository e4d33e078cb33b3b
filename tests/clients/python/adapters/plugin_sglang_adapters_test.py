"""dws.sglang with adapters, in a stand-in for SGLang: a commit becomes what SGLang makes of a checkpoint, and nothing else is written."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from typing import Any, Optional
from unittest import TestCase, main, mock

import torch

import dws
import dws.sglang
from dws.plugins import sglang_adapters
from dws.plugins.attach import EngineRank
from dws.plugins.canonical import Parallel
from tests.clients.python.adapters.adapter_case import FOUND, Receiver, save, tensors
from tests.clients.python.engine_models import Config, RankModel
from tests.clients.python.fake_daemons import pause

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fake_engines"))

from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.lora.adapters import SchedulerAdapters  # noqa: E402
from sglang.srt.lora.lora_registry import LoRARef  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402
from sglang.srt.model_executor.model_runner import ModelRunner  # noqa: E402
from sglang.srt.model_loader import loader  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402

SMALL = Config(num_hidden_layers=1, vocab_size=100)
MLP = "model.layers.0.mlp"
MODULES = (f"{MLP}.gate_up_proj", f"{MLP}.down_proj")  # of SGLang
SHAPES = {"gate_up_proj": (12, 4), "down_proj": (4, 6)}
TRAINED = {f"{MLP}.gate_proj": (6, 4), f"{MLP}.up_proj": (6, 4), f"{MLP}.down_proj": (4, 6)}


def weights(seed: int) -> dict[str, torch.Tensor]:
    return tensors(seed, modules=TRAINED)


class SglangAdaptersTest(TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.manager = SchedulerAdapters(MODULES, SHAPES)
        self.receivers: dict[str, Receiver] = {}
        self.runner: Any = None
        # Hooks change SGLang's classes for the rest of the process.
        hooked = ((ModelRunner, "forward"), (Scheduler, "__init__"), (loader, "_initialize_model"))
        self.plain = [(owner, name, getattr(owner, name)) for owner, name in hooked]
        self.addCleanup(self.unhook)

    def unhook(self) -> None:
        for owner, name, call in self.plain:
            setattr(owner, name, call)
        HookRegistry.reset()

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def start(self, *attached: str, loaded: tuple[str, ...] = (), model: str = "", **settings: Any) -> None:
        """A scheduler for which DWS_ADAPTERS names `attached`, and that has loaded some at its start."""
        self.unhook()
        for name in attached:
            os.makedirs(self.path(f"{name}-receiver"))
            self.receivers[name] = Receiver(self.path(f"{name}-receiver"))
            self.addCleanup(self.receivers[name].stop)
        adapters = {name: {"socket": self.receivers[name].socket, "step_timeout": 0.01} for name in attached}
        variables = {dws.sglang.SOCKET_VARIABLE: model, sglang_adapters.VARIABLE: json.dumps(adapters)}
        patch = mock.patch.dict(os.environ, variables)
        patch.start()
        self.addCleanup(patch.stop)
        for number, name in enumerate(loaded):
            save(self.path(name), weights(number))
            self.assertTrue(self.load(name).success)
        dws.sglang.register()
        HookRegistry.apply_hooks()
        runtime_context.publish(**{"enable_lora": True, **settings})
        module = RankModel(SMALL, 0, 1)
        self.addCleanup(lambda: getattr(module, "_dws_attached", mock.Mock()).rank.close())
        self.scheduler = Scheduler(module, self.manager)
        self.runner = self.scheduler.tp_worker.model_runner

    def load(self, name: str, folder: Optional[str] = None) -> Any:
        return self.manager.load_lora_adapter(LoRARef(f"id-{name}", name, folder or self.path(name)))

    @property
    def attached(self) -> Any:
        return self.runner.model._dws_attached.rank

    def in_slot(self, name: str, manager: Any = None) -> list[torch.Tensor]:
        pool = (manager or self.manager).memory_pool
        slot = pool.uid_to_buffer_id[f"id-{name}"]
        return [buffers[target][0][slot].clone() for buffers in (pool.A_buffer, pool.B_buffer) for target in SHAPES]

    def require_as_fresh(self, name: str, wanted: dict[str, torch.Tensor]) -> None:
        """The adapter is that of an SGLang that has loaded the weights' checkpoint."""
        fresh = SchedulerAdapters(MODULES, SHAPES)
        fresh.load_lora_adapter(LoRARef(f"id-{name}", name, save(self.path("fresh"), wanted)))
        fresh.fetch_new_loras({f"id-{name}"})
        self.manager.fetch_new_loras({f"id-{name}"})
        for found, expected in zip(self.in_slot(name), self.in_slot(name, fresh)):
            self.assertTrue(torch.equal(found, expected))

    def test_a_commit_is_what_sglang_makes_of_the_checkpoint(self) -> None:
        self.start("math", loaded=("math",))
        with self.assertRaises(dws.EnginePaused):
            self.runner.forward("batch")
        for version in (1, 2):
            self.assertEqual(self.receivers["math"].commit(version, weights(version)), "")
            self.attached.engine.wait_ready(FOUND)
            self.require_as_fresh("math", weights(version))
        self.assertEqual(self.manager.notified, [{0}])  # the first commit came before it had a slot
        self.runner.forward("batch")
        self.assertEqual(self.scheduler.versions, ["2"])

    def test_adapters_have_versions_of_their_own_and_sglang_is_told_none(self) -> None:
        self.start("math", "code", loaded=("math",))
        self.receivers["math"].commit(5, weights(5))
        save(self.path("code"), weights(9))
        self.assertTrue(self.load("code").success)
        self.receivers["code"].commit(7, weights(7))
        self.attached.engine.wait_ready(FOUND)
        found = {name: one["version"] for name, one in self.attached.status()["adapters"].items()}
        self.assertEqual(found, {"math": 5, "code": 7})
        self.require_as_fresh("math", weights(5))
        self.require_as_fresh("code", weights(7))
        self.runner.forward("batch")
        self.assertEqual(self.scheduler.versions, [])

    def test_an_adapter_without_a_slot_comes_back_with_its_version(self) -> None:
        self.start("math", loaded=("math", "b", "c"))
        self.manager.fetch_new_loras({"id-math"})
        self.receivers["math"].commit(1, weights(1))
        self.manager.fetch_new_loras({"id-b", "id-c"})
        before = self.in_slot("b"), self.in_slot("c")
        self.assertEqual(self.receivers["math"].commit(2, weights(2)), "")
        for old, now in zip(before, (self.in_slot("b"), self.in_slot("c"))):
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(old, now)))
        self.require_as_fresh("math", weights(2))

    def test_no_slot_is_filled_during_a_commit(self) -> None:
        self.start("math", loaded=("math", "b"))
        self.manager.fetch_new_loras({"id-math"})
        pool, loading, go_on = self.manager.memory_pool, threading.Event(), threading.Event()
        load = pool.load_lora_weight_to_buffer

        def slow(*args: Any) -> None:
            loading.set()
            go_on.wait(FOUND)
            load(*args)

        with mock.patch.object(pool, "load_lora_weight_to_buffer", slow):
            commit = threading.Thread(target=self.receivers["math"].commit, args=(1, weights(1)))
            commit.start()
            self.assertTrue(loading.wait(FOUND))
            fetch = threading.Thread(target=self.manager.fetch_new_loras, args=({"id-b"},))
            fetch.start()
            fetch.join(0.2)
            self.assertNotIn("id-b", pool.uid_to_buffer_id)
            go_on.set()
            commit.join(FOUND)
            fetch.join(FOUND)
        self.assertIn("id-b", pool.uid_to_buffer_id)
        self.require_as_fresh("math", weights(1))

    def test_no_commit_falls_into_a_pass(self) -> None:
        self.start("math", loaded=("math",))
        receiver = self.receivers["math"]
        receiver.commit(1, weights(1))
        self.attached.engine.wait_ready(FOUND)
        with self.attached.gate.step():
            receiver.lease[0].put(pause(9))
            with self.assertRaises(Exception):
                receiver.lease[1].get(timeout=0.2)
        self.assertTrue(receiver.lease[1].get(timeout=FOUND).HasField("paused"))

    def test_an_adapter_that_is_refused_is_not_loaded(self) -> None:
        self.start("math")
        save(self.path("math"), weights(0))
        self.receivers["math"].refuse = "view 'dws.adapter.lora_alpha' has the shape [3], and the tensor [6]"
        result = self.load("math")
        self.assertFalse(result.success)
        self.assertRegex(result.error_message, r"adapter 'math'.*r 2, lora_alpha 3.*the shape \[3\], and the tensor \[6\]")
        self.assertEqual(self.manager.loras, {})
        self.runner.forward("batch")  # nothing is attached
        self.receivers["math"].refuse = None
        self.assertTrue(self.load("math").success)
        self.assertRegex(self.load("math").error_message, "already loaded")
        self.assertEqual(self.receivers["math"].commit(1, weights(1)), "")

    def test_what_sglang_computes_otherwise_than_the_trainer_is_refused(self) -> None:
        self.start("math")
        beside = {"model.layers.0.self_attn.o_proj": (4, 4), **TRAINED}
        nowhere = {"lm_head": (4, 4), **TRAINED}
        twice = {"model.layers.0.shared.down_proj": (4, 6), **TRAINED}
        for made, config, what in (
            (weights(0), {"use_rslora": True}, r"SGLang multiplies by 1.5, .*use_rslora True\) is trained with 2.12"),
            (tensors(0, modules=beside), {}, r"does not compute with \['base_model.model.model.layers.0.self_attn.o_proj.lora_A"),
            (tensors(0, modules=nowhere), {}, r"does not compute with \['base_model.model.lm_head.lora_A"),
            (tensors(0, modules=twice), {}, "one of two modules of the same name"),
            (weights(0), {"rank_pattern": {"down_proj": 4}}, "rank_pattern"),
        ):
            with self.subTest(what):
                save(self.path("math"), made, **config)
                self.assertRegex(self.load("math").error_message, what)
                self.assertEqual(self.manager.loras, {})

    def test_a_folder_that_was_written_since_sglang_has_loaded_it_is_refused(self) -> None:
        save(self.path("math"), weights(0))
        self.load("math")
        options = {"math": sglang_adapters.SglangAdapterOptions(socket="/nowhere")}
        adapters = sglang_adapters.SglangAdapters(self.manager, options, EngineRank(0, 1, Parallel(0, 1)), None)
        for made, config, what in ((weights(1), {}, "it has other values"), (weights(0), {"lora_alpha": 6}, "has read r 2, lora_alpha 3")):
            save(self.path("math"), made, **config)
            with self.subTest(what), self.assertRaisesRegex(dws.LayoutError, what):
                adapters.attach_loaded()

    def test_a_slot_that_is_not_written_fails_the_commit(self) -> None:
        self.start("math", loaded=("math",))
        self.manager.fetch_new_loras({"id-math"})
        with mock.patch.object(self.manager.memory_pool, "load_lora_weight_to_buffer"):
            self.assertRegex(self.receivers["math"].commit(2, weights(2)), f"adapter 'math': slot 0 of {MLP}.gate_up_proj.lora_A")

    def test_a_swap_is_a_new_registration(self) -> None:
        self.start("math", loaded=("math",))
        receiver = self.receivers["math"]
        receiver.commit(1, weights(1))
        self.assertTrue(self.manager.unload_lora_adapter(LoRARef("id-math", "math")).success)
        self.assertEqual(len(self.attached), 0)
        self.runner.forward("batch")
        save(self.path("next"), tensors(3, r=3, modules=TRAINED), r=3)
        self.assertTrue(self.load("math", self.path("next")).success)
        receiver.lease = None
        self.assertEqual(receiver.commit(2, tensors(4, r=3, modules=TRAINED)), "")
        self.attached.engine.wait_ready(FOUND)
        self.manager.fetch_new_loras({"id-math"})
        self.assertEqual([name for name in self.attached.status()["adapters"]], ["math"])

    def test_one_rank_that_fails_fails_the_others(self) -> None:
        save(self.path("math"), weights(0))
        self.start("math")
        options = sglang_adapters.adapters_of(os.environ[sglang_adapters.VARIABLE])
        agree, manager = mock.Mock(return_value=[0]), SchedulerAdapters(MODULES, SHAPES)
        sglang_adapters.SglangAdapters(manager, options, EngineRank(0, 1, Parallel(0, 1)), agree)
        ref = LoRARef("id-math", "math", self.path("math"))
        self.assertRegex(manager.load_lora_adapter(ref).error_message, "another rank of the engine could not be attached")
        self.assertEqual((manager.loras, agree.call_args.args), ({}, ([1],)))
        manager.lora_refs["id-math"] = ref  # SGLang refuses it on this rank: the others are told
        self.assertRegex(manager.load_lora_adapter(ref).error_message, "already loaded")
        self.assertEqual(agree.call_args.args, ([0],))

    def test_an_adapter_given_as_tensors_is_refused(self) -> None:
        self.start("math")
        config = {"r": 2, "lora_alpha": 3}
        result = self.manager.load_lora_adapter_from_tensors(LoRARef("id", "math"), weights(0), config)
        self.assertRegex(result.error_message, "'math' of DWS_ADAPTERS was given as tensors, expected a folder")
        self.assertTrue(self.manager.load_lora_adapter_from_tensors(LoRARef("id", "other"), weights(0), config).success)

    def test_a_server_that_cannot_have_adapters_is_refused(self) -> None:
        self.manager.lora_modules[0][f"{MLP}.experts"] = mock.Mock(slice_moe_lora_a_weights=None)
        with self.assertRaisesRegex(dws.LayoutError, "LoRA for the experts model.layers.0.mlp.experts"):
            self.start("math", loaded=("math",))
        for settings, what in (({"enable_lora_overlap_loading": True}, "load beside passes"), ({"pp_size": 2}, "pipeline")):
            with self.subTest(what), self.assertRaisesRegex(dws.LayoutError, what):
                self.start(f"math-{what[:2]}", **settings)
        del self.manager.memory_pool.uid_to_buffer_id
        with self.assertRaisesRegex(dws.StateError, "memory_pool.uid_to_buffer_id"):
            self.start("lacking")
        self.manager = None
        with self.assertRaisesRegex(dws.LayoutError, "runs without LoRA.*--enable-lora"):
            self.start("none", enable_lora=None)

    def test_what_the_variable_says_is_checked_before_sglang_starts(self) -> None:
        with self.assertRaisesRegex(SystemExit, "both DWS_RECEIVER_SOCKET and DWS_ADAPTERS are set"):
            self.start("math", model="/run/dws/receiver.sock")
        for text, what in (("{", "is no JSON"), ("{}", "expected"), ('{"math": {}}', "expected"), ('{"m": {"socket": "s", "x": 1}}', "'x'")):
            with self.subTest(text), mock.patch.dict(os.environ, {sglang_adapters.VARIABLE: text, dws.sglang.SOCKET_VARIABLE: ""}):
                with self.assertRaisesRegex(SystemExit, what):
                    dws.sglang.register()


if __name__ == "__main__":
    main()
