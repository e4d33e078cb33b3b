"""Training on demand: ranks fetch parameters when they need them, and wait for each other once a minibatch; and PULSELoCo.
`Training` needs torch 2.9, which it imports when a model is cut; the rest needs numpy only.
"""

from dws.on_demand.member import Waits
from dws.on_demand.minibatch import Attempt, Step
from dws.on_demand.outbox import Buffer, Outbox, Piece
from dws.on_demand.pulse_loco import LocalRounds, PulseLoCo
from dws.on_demand.training import Training

__all__ = ["Attempt", "Buffer", "LocalRounds", "Outbox", "Piece", "PulseLoCo", "Step", "Training", "Waits"]
