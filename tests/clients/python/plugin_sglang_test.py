"""dws.sglang in a stand-in for SGLang, against a stand-in for the receiver: one rank."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import types
import unittest
from typing import Any
from unittest import mock

import numpy as np

import dws
import dws.sglang
from tests.clients.python.engine_models import Config, RankModel
from tests.clients.python.fake_daemons import FakeReceiver, resume

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_engines"))

from sglang.srt import distributed, server_args  # noqa: E402
from sglang.srt.model_executor.model_runner import ModelRunner  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402

LOADER = "dws.sglang.attach"
SMALL = Config(num_hidden_layers=1, vocab_size=100)


class SglangTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.receiver = FakeReceiver(folder.name)
        self.addCleanup(lambda: self.receiver.stop())
        self.set_variables(step_timeout=0.01)
        group = types.SimpleNamespace(rank_in_group=0, world_size=1, cpu_group="gloo")
        distributed.set_tp_group(group)
        # The plugin changes SGLang's class for the rest of the process.
        for name in ("forward", "initialize"):
            self.addCleanup(setattr, ModelRunner, name, getattr(ModelRunner, name))
        self.addCleanup(HookRegistry._hooks.clear)

    def set_variables(self, **options: Any) -> None:
        variables = {
            dws.sglang.SOCKET_VARIABLE: self.receiver.socket,
            dws.sglang.OPTIONS_VARIABLE: json.dumps(options),
        }
        patch = mock.patch.dict(os.environ, variables)
        patch.start()
        self.addCleanup(patch.stop)

    def runner(self, **arguments: Any) -> Any:
        chosen = types.SimpleNamespace(custom_weight_loader=[LOADER], tp_size=1, **arguments)
        server_args.set_global_server_args(chosen)
        model = RankModel(SMALL, 0, 1)
        self.addCleanup(self.detach, model)
        return ModelRunner(model, chosen)

    def detach(self, model: Any) -> None:
        attached = getattr(model, "_dws_attached", None)
        if attached is not None:
            attached.close()

    def test_a_custom_weight_loader_attaches_and_passes_run_only_with_the_lease(self) -> None:
        runner, bystander = self.runner(), self.runner()
        self.assertEqual(runner.update_weights_from_tensor([], LOADER), (True, "Success"))
        down, up = self.receiver.leases.get(timeout=20)
        up.get(timeout=20)
        with self.assertRaisesRegex(dws.EnginePaused, "attached"):
            runner.forward("batch")
        self.assertEqual(bystander.forward("batch")[0], "batch")
        views = {view.tensor: view for view in self.receiver.attached.views}
        memory = np.frombuffer(self.receiver.writable_region(), np.uint16)
        memory[views["model.norm.weight"].offset_bytes // 2 :][:24] = 0x4000
        down.put(resume(3))
        attached = runner.model._dws_attached
        self.assertEqual(attached.engine.wait_ready(20).version, 3)
        self.assertEqual(runner.forward("batch")[1].tolist(), [2.0] * 24)
        runner.update_weights_from_tensor([], LOADER)
        self.assertIs(runner.model._dws_attached, attached)
        self.assertEqual((self.receiver.generation, attached.status()["passes"]), (1, 1))

    def test_a_registered_plugin_attaches_models_that_are_initialised(self) -> None:
        dws.sglang.register()
        HookRegistry.apply_hooks()
        runner = self.runner()
        self.assertEqual(runner.model._dws_attached.status()["rank"], 0)
        arguments = server_args.get_global_server_args()
        draft = ModelRunner(RankModel(SMALL, 0, 1), arguments, is_draft_worker=True)
        self.assertFalse(hasattr(draft.model, "_dws_attached"))
        with mock.patch.dict(os.environ, {dws.sglang.SOCKET_VARIABLE: ""}):
            self.assertFalse(hasattr(self.runner().model, "_dws_attached"))

    def test_unsupported_settings_are_refused_by_name(self) -> None:
        for arguments, message in (
            ({"pp_size": 2}, "pipeline parallelism"),
            ({"dp_size": 2, "enable_dp_attention": True}, "data parallelism.*enable_dp_attention"),
            ({"speculative_algorithm": "EAGLE"}, "speculation"),
            ({"enable_lora": True}, "LoRA"),
        ):
            runner = self.runner(**arguments)
            with self.assertRaisesRegex(dws.LayoutError, f"{message}.*turn it off"):
                runner.update_weights_from_tensor([], LOADER)
            self.assertEqual(runner.forward("batch")[0], "batch")

    def test_missing_settings_and_attributes_are_named(self) -> None:
        runner = self.runner()
        with mock.patch.dict(os.environ, {dws.sglang.SOCKET_VARIABLE: ""}):
            with self.assertRaisesRegex(dws.StateError, "DWS_RECEIVER_SOCKET is not set"):
                runner.update_weights_from_tensor([], LOADER)
        self.set_variables(steps=1)
        with self.assertRaisesRegex(dws.InvalidArgumentError, "unknown options \\['steps'\\]"):
            runner.update_weights_from_tensor([], LOADER)
        self.set_variables()
        distributed.set_tp_group(types.SimpleNamespace(rank_in_group=0, world_size=2))
        with mock.patch.object(ModelRunner, "forward", None):
            with self.assertRaisesRegex(
                dws.StateError, r"SGLang 0\.5\.9\+fake .*ModelRunner\.forward.*cpu_group"
            ):
                runner.update_weights_from_tensor([], LOADER)
        with mock.patch.dict(sys.modules, {"sglang.srt.plugins.hook_registry": None}):
            with self.assertRaisesRegex(dws.StateError, "no plugins.*custom-weight-loader"):
                dws.sglang.register()


if __name__ == "__main__":
    unittest.main()
