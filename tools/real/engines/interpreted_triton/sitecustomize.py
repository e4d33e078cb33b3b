"""Lets vLLM use its V2 model runner without a GPU: Triton's kernels run in Triton's interpreter
(TRITON_INTERPRET=1), and vLLM, which asks for a CPU backend of Triton, finds one that compiles nothing.

On PYTHONPATH, so that every process of an engine has it before it imports vLLM."""

from __future__ import annotations

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton import backends
    from triton.backends.compiler import BaseBackend
    from triton.backends.driver import DriverBase

    class _Interpreted(DriverBase):
        @staticmethod
        def is_active() -> bool:
            return False

    backends.backends["cpu"] = backends.Backend(BaseBackend, _Interpreted)
