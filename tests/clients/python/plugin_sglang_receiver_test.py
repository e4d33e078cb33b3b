"""dws.sglang.create_receiver in a stand-in for SGLang, against a stand-in for the receiver: one rank."""

from __future__ import annotations

import os
import sys
import tempfile
import types
import unittest
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Optional
from unittest import mock

import numpy as np

import dws
import dws.sglang
from tests.clients.python.engine_models import Config, RankModel
from tests.clients.python.fake_daemons import FakeReceiver, resume

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_engines"))

from sglang.srt import runtime_context  # noqa: E402

SMALL = Config(num_hidden_layers=1, vocab_size=100)


class SglangReceiverTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.receiver = FakeReceiver(folder.name)
        self.addCleanup(lambda: self.receiver.stop())
        runtime_context.publish()
        self.model = RankModel(SMALL, 0, 1)
        # SGLang's scheduler makes all calls on one thread, too.
        self.thread = ThreadPoolExecutor(1)
        self.addCleanup(self.thread.shutdown)

    def made(self, payload: Any = None) -> Any:
        """What SGLang makes of the factory, with its context."""
        context = types.SimpleNamespace(
            model=self.model,
            device="cpu",
            tp_rank=0,
            tp_size=1,
            group_name="dws",
            init_payload=payload or {"socket": self.receiver.socket, "options": {"step_timeout": 0.05}},
        )
        return self.thread.submit(dws.sglang.create_receiver, context).result(60)

    def receive(self, made: Any, payload: Optional[dict[str, Any]]) -> Future[None]:
        return self.thread.submit(made.receive, payload)

    def test_a_version_is_committed_in_its_request_alone(self) -> None:
        made = self.made()
        self.addCleanup(made.destroy)
        self.assertIsNone(self.receiver.attached)
        receiving = self.receive(made, {"version": 7})
        down, up = self.receiver.leases.get(timeout=20)
        self.assertEqual(up.get(timeout=20).WhichOneof("message"), "open")
        self.assertTrue(self.receiver.attached.commits_on_request)
        self.assertEqual(up.get(timeout=20).commit_request.version, 7)
        norm = next(view for view in self.receiver.attached.views if view.tensor == "model.norm.weight")
        memory = np.frombuffer(self.receiver.writable_region(), np.uint16)
        memory[norm.offset_bytes // 2 :][: SMALL.hidden_size] = 0x4000
        down.put(resume(7))
        receiving.result(60)
        self.assertEqual(self.model.tensor("model.norm.weight").tolist(), [2.0] * SMALL.hidden_size)
        with self.assertRaisesRegex(dws.DeadlineError, "version 8"):
            self.receive(made, {"version": 8, "timeout": 0.1}).result(60)

    def test_a_version_that_does_not_come_leaves_the_engine_with_its_own_weights(self) -> None:
        made = self.made()
        with self.assertRaisesRegex(dws.DeadlineError, "nothing was written: this engine is detached"):
            self.receive(made, {"version": 7, "timeout": 0.1}).result(60)
        made.destroy()

    def test_payloads_of_another_shape_are_refused_by_name(self) -> None:
        for payload in ({"socket": 7}, {"socket": "/run/r", "port": 1}):
            with self.assertRaisesRegex(dws.InvalidArgumentError, "receiver_init_payload is .*expected .*socket"):
                self.made(payload)
        with self.assertRaisesRegex(dws.InvalidArgumentError, "unknown options"):
            self.made({"socket": "/run/r", "options": {"nothing": 1}})
        made = self.made()
        for payload in (None, {"version": 7, "step": 3}):
            with self.assertRaisesRegex(dws.InvalidArgumentError, "receiver_payload is .*expected"):
                self.receive(made, payload).result(60)
        with self.assertRaisesRegex(dws.InvalidArgumentError, "version='7', expected a number"):
            self.receive(made, {"version": "7"}).result(60)

    def test_a_server_that_cannot_be_updated_is_refused(self) -> None:
        object.__setattr__(next(self.model.children()), "weight_update_unsupported_reason", "its cache is stale")
        with self.assertRaisesRegex(dws.LayoutError, "its cache is stale"):
            self.made()
        with mock.patch.dict(sys.modules, {"sglang.srt.plugins.hook_registry": None}):
            with self.assertRaisesRegex(dws.StateError, "hook_registry"):
                self.made()

    def test_a_model_that_the_entry_point_has_attached_is_refused(self) -> None:
        object.__setattr__(self.model, "_dws_attached", object())
        with self.assertRaisesRegex(dws.StateError, "DWS_RECEIVER_SOCKET has attached this model"):
            self.made()

    def test_ranks_fail_together(self) -> None:
        told = mock.Mock(side_effect=lambda values: [0] * len(values))
        made = dws.sglang.ExternalReceiver(self.model, told, mock.Mock(), 1.0)
        with mock.patch.object(made._commits, "update"):
            with self.assertRaisesRegex(dws.StateError, "another rank of the engine failed"):
                made.receive({"version": 7})


if __name__ == "__main__":
    unittest.main()
