"""How a model is built."""

from __future__ import annotations

from typing import Any, Callable


def _initialize_model(make: Callable[[], Any]) -> Any:
    return make()
