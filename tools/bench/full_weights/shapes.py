"""The model of the figures of full weights: trainer ranks that hold rows, as FSDP shards them, and one engine of
tensor parallelism that holds rows of half of the tensors and columns of the others."""

from __future__ import annotations

import dataclasses

import dws

_TENSORS = 16
_COLUMNS = 4096


@dataclasses.dataclass(frozen=True)
class Shapes:
    """`rows` x 4096 BF16 elements for each of 16 tensors, from `ranks` trainer ranks to `tp` engine ranks."""

    rows: int
    ranks: int = 2
    tp: int = 2

    @classmethod
    def of(cls, size_bytes: int, ranks: int = 2, tp: int = 2) -> "Shapes":
        """Makes shapes of about that size; all parts are equal."""
        rows = size_bytes // (_TENSORS * _COLUMNS * 2)
        return cls(max(rows - rows % (ranks * tp), ranks * tp), ranks, tp)

    @property
    def size_bytes(self) -> int:
        return _TENSORS * self.rows * _COLUMNS * 2

    def specs(self) -> list[dws.TensorSpec]:
        return [
            dws.TensorSpec(
                f"layers.{i:02}.weight", "BF16", (self.rows, _COLUMNS),
                (dws.Cut.even(self.rows, self.ranks), dws.Cut.even(_COLUMNS, self.tp, 1))
                if self.by_columns(i)
                else (dws.Cut.even(self.rows, self.ranks),),
            )
            for i in range(_TENSORS)
        ]  # fmt: skip

    @staticmethod
    def by_columns(tensor: int) -> bool:
        return tensor % 2 == 1

    def owned(self, rank: int) -> dict[str, list[tuple[int, int]]]:
        """Returns the cells of each tensor that a trainer rank holds."""
        return {
            spec.name: [(rank, 1)] + ([(0, self.tp)] if self.by_columns(i) else [])
            for i, spec in enumerate(self.specs())
        }

    def engine_shapes(self) -> dict[str, tuple[int, int]]:
        return {
            spec.name: (self.rows, _COLUMNS // self.tp) if self.by_columns(i) else (self.rows // self.tp, _COLUMNS)
            for i, spec in enumerate(self.specs())
        }

    def engine_mapping(self, rank: int) -> dict[str, dws.Slice]:
        mapping = {}
        for i, spec in enumerate(self.specs()):
            dim = 1 if self.by_columns(i) else 0
            part = spec.shape[dim] // self.tp
            mapping[spec.name] = dws.Slice(spec.name, dim, rank * part, (rank + 1) * part)
        return mapping
