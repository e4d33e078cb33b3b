"""PULSELoCo: workers that train on their own for some steps, and then send each other only what changes a BF16 weight.

`LocalRounds` is a worker in a job, whose senders carry the bytes. `PulseLoCo` and `ShardSum` are the arithmetic, which needs
numpy only; OBJECT.md defines the bytes. No torch.
"""

from dws.on_demand.pulse_loco.arithmetic import Settings
from dws.on_demand.pulse_loco.owner import ShardSum
from dws.on_demand.pulse_loco.rounds import LocalRounds, Round
from dws.on_demand.pulse_loco.worker import Full, PulseLoCo, Residual

__all__ = ["Full", "LocalRounds", "PulseLoCo", "Residual", "Round", "Settings", "ShardSum"]
