"""dws.sglang in a stand-in for SGLang, against a stand-in for the receiver: one rank."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from typing import Any
from unittest import mock

import numpy as np
import torch

import dws
import dws.plugins.sglang_version
import dws.sglang
from tests.clients.python.engine_models import Config, RankModel
from tests.clients.python.fake_daemons import FakeReceiver, resume

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_engines"))

import sglang  # noqa: E402
from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.managers import io_struct  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402
from sglang.srt.model_executor.model_runner import ModelRunner  # noqa: E402
from sglang.srt.model_executor.model_runner_components import weight_updater  # noqa: E402
from sglang.srt.model_loader import loader  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402

SMALL = Config(num_hidden_layers=1, vocab_size=100)


class _Server(http.server.BaseHTTPRequestHandler):
    told: queue.Queue[Any] = queue.Queue()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _Server.told.put((self.path, body, self.headers.get("Authorization")))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


class SglangTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.receiver = FakeReceiver(folder.name)
        self.addCleanup(lambda: self.receiver.stop())
        self.set_variables(step_timeout=0.01)
        # Hooks change SGLang's classes for the rest of the process.
        patched = ((ModelRunner, "forward"), (Scheduler, "__init__"), (loader, "_initialize_model"))
        for owner, name in patched:
            self.addCleanup(setattr, owner, name, getattr(owner, name))
        self.addCleanup(HookRegistry.reset)

    def set_variables(self, **options: Any) -> None:
        variables = {
            dws.sglang.SOCKET_VARIABLE: self.receiver.socket,
            dws.sglang.OPTIONS_VARIABLE: json.dumps(options),
        }
        patch = mock.patch.dict(os.environ, variables)
        patch.start()
        self.addCleanup(patch.stop)

    def load_plugins(self) -> None:
        dws.sglang.register()
        HookRegistry.apply_hooks()

    def scheduler(self, **settings: Any) -> Any:
        runtime_context.publish(**settings)
        model = RankModel(SMALL, 0, 1)
        self.addCleanup(self.detach, model)
        return Scheduler(model)

    def detach(self, model: Any) -> None:
        attached = getattr(model, "_dws_attached", None)
        if attached is not None:
            attached.rank.close()

    def granted(self, scheduler: Any, version: int) -> Any:
        """The runner of a scheduler whose engine has been granted its first version."""
        down, up = self.receiver.leases.get(timeout=20)
        up.get(timeout=20)
        down.put(resume(version))
        runner = scheduler.tp_worker.model_runner
        self.assertEqual(runner.model._dws_attached.rank.engine.wait_ready(20).version, version)
        return runner

    def test_a_complete_scheduler_is_attached_and_passes_run_only_with_the_lease(self) -> None:
        self.load_plugins()
        scheduler = self.scheduler()
        runner = scheduler.tp_worker.model_runner
        with self.assertRaisesRegex(dws.EnginePaused, "attached"):
            runner.forward("batch")
        self.assertEqual(ModelRunner(RankModel(SMALL, 0, 1)).forward("batch")[0], "batch")
        views = {view.tensor: view for view in self.receiver.attached.views}
        memory = np.frombuffer(self.receiver.writable_region(), np.uint16)
        memory[views["model.norm.weight"].offset_bytes // 2 :][:24] = 0x4000
        self.granted(scheduler, 3)
        self.assertEqual(runner.forward("batch")[1].tolist(), [2.0] * 24)
        self.assertEqual(runner.model._dws_attached.rank.status()["passes"], 1)

    def test_the_scheduler_and_the_server_are_told_the_version_without_ending_requests(self) -> None:
        server = http.server.HTTPServer(("127.0.0.1", 0), _Server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.load_plugins()
        scheduler = self.scheduler(port=server.server_port, host="0.0.0.0", api_key="secret")
        with mock.patch("os.getppid", os.getpid):  # where SGLang's server would be
            runner = self.granted(scheduler, 7)
            told = _Server.told.get(timeout=20)  # before any pass
            runner.forward("batch")
            runner.forward("batch")
        body = {"new_version": "7", "abort_all_requests": False}
        self.assertEqual(told, ("/update_weight_version", body, "Bearer secret"))
        self.assertEqual(scheduler.versions, ["7"])

    def test_a_scheduler_that_the_server_sets_back_has_the_version_of_the_next_pass(self) -> None:
        self.load_plugins()
        scheduler = self.scheduler()
        runner = self.granted(scheduler, 6)
        runner.forward("batch")
        # The server was told 5 before, and passes it on to its scheduler only now.
        scheduler.record_weight_version_change("5")
        runner.forward("batch")
        self.assertEqual(scheduler.versions, ["6", "5", "6"])

    def test_versions_under_a_cache_of_prefixes_give_one_warning(self) -> None:
        for caches in (True, False):
            teller = dws.plugins.sglang_version.VersionTeller(mock.Mock(), mock.Mock(), None, caches)
            teller.weights_are(6)
            if not caches:
                with self.assertNoLogs("dws.plugins.sglang_version", "WARNING"):
                    teller.weights_are(7)
                continue
            with self.assertLogs("dws.plugins.sglang_version", "WARNING") as logged:
                for version in (7, 7, 8):
                    teller.weights_are(version)
            self.assertEqual(len(logged.output), 1)
            self.assertRegex(logged.output[0], "version 7 follows 6.*cache_salt")

    def teller(self, listens: Any, tells: Any) -> list[float]:
        """Runs a VersionTeller until it has told the version; returns how long it waited in between."""
        waits: list[float] = []
        done = threading.Event()

        def tell(version: str) -> None:
            error = next(tells, None)
            if error is not None:
                raise error
            done.set()

        teller = dws.plugins.sglang_version
        with (
            mock.patch.object(teller, "time", types.SimpleNamespace(sleep=waits.append)),
            mock.patch.object(teller, "_LOOK_SECONDS", 0.0),
            mock.patch.object(teller, "_server_listens", side_effect=listens),
            mock.patch.object(teller.VersionTeller, "_tell", side_effect=tell),
        ):
            grant = dws.Grant(7, dws.Stream(1, 2), "0")
            teller.VersionTeller(mock.Mock(), {"port": 1}.__getitem__, lambda: grant)
            self.assertTrue(done.wait(20))
        return waits

    def test_whatever_fails_when_the_server_is_told_it_is_told_again(self) -> None:
        errors = [http.client.BadStatusLine("?"), RuntimeError("other"), *[OSError("busy")] * 8]
        with self.assertLogs("dws.plugins.sglang_version", "WARNING") as logged:
            waits = self.teller(iter([KeyError("pid"), *[True] * 99]), iter(errors))
        self.assertIn("version 7: OSError('busy')", logged.output[-1])
        self.assertEqual((waits[0], waits[-1]), (0.2, 30.0))

    def test_a_server_that_starts_is_told_within_two_seconds_of_listening(self) -> None:
        waits = self.teller(iter([False] * 20 + [True] * 9), iter(()))
        self.assertEqual((waits[0], waits[-1]), (0.2, 2.0))

    def test_a_server_of_other_processes_is_not_told_a_version(self) -> None:
        server = http.server.HTTPServer(("127.0.0.1", 0), _Server)
        self.addCleanup(server.server_close)
        other = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
        self.addCleanup(other.communicate)
        with mock.patch("os.getppid", lambda: other.pid):
            self.assertFalse(dws.plugins.sglang_version._server_listens(server.server_port))
        with mock.patch("os.getppid", os.getpid):
            self.assertTrue(dws.plugins.sglang_version._server_listens(server.server_port))

    def test_what_drives_the_server_names_boundaries(self) -> None:
        with mock.patch.dict(os.environ, {dws.sglang.SOCKET_VARIABLE: self.receiver.socket}):
            self.assertEqual(dws.sglang.boundary(20), 7)
            self.assertFalse(self.receiver.boundaries.get(timeout=20).stays)
            with dws.sglang.at_boundary(20):
                stays = self.receiver.boundaries.get(timeout=20)
                self.assertTrue(stays.stays)
                self.assertTrue(self.receiver.boundaries.empty())
            ended = self.receiver.boundaries.get(timeout=20)
            self.assertEqual(ended.boundary_id, stays.boundary_id)
        with mock.patch.dict(os.environ):
            os.environ.pop(dws.sglang.SOCKET_VARIABLE, None)
            with self.assertRaisesRegex(dws.StateError, "DWS_RECEIVER_SOCKET is not set"):
                dws.sglang.boundary()

    def test_without_a_socket_nothing_is_changed(self) -> None:
        with mock.patch.dict(os.environ, {dws.sglang.SOCKET_VARIABLE: ""}):
            self.load_plugins()
            self.assertFalse(hasattr(self.scheduler().tp_worker.model_runner.model, "_dws_attached"))
        self.assertEqual(HookRegistry._hooks, {})

    def test_unsupported_settings_are_refused_by_name(self) -> None:
        self.load_plugins()
        for settings, message in (
            ({"pp_size": 2}, "pipeline parallelism"),
            ({"moe_dp_size": 2, "enable_dp_attention": True}, "moe_dp_size.*enable_dp_attention"),
            ({"speculative_algorithm": "EAGLE"}, "speculation"),
            ({"enable_lora": True}, "LoRA"),
            ({"enable_pdmux": True}, "enable_pdmux"),
            ({"weight_cache_mode": "client"}, "weight_cache_mode"),
            ({"offload_group_size": 2}, "offload_group_size"),
            ({"startup_weight_load_mode": "overlap"}, "startup_weight_load_mode"),
            ({"enable_memory_saver": True}, "enable_memory_saver"),
            ({"enable_torch_compile": True, "device": "cpu"}, "enable_torch_compile"),
        ):
            with self.assertRaisesRegex(dws.LayoutError, f"{message}.*turn it off"):
                self.scheduler(**settings)

    def test_replicas_are_ranks_of_one_engine_if_it_says_how_many(self) -> None:
        self.load_plugins()
        with self.assertRaisesRegex(dws.LayoutError, "rank 1 is of a replica.*ranks_on_host"):
            self.scheduler(dp_size=2, dp_rank=1)
        self.set_variables(ranks_on_host=2)
        self.scheduler(dp_size=2, dp_rank=1)
        request = self.receiver.attached
        self.assertEqual((request.engine_rank, request.engine_world_size), (1, 2))

    def test_compilation_for_a_gpu_is_not_refused(self) -> None:
        self.load_plugins()
        self.scheduler(enable_torch_compile=True, device="cuda")

    def test_models_whose_derived_weights_sglang_names_are_refused_with_its_words(self) -> None:
        self.load_plugins()
        runtime_context.publish()
        model = RankModel(SMALL, 0, 1)
        object.__setattr__(model, "_derived_weight_cache_error", "splits would be stale")
        with self.assertRaisesRegex(dws.LayoutError, "splits would be stale"):
            Scheduler(model)
        # SGLang takes any text, also an empty one, as a reason.
        for reason in ("its cache is stale", lambda: "its cache is stale", ""):
            model = RankModel(SMALL, 0, 1)
            object.__setattr__(next(model.children()), "weight_update_unsupported_reason", reason)
            with self.assertRaisesRegex(dws.LayoutError, "derives from weights: (its cache is stale|$)"):
                Scheduler(model)

    def test_a_release_that_asks_without_the_model_is_asked_so(self) -> None:
        self.load_plugins()
        asked = mock.create_autospec(lambda: None, return_value="the GEMM keeps a split")
        with mock.patch.object(weight_updater, "_unsupported_derived_weight_cache_error", asked):
            with self.assertRaisesRegex(dws.LayoutError, "the GEMM keeps a split"):
                self.scheduler()

    def copying(self, made: Any) -> Any:
        """A model whose norm has a copy."""
        model = RankModel(SMALL, 0, 1)
        self.addCleanup(self.detach, model)
        norm = dict(model.named_parameters())["model.norm.weight"]
        norm.data.copy_(torch.arange(24) / 7)
        object.__setattr__(model, "norm_fp32", norm.detach().float() if made else None)
        object.__setattr__(model, "norm", norm)
        return model

    def test_a_model_that_keeps_a_copy_of_a_weight_is_refused_unless_it_is_named(self) -> None:
        self.load_plugins()
        runtime_context.publish()
        with self.assertRaisesRegex(dws.LayoutError, "'norm_fp32' .RankModel.* copy of weight 'model.norm.weight'"):
            Scheduler(self.copying(True))
        self.set_variables(kept=["norm_*"])
        Scheduler(self.copying(True))

    def test_a_copy_that_the_model_refreshes_after_loading_is_refreshed_after_commits(self) -> None:
        self.load_plugins()
        runtime_context.publish()
        model = self.copying(True)
        object.__setattr__(model, "post_load_weights", lambda *_: model.norm_fp32.copy_(model.norm))
        Scheduler(model)
        self.assertTrue(self.receiver.attached.has_post_commit_hook)
        model.norm.data.fill_(3)
        model._dws_attached.rank._rebuild(None)
        self.assertEqual(model.norm_fp32.tolist(), [3.0] * 24)

    def test_a_pass_that_makes_a_copy_of_a_weight_is_the_last(self) -> None:
        self.load_plugins()
        runtime_context.publish()
        model = self.copying(False)
        runner = self.granted(Scheduler(model), 3)

        object.__setattr__(model, "norm_fp32", model.norm.detach().float())  # as the first pass does
        runner.forward("batch")
        with self.assertRaisesRegex(dws.EnginePaused, "'norm_fp32' .RankModel.* copy of weight 'model.norm.weight'"):
            runner.forward("batch")

    def test_a_hook_that_was_not_applied_refuses_the_attach(self) -> None:
        dws.sglang.register()
        forward = HookRegistry._hooks.pop(dws.sglang._FORWARD)
        HookRegistry.apply_hooks()
        self.refused("did not apply the hook around.*forward")
        HookRegistry._hooks[dws.sglang._FORWARD] = forward

    def test_a_runner_with_a_forward_of_its_own_is_refused(self) -> None:
        class OtherRunner(ModelRunner):
            def forward(self, forward_batch: Any) -> Any:
                return forward_batch

        self.load_plugins()
        with mock.patch("sglang.srt.managers.scheduler.ModelRunner", OtherRunner):
            with self.assertRaisesRegex(dws.StateError, "OtherRunner has a forward of its own"):
                self.scheduler()

    def test_a_release_that_was_never_run_is_attached_with_one_warning(self) -> None:
        with mock.patch.object(sglang, "__version__", "0.9.1+cpu"):
            with self.assertLogs("dws", "WARNING") as logged:
                self.load_plugins()
                self.scheduler()
        self.assertEqual(len([line for line in logged.output if "SGLang 0.9.1+cpu was never run" in line]), 1)
        self.assertIn("not compared with a checkpoint", logged.output[-1])

    def test_a_release_that_is_known_to_be_bad_ends_the_server(self) -> None:
        with mock.patch.dict(dws.sglang.BAD, {"0.9.2": "hooks are not applied"}):
            with mock.patch.object(sglang, "__version__", "0.9.2"):
                with self.assertRaisesRegex(SystemExit, "0.9.2 cannot be updated.*hooks are not applied"):
                    dws.sglang.register()

    def test_missing_parts_and_unknown_options_end_the_server_by_name(self) -> None:
        self.set_variables(steps=1)
        with self.assertRaisesRegex(SystemExit, r"unknown options \['steps'\]"):
            dws.sglang.register()
        self.set_variables()
        with mock.patch.dict(sys.modules, {"sglang.srt.plugins.hook_registry": None}):
            with self.assertRaisesRegex(SystemExit, "SGLang 0.5.23 does not have the module .*hook_registry"):
                dws.sglang.register()
        with mock.patch.object(HookRegistry, "register", lambda target, hook: None):
            with self.assertRaisesRegex(SystemExit, r"HookRegistry\.register\(target, hook, hook_type\), it is"):
                dws.sglang.register()

    def refused(self, message: str) -> None:
        with self.assertRaisesRegex(dws.StateError, message):
            self.scheduler()

    def test_missing_parts_of_a_scheduler_refuse_the_attach_by_name(self) -> None:
        self.load_plugins()
        change = "record_weight_version_change"
        with mock.patch.object(Scheduler, change, None):
            self.refused(f"Scheduler.{change} .is None.")
        with mock.patch.object(Scheduler, change, lambda self: None):
            self.refused(rf"{change}\(new_version=\), it is")
        with mock.patch.object(io_struct.UpdateWeightVersionReqInput, "__annotations__", {"new_version": str}):
            self.refused(r"UpdateWeightVersionReqInput\.abort_all_requests \(no such field\)")
        with mock.patch.object(weight_updater, "_unsupported_derived_weight_cache_error", None):
            self.refused("_unsupported_derived_weight_cache_error .is None.")
        runtime_context.DEFAULTS.pop("enable_pdmux")
        self.addCleanup(runtime_context.DEFAULTS.update, enable_pdmux=False)
        self.refused("the setting enable_pdmux")


if __name__ == "__main__":
    unittest.main()
