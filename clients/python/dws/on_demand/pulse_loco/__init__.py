"""PULSELoCo: workers that train on their own for some steps, and then send each other only what changes a BF16 weight.

The arithmetic and the bytes; no daemon carries them yet. OBJECT.md defines the bytes. Needs numpy; no torch.
"""

from dws.on_demand.pulse_loco.arithmetic import Settings
from dws.on_demand.pulse_loco.owner import ShardSum
from dws.on_demand.pulse_loco.worker import Full, PulseLoCo, Residual

__all__ = ["Full", "PulseLoCo", "Residual", "Settings", "ShardSum"]
