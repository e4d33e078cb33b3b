"""dws.adapters: what an adapter's checkpoint has to be, and steps inside the leases of several."""

from __future__ import annotations

import contextlib
import math
import os
import re
import tempfile
import threading
import unittest
from typing import Any, Iterator, Optional
from unittest import mock

import torch

import dws
from dws.adapters import AdapterConfig
from dws.adapters.attached import SEVERAL, AdapterLeases
from dws.adapters.shadow import Shadow
from dws.lease import ExecutionLease, Grant
from tests.clients.python.adapters.adapter_case import CONFIG, save, tensors

REFUSED = {
    "peft_type": "IA3",
    "bias": "all",
    "use_dora": True,
    "lora_bias": True,
    "modules_to_save": ["lm_head"],
    "target_parameters": ["experts.gate_up_proj"],
    "trainable_token_indices": [1],
    "rank_pattern": {"q_proj": 4},
    "alpha_pattern": {"q_proj": 4},
    "layer_replication": [[0, 2]],
    "init_lora_weights": "pissa_niter_4",
    "kasa_config": {"beta": 1},
}
# No values of such a config.
WRONG: tuple[tuple[str, Any], ...] = (
    ("r", 0),
    ("r", True),
    ("r", "8"),
    *(("lora_alpha", value) for value in (1.5, 0, True, 10**30, math.nan, math.inf, -math.inf)),
    *(("use_rslora", value) for value in ("false", 1)),
)


class AdapterConfigTest(unittest.TestCase):
    def test_what_is_not_supported_is_refused_by_name(self) -> None:
        for key, value in REFUSED.items():
            with self.subTest(key), self.assertRaisesRegex(dws.LayoutError, f"adapter 'math' (has|is of) {key}"):
                AdapterConfig.of({**CONFIG, key: value}, "adapter 'math'")

    def test_a_value_that_no_config_has_is_refused_by_name(self) -> None:
        for key, value in WRONG:
            message = f"adapter 'math' has {key}={re.escape(repr(value))}, expected"
            with self.subTest(key, value=value), self.assertRaisesRegex(dws.InvalidArgumentError, message):
                AdapterConfig.of({**CONFIG, key: value}, "adapter 'math'")
        for value, rooted in ((True, True), (False, False), (None, False)):
            self.assertEqual(AdapterConfig.of({**CONFIG, "use_rslora": value}, "it").use_rslora, rooted)

    def test_values_of_an_adapter_without_them_are_taken(self) -> None:
        plain = {"modules_to_save": None, "rank_pattern": {}, "trainable_token_indices": None, "use_dora": False, "bias": "none"}
        self.assertEqual(AdapterConfig.of({**CONFIG, **plain, "lora_alpha": 3.0}, "it"), AdapterConfig(2, 3))

    def test_scaling_is_that_of_peft(self) -> None:
        self.assertEqual(AdapterConfig(8, 12).scaling, 1.5)
        self.assertEqual(AdapterConfig(4, 9, use_rslora=True).scaling, 4.5)

    def test_a_registration_tells_alpha_and_rslora_apart_by_shapes(self) -> None:
        shapes = [
            {name: zeros.shape for name, zeros in AdapterConfig(8, alpha, rooted).tensors().items()}
            for alpha in (12, 24)
            for rooted in (False, True)
        ]
        self.assertEqual(len({str(each) for each in shapes}), 4)
        self.assertEqual(shapes[0], {"dws.adapter.lora_alpha": (12,), "dws.adapter.use_rslora": (1,)})


class ShadowTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_it_begins_with_the_values_of_the_checkpoint(self) -> None:
        weights = tensors()
        save(self.folder, weights)
        with open(os.path.join(self.folder, "optimizer.safetensors"), "wb") as other:
            other.write(b"no file of the adapter's")
        shadow = Shadow(self.folder)
        self.assertEqual(list(shadow.tensors)[:2], ["dws.adapter.lora_alpha", "dws.adapter.use_rslora"])
        copies = shadow.copies()
        self.assertEqual(set(copies), set(weights))
        for name, tensor in weights.items():
            self.assertTrue(torch.equal(copies[name], tensor), name)
            self.assertNotEqual(copies[name].data_ptr(), shadow.tensors[name].data_ptr())

    def test_another_type_is_a_cast(self) -> None:
        weights = tensors()
        shadow = Shadow(save(self.folder, weights), "bfloat16")
        for name, tensor in weights.items():
            self.assertTrue(torch.equal(shadow.tensors[name], tensor.to(torch.bfloat16)), name)

    def test_what_is_no_adapter_of_linear_layers_is_refused_by_name(self) -> None:
        for what, name in (
            ("expected lora_A.weight and lora_B.weight", "base_model.model.model.embed_tokens.lora_embedding_A"),
            ("of an expert", "base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight"),
            ("expected two dimensions with r 2", "base_model.model.model.layers.0.o_proj.lora_A.weight"),
        ):
            save(self.folder, {**tensors(), name: torch.zeros(3, 4)})
            with self.subTest(name), self.assertRaisesRegex(dws.LayoutError, f"'{name}'.*{what}"):
                Shadow(self.folder)

    def test_a_type_that_no_weight_is_published_in_is_refused(self) -> None:
        save(self.folder, tensors())
        with self.assertRaisesRegex(dws.DTypeError, "dtype=: I32, expected one of F16, BF16, F32, F64"):
            Shadow(self.folder, "int32")

    def test_a_folder_without_the_files_is_refused_by_name(self) -> None:
        with self.assertRaisesRegex(dws.InvalidArgumentError, "adapter_config.json"):
            Shadow(self.folder)
        save(self.folder, tensors())
        os.remove(os.path.join(self.folder, "adapter_model.safetensors"))
        with self.assertRaisesRegex(dws.InvalidArgumentError, "adapter_model.safetensors"):
            Shadow(self.folder)

    def test_a_config_that_has_changed_is_refused_with_both(self) -> None:
        shadow = Shadow(save(self.folder, tensors()))
        shadow.require_config(AdapterConfig(2, 3))
        with self.assertRaisesRegex(dws.LayoutError, "lora_alpha 6.*expected r 2, lora_alpha 3"):
            shadow.require_config(AdapterConfig(2, 6))


class _Leased:
    """A dws.Engine that has a lease only."""

    def __init__(self, version: int) -> None:
        self.lease = ExecutionLease()
        self.version = version
        self.stopped: Optional[str] = None
        self.passed = mock.Mock()
        self.lease.open(self._grant())

    def _grant(self) -> Grant:
        return Grant(self.version, dws.Stream(1, 2), f"{self.version:032x}")

    @property
    def grant(self) -> Optional[Grant]:
        return self.lease.grant

    @contextlib.contextmanager
    def inside(self, timeout: Optional[float] = None) -> Iterator[Grant]:
        block = self.lease.enter(timeout)
        try:
            yield block.grant
        finally:
            self.lease.leave(block)

    def commit(self) -> None:
        self.lease.open(self._grant())


def _both() -> tuple[AdapterLeases, Any, Any]:
    leases, one, other = AdapterLeases(), _Leased(3), _Leased(4)
    leases.engines += [one, other]  # type: ignore[list-item]
    return leases, one, other


class AdapterLeasesTest(unittest.TestCase):
    def test_the_grant_of_one_is_its_own(self) -> None:
        leases, _, other = _both()
        del leases.engines[0]
        with leases.inside(1) as grant:
            self.assertEqual(grant, other.grant)

    def test_a_step_keeps_every_adapter_from_being_committed(self) -> None:
        leases, one, other = _both()
        with leases.inside(1) as grant:
            self.assertEqual(grant.version, SEVERAL)
            for each in (one, other):
                each.lease.shut("a commit")
                self.assertFalse(each.lease.wait_empty(0.01))
        self.assertTrue(one.lease.wait_empty(1) and other.lease.wait_empty(1))

    def test_the_state_token_changes_with_each_adapter(self) -> None:
        leases, _, other = _both()
        before = leases.grant
        other.version = 5
        other.lease.shut("a commit")
        self.assertIsNone(leases.grant)
        other.commit()
        assert before is not None and leases.grant is not None
        self.assertNotEqual(before.state_token, leases.grant.state_token)

    def test_a_step_that_waits_for_one_adapter_does_not_hold_the_others(self) -> None:
        leases, one, other = _both()
        other.lease.shut("a commit")
        entered = threading.Event()

        def step() -> None:
            with leases.inside(20):
                entered.set()

        thread = threading.Thread(target=step)
        thread.start()
        one.lease.shut("a commit")
        self.assertTrue(one.lease.wait_empty(20))
        one.commit()
        self.assertFalse(entered.is_set())
        other.commit()
        thread.join(20)
        self.assertTrue(entered.is_set())

    def test_a_step_that_is_not_let_in_in_time_says_why(self) -> None:
        leases, _, other = _both()
        other.lease.shut("version 5 is committed")
        with self.assertRaisesRegex(dws.EnginePaused, "version 5 is committed"):
            with leases.inside(0.01):
                self.fail("it was let in")


if __name__ == "__main__":
    unittest.main()
