"""Parts of training on demand: gradients that a rank leaves for its sender, and PULSELoCo. Needs numpy; no torch."""

from dws.on_demand.outbox import Buffer, Outbox, Piece
from dws.on_demand.pulse_loco import PulseLoCo

__all__ = ["Buffer", "Outbox", "Piece", "PulseLoCo"]
