"""What adapter_config.json says of an adapter, for trainers and engines. Pure."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Iterable, Mapping

import numpy as np

from dws.errors import InvalidArgumentError, LayoutError

# The names of the tensors that are not in a checkpoint.
PREFIX = "dws.adapter."
_ENDINGS = (".lora_A.weight", ".lora_B.weight")
# Bytes of the tensor whose length is the number: alphas are hundreds.
_ALPHA_MAX = 65536
# Values of init_lora_weights, or beginnings of these, with which peft changes the base model too.
_CHANGING_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# What an adapter must not have, with the value of one that does not.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "use_dora": (False,),
    "lora_bias": (False,),
    "use_qalora": (False,),
    "use_bdlora": (None, False),
    "modules_to_save": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
}


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """Attributes:
    r: the rank.
    lora_alpha: as in the config.
    use_rslora: whether the product is scaled by lora_alpha / sqrt(r), and not by lora_alpha / r.
    """

    r: int
    lora_alpha: int
    use_rslora: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any], what: str) -> "AdapterConfig":
        """Args:
          config: the content of adapter_config.json, or to_dict() of peft's LoraConfig.
          what: the adapter, for messages.

        Raises:
          LayoutError: it is no LoRA, or has something that is not supported, by name.
          InvalidArgumentError: r, lora_alpha or use_rslora is no value of such a config, by name.
        """
        kind = getattr(config.get("peft_type"), "value", config.get("peft_type"))
        if kind not in (None, "LORA"):
            raise LayoutError(f"{what} is of peft_type {kind}, expected LORA: publish its merged weights")
        for key, allowed in _UNSUPPORTED.items():
            if key in config and not _is_one_of(config[key], allowed):
                raise LayoutError(f"{what} has {key}={config[key]!r}, expected {allowed[0]!r}: publish its merged weights")
        begin = config.get("init_lora_weights")
        if isinstance(begin, str) and begin.lower().startswith(_CHANGING_BASE):
            raise LayoutError(
                f"{what} has init_lora_weights={begin!r}, which changes the base model too: engines would add it to another "
                "base. Publish its merged weights"
            )
        r, alpha, rooted = config.get("r"), config.get("lora_alpha"), config.get("use_rslora")
        if isinstance(r, bool) or not isinstance(r, int) or r < 1:
            raise InvalidArgumentError(f"{what} has r={r!r}, expected a whole number from 1")
        # NaN and infinity are not between the two.
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 1 <= alpha <= _ALPHA_MAX or alpha != int(alpha):
            raise InvalidArgumentError(f"{what} has lora_alpha={alpha!r}, expected a whole number from 1 to {_ALPHA_MAX}")
        if not _is_one_of(rooted, (None, False, True)):
            raise InvalidArgumentError(f"{what} has use_rslora={rooted!r}, expected true or false")
        return cls(r, int(alpha), bool(rooted))

    @property
    def scaling(self) -> float:
        """What engines multiply the product of B and A by."""
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)

    def tensors(self) -> dict[str, Any]:
        """What a registration has in addition to A and B: bytes of zero whose number says lora_alpha and use_rslora. A
        receiver refuses an engine whose tensors have other shapes, and its message has both. (The rank is in the
        shapes of A and B, the targets are in their names.)"""
        counts = {"lora_alpha": self.lora_alpha, "use_rslora": 1 + self.use_rslora}
        return {f"{PREFIX}{key}": np.zeros(count, np.uint8) for key, count in counts.items()}

    def __str__(self) -> str:
        return f"r {self.r}, lora_alpha {self.lora_alpha}, use_rslora {self.use_rslora}"


def require_shapes(tensors: Mapping[str, Any], config: AdapterConfig, what: str) -> None:
    """Args:
      tensors: A and B, which have shapes, by the names that peft saves.

    Raises:
      LayoutError: something else is among them, or one has another rank, by name.
    """
    require_names(tensors, what)
    for name, tensor in tensors.items():
        shape, rank_at = tuple(tensor.shape), int(name.endswith(_ENDINGS[1]))
        if len(shape) != 2 or shape[rank_at] != config.r:
            raise LayoutError(f"{what}: '{name}' has the shape {list(shape)}, expected two dimensions with r {config.r} as number {rank_at}")


def require_names(names: Iterable[str], what: str) -> None:
    """Raises:
    LayoutError: one is not of A or B of a linear layer, or is of an expert; or there are none.
    """
    names = list(names)
    if not names:
        raise LayoutError(f"{what} has no tensors, expected lora_A and lora_B of linear layers")
    for name in names:
        if not name.endswith(_ENDINGS):
            raise LayoutError(f"{what} has '{name}', expected lora_A.weight and lora_B.weight of linear layers only")
        if ".experts." in name:
            raise LayoutError(f"{what} has '{name}', of an expert: not supported, publish its merged weights")


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    value = list(value) if isinstance(value, (set, tuple)) else value
    return any(value == each and type(value) is type(each) for each in allowed)
