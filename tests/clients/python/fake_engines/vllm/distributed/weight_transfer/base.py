"""The classes that backends derive from, with vLLM's defaults."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar

Init = TypeVar("Init")
Update = TypeVar("Update")


@dataclasses.dataclass
class _Init:
    pass


@dataclasses.dataclass
class _Update:
    pass


@dataclasses.dataclass
class _TrainerInit:
    rank: int = dataclasses.field(kw_only=True)

    @property
    def is_sender(self) -> bool:
        return self.rank == 0


class WeightTransferEngine(Generic[Init, Update]):
    init_info_cls: Any
    update_info_cls: Any
    supports_draft_weight_update = True

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any:
        try:
            return self.init_info_cls(**init_dict)
        except TypeError as error:
            raise ValueError(f"Invalid init_info for {self.__class__.__name__}: {error}") from error

    def parse_update_info(self, update_dict: dict[str, Any]) -> Any:
        try:
            return self.update_info_cls(**update_dict)
        except TypeError as error:
            raise ValueError(f"Invalid update_info for {self.__class__.__name__}: {error}") from error


class TrainerWeightTransferEngine(Generic[Init]):
    def __init__(self, *, client: Any, source: Any = None, is_sender: bool = True) -> None:
        self.client, self.source, self.is_sender = client, source, is_sender


# vLLM's names for them.
WeightTransferInitInfo, WeightTransferUpdateInfo, TrainerInitInfo = _Init, _Update, _TrainerInit
