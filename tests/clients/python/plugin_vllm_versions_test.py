"""dws.plugins.vllm_versions in a stand-in for vLLM: what vLLM says of the version of steps and of memory."""

from __future__ import annotations

import types
import unittest
from typing import Any
from unittest import mock

import dws.vllm
from dws.plugins import vllm_versions
from tests.clients.python.fake_daemons import pause, resume
from tests.clients.python.vllm_case import NOTHING, SCHEDULED, VllmCase, config
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import core


class VllmVersionsTest(VllmCase):
    def setUp(self) -> None:
        super().setUp()
        # Which it changes for the rest of the process.
        patch = mock.patch.object(core, "EngineCore", type("EngineCore", (core.EngineCore,), {}))
        patch.start()
        self.addCleanup(patch.stop)
        dws.vllm.register()
        dws.vllm.register()
        self.worker_now, self.down, self.up = self.attached()
        self.core = core.EngineCore(config(), self.worker_now)

    def commit(self, version: int) -> None:
        self.down.put(resume(version))
        self.worker_now.execute_method("dws_wait_ready", timeout=20)

    def next_version(self, version: int) -> None:
        self.down.put(pause(version))
        while self.up.get(timeout=20).WhichOneof("message") != "paused":
            pass
        self.commit(version)

    def step(self, scheduled: Any = SCHEDULED) -> str:
        self.core._scheduled = scheduled
        version: str = self.core.step()
        return version

    def test_outputs_have_the_version_that_their_step_was_computed_with(self) -> None:
        self.commit(7)
        self.assertEqual(self.step(), "7")
        self.next_version(8)
        self.assertEqual(self.step(NOTHING), "7")  # nothing was computed
        self.assertEqual(self.step(), "8")
        self.assertEqual(self.core.scheduler.updated, 3)

    def test_while_nothing_is_computed_the_workers_are_asked(self) -> None:
        self.assertEqual(self.core.get_weight_version(), "default")
        self.commit(7)
        self.assertEqual(self.core.get_weight_version(), "7")
        self.down.put(pause(8))
        while self.up.get(timeout=20).WhichOneof("message") != "paused":
            pass
        self.assertEqual(self.core.get_weight_version(), "7")
        self.core.vllm_config.parallel_config.worker_extension_cls = ""
        self.assertEqual(self.core.get_weight_version(), "default")

    def test_a_class_made_of_the_extension_is_known_by_its_first_step(self) -> None:
        self.core.vllm_config.parallel_config.worker_extension_cls = "engines.Extension"
        self.commit(7)
        self.assertEqual(self.core.get_weight_version(), "default")
        self.assertEqual(self.step(), "7")
        self.next_version(8)
        self.assertEqual(self.core.get_weight_version(), "8")

    def test_an_output_that_is_made_later_has_the_version_of_its_step(self) -> None:
        made = types.SimpleNamespace(req_ids=["request"])
        later = types.SimpleNamespace(get_output=lambda: made)
        grant = dws.Grant(7, dws.Stream(1, 2), "0")
        marked = vllm_versions.marking(lambda: later, lambda: grant)()
        self.assertIs(marked, later)
        self.assertEqual(vars(marked.get_output())["_dws_version"], "7")

    def cached(self, tokens: int, salt: Any = None) -> SchedulerOutput:
        """A step with a request whose first tokens the prefix cache has."""
        scheduled = SchedulerOutput(1)
        new = types.SimpleNamespace(req_id="request", num_computed_tokens=tokens)
        vars(scheduled)["scheduled_new_reqs"] = [new]
        self.core.scheduler.requests["request"] = types.SimpleNamespace(cache_salt=salt)
        return scheduled

    def test_a_prefix_of_older_weights_gives_one_warning(self) -> None:
        self.commit(7)
        with self.assertNoLogs("vllm.dws", "WARNING"):
            self.step(self.cached(16))
            self.next_version(8)
            self.step(self.cached(0))
            self.step(self.cached(16, salt="8"))
            self.core.scheduler.reset_prefix_cache()
            self.step(self.cached(16))
        self.next_version(9)
        with self.assertLogs("vllm.dws", "WARNING") as logged:
            self.step(self.cached(16))
            self.step(self.cached(16))
        self.assertEqual(len(logged.output), 1)
        self.assertIn("of version 9 begins with 16 tokens", logged.output[0])

    def test_a_vllm_that_knows_no_versions_is_left_as_it_is(self) -> None:
        older = type("EngineCore", (), {})
        with mock.patch.object(core, "EngineCore", older):
            vllm_versions.follow()
        self.assertFalse(hasattr(older, "step"))


if __name__ == "__main__":
    unittest.main()
