"""Backends by name. A name is registered once."""

from __future__ import annotations

import importlib
from typing import Any


class _Factory:
    registry: dict[str, tuple[str, str]]

    @classmethod
    def register_engine(cls, name: str, module: str, class_name: str) -> None:
        if name in cls.registry:
            raise ValueError(f"Weight transfer engine '{name}' is already registered.")
        cls.registry[name] = (module, class_name)

    @classmethod
    def found(cls, name: str) -> Any:
        module, class_name = cls.registry[name]
        return getattr(importlib.import_module(module), class_name)


class WeightTransferEngineFactory(_Factory):
    registry: dict[str, tuple[str, str]] = {}

    @classmethod
    def create_engine(cls, config: Any, vllm_config: Any, device: Any, model: Any) -> Any:
        return cls.found(config.backend)(config, vllm_config, device, model)


class WeightTransferTrainerFactory(_Factory):
    registry: dict[str, tuple[str, str]] = {}

    @classmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Any:
        return cls.found(init_info.backend).trainer_init(init_info, client=client, source=source)
