"""dws.plugins.layers: layers that cannot be written in place are refused by name, or have a hook."""

from __future__ import annotations

import enum
import unittest
from typing import Any

import torch

import dws
from dws.plugins.layers import post_commit_hook, refuse, resolve, what_needs_a_hook

REBUILT: list[Any] = []


def rebuild(model: Any) -> None:
    REBUILT.append(model)


class Backend(enum.Enum):
    TRITON = "TRITON"
    FLASHINFER_CUTLASS = "FlashInfer CUTLASS"


class UnquantizedLinearMethod:
    pass


class UnquantizedFusedMoEMethod:
    pass


class Fp8LinearMethod:
    pass


class FusedMoEModularMethod:
    def __init__(self, old: Any) -> None:
        self.old_quant_method = old


class Model(torch.nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        for name, value in attributes.items():
            setattr(self.layer, name, value)


def moe(**flags: Any) -> UnquantizedFusedMoEMethod:
    method = UnquantizedFusedMoEMethod()
    for name, value in flags.items():
        setattr(method, name, value)
    return method


class LayersTest(unittest.TestCase):
    def test_plain_layers_need_no_hook(self) -> None:
        for method in (
            None,
            UnquantizedLinearMethod(),
            moe(unquantized_backend=Backend.TRITON, load_up_proj_weight_first=False),
            FusedMoEModularMethod(moe()),
        ):
            model = Model(
                quant_method=method,
                w_kc=None,
                cpu_linear=lambda x: torch.relu(x),
                use_intel_amx_backend=False,
            )
            self.assertEqual(what_needs_a_hook(model), [])
            self.assertIsNone(post_commit_hook(model, None))

    def test_weights_kept_in_another_form_are_refused_by_name(self) -> None:
        inner = type("Impl", (), {"W_UK_T": torch.zeros(1)})()
        for attributes, message in (
            ({"quant_method": Fp8LinearMethod()}, "'layer' has weights.*Fp8LinearMethod"),
            ({"quant_method": moe(flashinfer_cutlass_moe_enabled=True)}, "cutlass_moe_enabled"),
            ({"quant_method": moe(load_up_proj_weight_first=True)}, "reorders.*up_proj"),
            (
                {"quant_method": FusedMoEModularMethod(moe(rocm_aiter_moe_enabled=True))},
                "rocm_aiter",
            ),
            ({"quant_method": moe(unquantized_backend=Backend.FLASHINFER_CUTLASS)}, "FLASHINFER"),
            ({"w_kc": torch.zeros(1)}, "'layer' keeps w_kc"),
            ({"impl": inner}, "'layer' keeps W_UK_T"),
            ({"cpu_linear": lambda: inner}, "'layer' keeps its weight packed for the CPU"),
            ({"use_intel_amx_backend": True}, "packed for the CPU .use_intel_amx_backend"),
            ({"quant_method": moe(w13_swiglu_interleaved=True)}, "w13_swiglu_interleaved"),
        ):
            model = Model(**attributes)
            with self.assertRaisesRegex(dws.LayoutError, f"model Model: .*{message}.*hooks="):
                refuse(model, what_needs_a_hook(model))
            self.assertIsNone(post_commit_hook(model, {"OtherModel": rebuild}))

    def test_scales_of_a_kv_cache_are_no_weights(self) -> None:
        base = type("BaseKVCacheMethod", (), {})
        self.assertEqual(what_needs_a_hook(Model(quant_method=type("Fp8KVCacheMethod", (base,), {})())), [])

    def test_a_hook_for_the_models_class_is_called_with_the_model_after_each_commit(self) -> None:
        model = Model(w_kc=torch.zeros(1))
        for hook in (rebuild, f"{__name__}:rebuild"):
            REBUILT.clear()
            after_commit = post_commit_hook(model, {"Model": hook})
            assert after_commit is not None
            after_commit(3)
            after_commit(4)
            self.assertEqual(REBUILT, [model, model])

    def test_a_hook_that_does_not_exist_is_an_error_at_attach(self) -> None:
        for path in ("no_such_module:f", f"{__name__}:nothing", "plainly_wrong", "os:name"):
            with self.assertRaisesRegex(dws.InvalidArgumentError, path):
                post_commit_hook(Model(), {"Model": path})


if __name__ == "__main__":
    unittest.main()
