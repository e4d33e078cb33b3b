"""The tensors of a Hugging Face checkpoint, and the part of each that a rank of an engine has.

Pure: a table of how vLLM and SGLang cut Llama- and Qwen-shaped models, dense or with experts.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence

from dws.dtypes import DType
from dws.errors import LayoutError
from dws.layout import Cut

# vLLM and SGLang pad vocabularies to a multiple of this before they cut them.
VOCAB_PADDING = 64

Shapes = Mapping[str, Sequence[int]]


class Canonical(NamedTuple):
    """A canonical tensor, in the form that the checkpoint has."""

    shape: tuple[int, ...]
    dtype: DType


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """What the names and shapes of parameters do not tell about a model.

    Attributes:
      heads, kv_heads, head_dim: of its attention, over all ranks.
      vocab: rows of the embedding without padding.
      experts: of each layer with experts, 0 for none.
      tied: lm_head is embed_tokens; a rank with its own copy of it holds a replica.
    """

    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    experts: int = 0
    tied: bool = False

    @classmethod
    def from_config(cls, config: Any) -> "ModelShape":
        """Args:
          config: a Hugging Face text config, or anything with its attributes.

        Raises:
          LayoutError: an attribute is missing, by name.
        """
        heads = _config(config, "num_attention_heads")
        head_dim = getattr(config, "head_dim", None)
        return cls(
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=head_dim or _config(config, "hidden_size") // heads,
            vocab=_config(config, "vocab_size"),
            experts=experts_of(config),
            tied=bool(getattr(config, "tie_word_embeddings", False)),
        )


def experts_of(config: Any) -> int:
    """Experts of each layer that has some, 0 for none, by a Hugging Face text config."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next((getattr(config, name) for name in names if getattr(config, name, None)), 0)


def _config(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    if not isinstance(value, int) or value < 1:
        raise LayoutError(f"the model's config has {name}={value!r}, expected a number above 0")
    return value


@dataclasses.dataclass(frozen=True)
class Parallel:
    """One rank of an engine.

    Attributes:
      tp_rank, tp_size: in the tensor-parallel group.
      ep_size: the number of groups of whole experts that tp_size is split into. 1: every rank has a
        part of every expert; tp_size: each rank has some whole experts.
      experts_in_row: true if these numbers determine which experts a rank has; otherwise only the
        engine's load_weights knows it.

    Raises:
      LayoutError: on construction, if they do not fit each other.
    """

    tp_rank: int = 0
    tp_size: int = 1
    ep_size: int = 1
    experts_in_row: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.tp_rank < self.tp_size or self.ep_size < 1 or self.tp_size % self.ep_size:
            raise LayoutError(
                f"rank {self.tp_rank} of {self.tp_size}, {self.ep_size} groups of experts: expected "
                "0 <= rank < size, and a size that the groups divide"
            )

    @property
    def expert_tp_size(self) -> int:
        """Ranks that share each expert."""
        return self.tp_size // self.ep_size

    @property
    def expert_tp_rank(self) -> int:
        return self.tp_rank % self.expert_tp_size

    def local_experts(self, experts: int) -> range:
        """The experts of this rank: contiguous; the first groups have one more.

        Raises:
          LayoutError: they are placed otherwise.
        """
        if not self.experts_in_row:
            raise LayoutError("which experts this rank has, load_weights alone knows")
        group = self.tp_rank // self.expert_tp_size
        base, more = divmod(experts, self.ep_size)
        first = group * base + min(group, more)
        return range(first, first + base + (1 if group < more else 0))


class Kind(enum.Enum):
    """How a canonical tensor is cut."""

    WHOLE = "on no dimension"
    COLUMN = "on rows"
    KEY_VALUE = "on rows, by KV heads"
    ROW = "on columns"
    VOCAB = "on rows, padded"
    EXPERT_COLUMN = "an expert's, on rows"
    EXPERT_ROW = "an expert's, on columns"

    @property
    def dim(self) -> int:
        return 1 if self in (Kind.ROW, Kind.EXPERT_ROW) else 0


_KINDS = (
    (r"\.experts\.\d+\.(gate|up)_proj\.weight", Kind.EXPERT_COLUMN),
    (r"\.experts\.\d+\.down_proj\.weight", Kind.EXPERT_ROW),
    (r"\.(k|v)_proj\.(weight|bias)", Kind.KEY_VALUE),
    (r"\.(q|gate|up)_proj\.(weight|bias)", Kind.COLUMN),
    (r"\.(o|down)_proj\.weight", Kind.ROW),
    (r"\.(o|down)_proj\.bias", Kind.WHOLE),
    (r"(^|\.)(embed_tokens|lm_head)\.(weight|bias)", Kind.VOCAB),
    (r"(^|[._])(layer)?norm\.(weight|bias)", Kind.WHOLE),
    (r"\.mlp\.(gate|shared_expert_gate)\.(weight|e_score_correction_bias)", Kind.WHOLE),
)


def kind_of(name: str) -> Optional[Kind]:
    """Returns how the canonical tensor `name` is cut; None for a name that this module does not
    know."""
    for pattern, kind in _KINDS:
        if re.search(f"{pattern}$", name):
            return kind
    return None


def part_range(kind: Kind, extent: int, model: ModelShape, rank: Parallel) -> tuple[int, int]:
    """Returns [begin, end) of the rank's part on kind.dim of a canonical tensor; empty if it has
    none.

    Args:
      extent: the size of that dimension in the checkpoint.

    Raises:
      LayoutError: the engine cannot cut it evenly.
    """
    if kind is Kind.WHOLE:
        return 0, extent
    if kind is Kind.VOCAB:
        size = padded_rows(extent, rank)
        return min(rank.tp_rank * size, extent), min((rank.tp_rank + 1) * size, extent)
    if kind is Kind.KEY_VALUE and rank.tp_size >= model.kv_heads:
        ranks_of_one = even(rank.tp_size, model.kv_heads, kind)
        size = even(extent, model.kv_heads, kind)
        head = rank.tp_rank // ranks_of_one
        return head * size, (head + 1) * size
    if kind in (Kind.EXPERT_COLUMN, Kind.EXPERT_ROW):
        index, count = rank.expert_tp_rank, rank.expert_tp_size
    else:
        index, count = rank.tp_rank, rank.tp_size
    if kind is Kind.KEY_VALUE:
        even(model.kv_heads, count, kind)  # an engine cuts between heads
    size = even(extent, count, kind)
    return index * size, (index + 1) * size


def padded_rows(vocab: int, rank: Parallel) -> int:
    """Rows of an engine's embedding on each rank, with padding.

    Raises:
      LayoutError: the engine cannot cut them evenly.
    """
    return even(-(-vocab // VOCAB_PADDING) * VOCAB_PADDING, rank.tp_size, Kind.VOCAB)


def even(extent: int, parts: int, kind: Kind) -> int:
    """extent / parts; LayoutError if there is a remainder."""
    if extent % parts:
        raise LayoutError(f"a tensor cut {kind.value}: {extent} is not a multiple of {parts}")
    return extent // parts


def slice_grid(
    shapes: Shapes, model: ModelShape, engines: Iterable[tuple[int, int]]
) -> dict[str, Cut]:
    """The trainer's cuts=, so that the ranks of these engines can attach their parts.

    Args:
      shapes: of the canonical tensors.
      engines: (tp_size, ep_size) of each engine of the job.

    Raises:
      LayoutError: an engine cannot cut a tensor, by name.
    """
    ranks = [Parallel(i, tp, ep) for tp, ep in engines for i in range(tp)]
    grid = {}
    for name, shape in shapes.items():
        kind = kind_of(name) or Kind.WHOLE
        if kind is Kind.WHOLE or kind.dim >= len(shape):
            continue
        extent = int(shape[kind.dim])
        try:
            bounds = {end for rank in ranks for end in part_range(kind, extent, model, rank)}
        except LayoutError as error:
            raise LayoutError(f"tensor '{name}' {list(shape)}: {error}") from None
        inner = tuple(sorted(bounds - {0, extent}))
        if inner:
            grid[name] = Cut(inner, kind.dim)
    return grid
