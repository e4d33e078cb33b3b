"""dws.vllm with adapters, in a stand-in for vLLM: a commit becomes what vLLM makes of a checkpoint, and nothing else is written."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
import types
from typing import Any
from unittest import mock

import torch

import dws
from tests.clients.python.adapters.adapter_case import FOUND, MODULES, Receiver, save, tensors
from tests.clients.python.fake_daemons import pause
from tests.clients.python.vllm_case import SCHEDULED, VllmCase, config, step
from vllm.lora.adapters import WorkerAdapters
from vllm.lora.request import LoRARequest

class VllmAdaptersTest(VllmCase):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        made = config()
        made.lora_config = types.SimpleNamespace()
        self.engine = self.worker(made)
        self.manager = WorkerAdapters(MODULES)
        self.engine.worker.model_runner.lora_manager = self.manager

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def load(self, number: int, name: str, **more: Any) -> None:
        self.manager.add_adapter(LoRARequest(name, number, self.path(name), **more))

    def receiver_of(self, name: str) -> Receiver:
        os.makedirs(self.path(f"{name}-receiver"))
        receiver = Receiver(self.path(f"{name}-receiver"))
        self.addCleanup(receiver.stop)
        return receiver

    def attach(self, name: str, receiver: Receiver, **options: Any) -> None:
        self.engine.execute_method("dws_attach_adapter", name, self.path(name), receiver.socket, **options)
        self.addCleanup(self.close)

    def close(self) -> None:
        attached = getattr(self.engine.worker, "_dws_attached", None)
        if attached is not None:
            attached.close()

    def followed(self, name: str, number: int, seed: int) -> Receiver:
        """An adapter that was loaded and attached."""
        save(self.path(name), tensors(seed))
        self.load(number, name)
        receiver = self.receiver_of(name)
        self.attach(name, receiver)
        return receiver

    def in_slot(self, number: int, manager: Any = None) -> dict[str, list[torch.Tensor]]:
        """What all layers have of an adapter."""
        inner = (manager or self.manager)._adapter_manager
        slot = inner.lora_index_to_id.index(number)
        return {
            name: [stacked[slot].clone() for (stacked,) in (layer.lora_a_stacked, layer.lora_b_stacked)]
            for name, layer in inner.modules.items()
        }

    def require_as_fresh(self, number: int, weights: dict[str, torch.Tensor]) -> None:
        """The adapter is that of a vLLM that has loaded the weights' checkpoint."""
        fresh = WorkerAdapters(MODULES)
        fresh.add_adapter(LoRARequest("fresh", 1, save(self.path("fresh"), weights)))
        expected = self.in_slot(1, fresh)
        for name, halves in self.in_slot(number).items():
            for half, tensor in zip(halves, expected[name]):
                self.assertTrue(torch.equal(half, tensor), name)

    def test_a_commit_is_what_vllm_makes_of_the_checkpoint(self) -> None:
        receiver = self.followed("math", 1, 0)
        for version in (1, 2):
            self.assertEqual(receiver.commit(version, tensors(version)), "")
            self.engine.execute_method("dws_wait_ready", timeout=FOUND)
            self.require_as_fresh(1, tensors(version))
        status = self.engine.execute_method("dws_status")["adapters"]["math"]
        self.assertEqual((status["version"], status["lora_int_id"], status["slot"], status["loaded"]), (2, 1, 0, True))
        self.assertEqual(self.engine.execute_method("dws_version"), 2)

    def test_adapters_have_versions_of_their_own(self) -> None:
        math = self.followed("math", 1, 0)
        math.commit(5, tensors(5))
        code = self.followed("code", 2, 100)
        code.commit(7, tensors(7))
        math.commit(6, tensors(6))
        status = self.engine.execute_method("dws_wait_ready", timeout=FOUND)["adapters"]
        self.assertEqual({name: one["version"] for name, one in status.items()}, {"math": 6, "code": 7})
        self.require_as_fresh(1, tensors(6))
        self.require_as_fresh(2, tensors(7))
        self.assertIsNone(self.engine.execute_method("dws_version"))

    def test_commits_of_two_adapters_at_the_same_time_are_loaded_one_after_the_other(self) -> None:
        math = self.followed("math", 1, 0)
        math.commit(1, tensors(1))
        code = self.followed("code", 2, 100)
        loads, load = threading.Barrier(2), self.manager._adapter_manager._create_merged_loras_inplace

        def slow(model: Any) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                loads.wait(0.3)  # passes if the other one is inside too
                self.fail("two adapters were loaded at the same time")
            load(model)

        self.manager._adapter_manager._create_merged_loras_inplace = slow  # type: ignore[method-assign]
        errors: list[str] = []
        commits = [(math, 2), (code, 3)]
        threads = [threading.Thread(target=lambda one, v: errors.append(one.commit(v, tensors(v))), args=each) for each in commits]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(FOUND)
        self.assertEqual(errors, ["", ""])
        self.require_as_fresh(1, tensors(2))
        self.require_as_fresh(2, tensors(3))

    def test_no_commit_falls_into_a_step(self) -> None:
        receiver = self.followed("math", 1, 0)
        receiver.commit(1, tensors(1))
        self.engine.execute_method("dws_wait_ready", timeout=FOUND)
        self.assertIsNone(self.engine.execute_model(SCHEDULED))
        down, up = receiver.lease
        down.put(pause(9))
        with self.assertRaises(Exception):
            up.get(timeout=0.2)
        self.engine.sample_tokens(None)
        self.assertTrue(up.get(timeout=FOUND).HasField("paused"))

    def test_an_adapter_that_was_evicted_comes_back_with_its_version(self) -> None:
        receiver = self.followed("math", 1, 0)
        receiver.commit(1, tensors(1))
        for number in (2, 3):
            save(self.path(f"other-{number}"), tensors(number))
            self.load(number, f"other-{number}")
        self.assertNotIn(1, self.manager.list_adapters())
        before = self.in_slot(2), self.in_slot(3)
        self.assertEqual(receiver.commit(2, tensors(2)), "")
        self.engine.execute_method("dws_wait_ready", timeout=FOUND)
        self.assertFalse(self.engine.execute_method("dws_status")["adapters"]["math"]["loaded"])
        for name in MODULES:
            for old, now in zip(before, (self.in_slot(2), self.in_slot(3))):
                self.assertTrue(all(torch.equal(a, b) for a, b in zip(old[name], now[name])))
        self.load(1, "math")
        self.require_as_fresh(1, tensors(2))

    def test_a_registered_adapter_without_a_slot_is_loaded_again(self) -> None:
        self.manager._adapter_manager.capacity = 3
        receiver = self.followed("math", 1, 0)
        receiver.commit(1, tensors(1))
        for number in (2, 3):
            save(self.path(f"other-{number}"), tensors(number))
            self.load(number, f"other-{number}")
        self.assertIn(1, self.manager.list_adapters())
        self.assertEqual(receiver.commit(2, tensors(2)), "")
        self.load(1, "math")
        self.require_as_fresh(1, tensors(2))

    def test_what_vllm_has_not_loaded_is_refused(self) -> None:
        save(self.path("math"), tensors(0))
        with self.assertRaisesRegex(dws.LayoutError, r"of \[\] none is"):
            self.attach("math", self.receiver_of("math"))
        self.load(1, "math")
        save(self.path("math"), tensors(1))  # after vLLM has read it
        for options, what in (({}, r"of \[1\] none is"), ({"lora_int_id": 2}, "no adapter of lora_int_id 2 loaded, found .1.")):
            with self.subTest(what), self.assertRaisesRegex(dws.LayoutError, what):
                self.attach("math", self.receiver_of(f"math-{len(options)}"), **options)
        self.assertIsNone(getattr(self.engine.worker, "_dws_attached", None))

    def test_of_equal_adapters_the_id_tells_which(self) -> None:
        save(self.path("math"), tensors(0))
        save(self.path("twin"), tensors(0))
        self.load(1, "math")
        self.load(2, "twin")
        with self.assertRaisesRegex(dws.LayoutError, r"several are, \[1, 2\]: pass lora_int_id"):
            self.attach("twin", self.receiver_of("twin"))
        receiver = self.receiver_of("one")
        self.attach("twin", receiver, lora_int_id=2)
        receiver.commit(1, tensors(1))
        self.require_as_fresh(1, tensors(0))
        self.require_as_fresh(2, tensors(1))
        with self.assertRaisesRegex(dws.StateError, "lora_int_id 2 is attached as 'twin'"):
            self.attach("math", receiver, lora_int_id=2)

    def test_the_refusal_of_another_adapter_names_both(self) -> None:
        save(self.path("math"), tensors(0))
        self.load(1, "math")
        receiver = self.receiver_of("math")
        receiver.refuse = "view 'dws.adapter.lora_alpha' has the shape [3], and the tensor [6]"
        with self.assertRaisesRegex(dws.LayoutError, r"adapter 'math'.*r 2, lora_alpha 3.*the shape \[3\], and the tensor \[6\]"):
            self.attach("math", receiver)
        self.load(1, "math", load_inplace=True)  # not an attached one's
        receiver.refuse = None
        self.attach("math", receiver)
        self.assertEqual(receiver.commit(1, tensors(1)), "")

    def test_a_swap_needs_a_detach(self) -> None:
        receiver = self.followed("math", 1, 0)
        receiver.commit(1, tensors(1))
        save(self.path("other"), tensors(9))
        for number, name, inplace in ((1, "other", True), (2, "math", False)):
            with self.subTest(name), self.assertRaisesRegex(dws.StateError, "'math' is attached as lora_int_id 1.*dws_detach_adapter"):
                self.load(number, name, load_inplace=inplace)
        self.engine.worker._dws_adapters._replies_last = False  # another rank raises
        self.assertFalse(self.manager.add_adapter(LoRARequest("other", 1, self.path("other"), load_inplace=True)))
        with self.assertRaisesRegex(dws.StateError, "an adapter 'math' attached"):
            self.attach("math", receiver)
        self.require_as_fresh(1, tensors(1))
        self.engine.execute_method("dws_detach_adapter", "math")
        self.manager._adapter_manager.remove_adapter(1)  # vLLM evicts it
        self.load(1, "math")
        self.require_as_fresh(1, tensors(1))  # it goes on with its version
        self.load(1, "other", load_inplace=True)
        self.require_as_fresh(1, tensors(9))
        again = self.receiver_of("other")
        self.attach("other", again)
        again.commit(1, tensors(3))
        self.require_as_fresh(1, tensors(3))
        with self.assertRaisesRegex(dws.StateError, "no adapter 'math' is attached"):
            self.engine.execute_method("dws_detach_adapter", "math")

    def test_a_config_that_changes_on_disk_fails_the_commit_until_it_is_back(self) -> None:
        receiver = self.followed("math", 1, 0)
        receiver.commit(1, tensors(1))
        save(self.path("math"), tensors(0), lora_alpha=6)
        for _ in range(2):
            self.assertRegex(receiver.commit(2, tensors(2)), "says r 2, lora_alpha 6.*expected r 2, lora_alpha 3")
        save(self.path("math"), tensors(0))
        self.assertEqual(receiver.commit(2, tensors(2)), "")
        self.require_as_fresh(1, tensors(2))

    def test_a_load_that_fails_half_way_is_done_by_the_next_try(self) -> None:
        receiver = self.followed("math", 1, 0)
        receiver.commit(1, tensors(1))
        inner = self.manager._adapter_manager
        with mock.patch.object(inner, "activate_adapter", side_effect=RuntimeError("no memory")):
            for _ in range(2):
                self.assertRegex(receiver.commit(2, tensors(2)), "no memory")
        self.assertEqual(receiver.commit(2, tensors(2)), "")
        self.require_as_fresh(1, tensors(2))

    def test_an_adapter_is_attached_during_a_commit_of_another_one(self) -> None:
        math = self.followed("math", 1, 0)
        math.commit(1, tensors(1))
        save(self.path("code"), tensors(100))
        save(self.path("plain"), tensors(50))
        self.load(2, "code")
        read, inside, go_on = self.manager._lora_model_cls.from_lora_tensors, threading.Event(), threading.Event()

        @functools.wraps(read)
        def slow(*args: Any, **given: Any) -> Any:
            inside.set()
            go_on.wait(FOUND if threading.current_thread() is not threading.main_thread() else 0)
            return read(*args, **given)

        with mock.patch.object(type(self.manager)._lora_model_cls, "from_lora_tensors", slow):
            commit = threading.Thread(target=math.commit, args=(2, tensors(2)))
            commit.start()
            self.assertTrue(inside.wait(FOUND))
            threading.Timer(0.3, go_on.set).start()
            self.attach("code", self.receiver_of("code"))
            commit.join(FOUND)
        self.assertIs(self.manager._lora_model_cls, type(self.manager)._lora_model_cls)
        self.require_as_fresh(1, tensors(2))
        self.require_as_fresh(2, tensors(100))

    def test_a_pinned_adapter_stays_pinned(self) -> None:
        receiver = self.followed("math", 1, 0)
        receiver.commit(1, tensors(1))
        self.manager._adapter_manager.registered.pinned_items.add(1)
        self.assertEqual(receiver.commit(2, tensors(2)), "")
        self.assertEqual(self.manager._adapter_manager.registered.pinned_items, {1})

    def test_what_is_loaded_after_a_removal_is_in_its_folder(self) -> None:
        receiver = self.followed("math", 1, 0)
        receiver.commit(1, tensors(1))
        self.engine.execute_method("dws_detach_adapter", "math")
        self.manager.remove_adapter(1)
        save(self.path("math"), tensors(9))
        self.load(1, "math")
        self.require_as_fresh(1, tensors(9))

    def test_an_attach_that_fails_on_another_rank_leaves_what_vllm_reads(self) -> None:
        save(self.path("math"), tensors(0))
        self.load(1, "math")
        with mock.patch("dws.vllm.attach_together", side_effect=lambda make, *rest: self.fails_elsewhere(make())):
            with self.assertRaisesRegex(dws.StateError, "another rank"):
                self.attach("math", self.receiver_of("math"))
        self.manager._adapter_manager.remove_adapter(1)
        save(self.path("math"), tensors(9))
        self.load(1, "math")
        self.require_as_fresh(1, tensors(9))

    def fails_elsewhere(self, attached: Any) -> None:
        attached.close()
        raise dws.StateError("another rank")

    def test_all_ranks_answer_a_call_that_one_refuses(self) -> None:
        receiver = self.followed("math", 1, 0)
        receiver.commit(1, tensors(1))
        self.engine.execute_method("dws_wait_ready", timeout=FOUND)
        adapters, asked = self.engine.worker._dws_adapters, LoRARequest("lost", 5, self.path("lost"))
        adapters._minimum = mock.Mock(return_value=[0])
        with self.assertRaises(FileNotFoundError):
            self.manager.add_adapter(asked)
        adapters._replies_last = False
        self.assertIsNone(self.manager.add_adapter(asked))
        adapters._replies_last = True
        with self.assertRaisesRegex(dws.StateError, "another rank of the engine failed"):
            self.manager.pin_adapter(1)
        self.assertEqual([call.args for call in adapters._minimum.call_args_list], [([0],), ([0],), ([1],)])

    def test_a_slot_that_is_not_written_fails_the_commit(self) -> None:
        receiver = self.followed("math", 1, 0)
        receiver.commit(1, tensors(1))
        layer = self.manager._adapter_manager.modules["model.layers.0.q_proj"]
        with mock.patch.object(layer, "set_lora", lambda slot, weights: None):
            self.assertRegex(receiver.commit(2, tensors(2)), "adapter 'math': slot 0 of model.layers.0.q_proj.lora_a")

    def test_model_and_adapters_exclude_each_other(self) -> None:
        with self.assertRaisesRegex(dws.LayoutError, "LoRA .dws_attach_adapter"):
            self.engine.execute_method("dws_attach", socket=self.receiver.socket)
        plain, _, _ = self.attached()
        with self.assertRaisesRegex(dws.StateError, "its model attached"):
            plain.execute_method("dws_attach_adapter", "math", self.folder, self.receiver.socket)
        with self.assertRaisesRegex(dws.LayoutError, "runs without LoRA: start it with --enable-lora"):
            self.worker().execute_method("dws_attach_adapter", "math", self.folder, self.receiver.socket)

    def test_a_vllm_that_lacks_a_part_is_refused_by_its_name(self) -> None:
        save(self.path("math"), tensors(0))
        self.load(1, "math")
        for part in ("lora_index_to_id", "_last_slot_layout"):
            delattr(self.manager._adapter_manager, part)
            with self.subTest(part), self.assertRaisesRegex(dws.StateError, f"_adapter_manager.{part}"):
                self.attach("math", self.receiver_of(f"math-{part}"))

    def test_steps_go_on_after_all_adapters_were_detached(self) -> None:
        receiver = self.followed("math", 1, 0)
        receiver.commit(1, tensors(1))
        step(self.engine)
        self.engine.execute_method("dws_detach_adapter", "math")
        step(self.engine)
        with self.assertRaisesRegex(dws.StateError, "not attached"):
            self.engine.execute_method("dws_status")


if __name__ == "__main__":
    import unittest

    unittest.main()
