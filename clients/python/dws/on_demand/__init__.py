"""Parts of training on demand: gradients that a rank leaves for its sender. Needs numpy; no torch."""

from dws.on_demand.outbox import Buffer, Outbox, Piece

__all__ = ["Buffer", "Outbox", "Piece"]
