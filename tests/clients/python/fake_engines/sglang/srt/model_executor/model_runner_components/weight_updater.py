"""What SGLang says against updates of a model's weights."""

from __future__ import annotations

from typing import Any, Optional


def _unsupported_derived_weight_cache_error(model: Any = None) -> Optional[str]:
    return getattr(model, "_derived_weight_cache_error", None)
