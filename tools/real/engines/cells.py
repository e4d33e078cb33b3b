"""What can be checked: the cells of the table. Pure.

A cell is a configuration of an engine and a check of it, ENGINE/MODEL/tpN/CHECK; or a way to run the search for
torn passes under load, ENGINE/torn/MODE; or a draft model that follows its target, vllm/draft/METHOD.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import Optional, Sequence

from tools.real.report import matching

MODELS = ("llama", "qwen2", "qwen3", "qwen3-moe", "deepseek", "glm4-moe", "step3p5", "minimax-m2", "gpt-oss", "gpt-oss-mxfp4", "qwen3-fp8", "qwen3-moe-fp8", "deepseek-fp8", "qwen3-int4")
ENGINES = ("vllm-v1", "vllm-v2", "sglang")
# How versions reach the engine while it runs. The first is the one that checks of failures use.
_LIVE = {"vllm": ("extension", "transfer"), "sglang": ("plugin",)}
# Pause modes of a receiver that follows a folder and has the engine load its checkpoint.
PAUSE_MODES = {"vllm": ("keep", "wait", "abort"), "sglang": ("retract", "abort", "in_place")}
KILLS = ("kill-receiver", "kill-sender", "kill-engine")
FOLLOWER_KILLS = ("follow-kill-receiver", "follow-kill-engine")

# Every engine and model with one rank, the dense and the MoE model with two; transfer, pause modes and failures
# with one model. `--all` is the rest.
_DEFAULT = (
    "vllm-v1/*/tp1/extension",
    "vllm-v1/qwen3/tp2/extension",
    "vllm-v1/qwen3-moe/tp2/extension",
    "vllm-v1/gpt-oss*/tp2/extension",
    "vllm-v1/qwen3*-fp8/tp2/extension",
    "vllm-v1/qwen3-fp8/tp1/transfer",
    "vllm-v2/qwen3/tp1/extension",
    "vllm-v2/qwen3-moe/tp1/extension",
    "vllm-v2/qwen3/tp2/extension",
    "vllm-*/qwen3/tp1/transfer",
    "vllm-v1/qwen3/tp1/follow-*",
    "vllm-v1/qwen3/tp1/kill-*",
    "sglang/*/tp1/plugin",
    "sglang/qwen3/tp2/plugin",
    "sglang/qwen3-moe/tp2/plugin",
    "sglang/qwen3/tp1/follow-*",
    "sglang/qwen3/tp1/kill-*",
    "vllm/torn/v1",
    "vllm/torn/v2",
    "vllm/torn/v1-tp2",
    "sglang/torn/qwen3",
    "sglang/torn/qwen3-tp2",
    "vllm/draft/*",
)


@dataclasses.dataclass(frozen=True, order=True)
class Configuration:
    """How an engine runs. `engine`: of ENGINES; `kind`: of the model; `ranks`: tensor-parallel ones."""

    engine: str
    kind: str
    ranks: int

    @property
    def package(self) -> str:
        """The environment it runs in: vllm, sglang."""
        return self.engine.partition("-")[0]

    @property
    def name(self) -> str:
        return f"{self.engine}/{self.kind}/tp{self.ranks}"

    @property
    def is_quantised(self) -> bool:
        """Its receiver follows a view."""
        return self.kind.endswith(("-fp8", "-int4", "-mxfp4"))

    @property
    def checks(self) -> tuple[str, ...]:
        if self.is_quantised:
            return (*_LIVE[self.package], *KILLS)
        modes = tuple(f"follow-{mode}" for mode in PAUSE_MODES[self.package])
        return (*_LIVE[self.package], *KILLS, *modes, *FOLLOWER_KILLS)


CONFIGURATIONS = tuple(
    Configuration(engine, kind, ranks)
    for engine in ENGINES
    for kind in MODELS
    for ranks in (1, 2)
    # SGLang computes MLA on processors with AMX only, INT4 and attention sinks on GPUs.
    if not (engine == "sglang" and (kind.startswith(("deepseek", "gpt-oss")) or kind.endswith("-int4")))
    # SGLang's norms of Step-3.5 have a buffer that load_weights computes, which attaching refuses.
    if not (engine == "sglang" and kind == "step3p5")
    # vLLM's router for the CPU does not compute MiniMax-M2's.
    if not (engine.startswith("vllm") and kind == "minimax-m2")
)


def chosen(names: Sequence[str], patterns: Optional[Sequence[str]], everything: bool) -> list[str]:
    """Those of `names` that match a pattern, or are checked by default, or all. Raises as `matching`."""
    if everything:
        return list(names)
    if patterns is not None:
        return matching(names, patterns)
    return [name for name in names if any(fnmatch.fnmatchcase(name, one) for one in _DEFAULT)]
