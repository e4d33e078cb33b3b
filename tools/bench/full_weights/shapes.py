"""The model of the figures of full weights: two trainer ranks that hold rows, as FSDP shards them, and one
engine of tensor parallelism 2 that holds rows of half of the tensors and columns of the others."""

from __future__ import annotations

import dataclasses

import dws

RANKS = 2
TP = 2
_TENSORS = 16
_COLUMNS = 4096


@dataclasses.dataclass(frozen=True)
class Shapes:
    """`rows` x 4096 BF16 elements for each of 16 tensors."""

    rows: int

    @classmethod
    def of(cls, size_bytes: int) -> "Shapes":
        rows = size_bytes // (_TENSORS * _COLUMNS * 2)
        return cls(max(rows - rows % (2 * RANKS), 2 * RANKS))

    @property
    def size_bytes(self) -> int:
        return _TENSORS * self.rows * _COLUMNS * 2

    def specs(self) -> list[dws.TensorSpec]:
        return [
            dws.TensorSpec(
                f"layers.{i:02}.weight", "BF16", (self.rows, _COLUMNS),
                (dws.Cut.even(self.rows, RANKS), dws.Cut.even(_COLUMNS, TP, 1))
                if self.by_columns(i)
                else (dws.Cut.even(self.rows, RANKS),),
            )
            for i in range(_TENSORS)
        ]  # fmt: skip

    @staticmethod
    def by_columns(tensor: int) -> bool:
        return tensor % 2 == 1

    def owned(self, rank: int) -> dict[str, list[tuple[int, int]]]:
        """The cells of each tensor that a trainer rank holds."""
        return {
            spec.name: [(rank, 1)] + ([(0, TP)] if self.by_columns(i) else [])
            for i, spec in enumerate(self.specs())
        }

    def engine_shapes(self) -> dict[str, tuple[int, int]]:
        return {
            spec.name: (self.rows, _COLUMNS // TP) if self.by_columns(i) else (self.rows // TP, _COLUMNS)
            for i, spec in enumerate(self.specs())
        }

    def engine_mapping(self, rank: int) -> dict[str, dws.Slice]:
        mapping = {}
        for i, spec in enumerate(self.specs()):
            dim = 1 if self.by_columns(i) else 0
            part = spec.shape[dim] // TP
            mapping[spec.name] = dws.Slice(spec.name, dim, rank * part, (rank + 1) * part)
        return mapping
