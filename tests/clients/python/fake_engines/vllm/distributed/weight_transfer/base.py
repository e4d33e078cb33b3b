"""The classes that backends derive from, with vLLM's defaults."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Iterator, Optional, TypeVar

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


@dataclasses.dataclass
class ParamMeta:
    name: str
    dtype: Any
    shape: tuple[int, ...]


class ModuleSource:
    """Has the interface before vLLM 0.33."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, p.dtype, tuple(p.shape)) for name, p in self._module.named_parameters()]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield from self._module.named_parameters()


@dataclasses.dataclass
class OwnedMeta(ParamMeta):
    owners: Optional[tuple[int, ...]] = None


class OwnedSource:
    """Has the interface since vLLM 0.33: a property, owners, and two ways to iterate."""

    def __init__(self, module: Any, owners: Optional[tuple[int, ...]] = None) -> None:
        self._module = module
        self._owners = owners

    @property
    def metadata(self) -> list[OwnedMeta]:
        named = self._module.named_parameters()
        return [OwnedMeta(name, p.dtype, tuple(p.shape), self._owners) for name, p in named]

    def iter_full(self) -> Iterator[tuple[str, Any]]:
        yield from self._module.named_parameters()


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
