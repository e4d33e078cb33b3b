"""DWS: keeps rollout engines bit-identical to a trainer by shipping only the weights that changed.

Two classes, one for each side: Trainer (talks to dws-sender) and Engine (talks to dws-receiver).
Weights are numpy arrays or torch tensors; torch is used if the program imports it, never needed.
"""

from dws import balance, daemons, declare, on_demand
from dws._version import __version__
from dws.boundaries import Boundaries
from dws.dtypes import DType
from dws.engine import Engine
from dws.engine_stats import EngineStats
from dws.errors import (
    CudaError,
    DaemonFailedError,
    DaemonUnavailableError,
    DeadlineError,
    DTypeError,
    DwsError,
    EngineEndedError,
    EnginePaused,
    InvalidArgumentError,
    LayoutError,
    MinibatchAbandonedError,
    RankLostError,
    RegistrationLostError,
    SenderStalledError,
    StateError,
    TokenLostError,
    VersionError,
    VersionLostError,
)
from dws.layout import Cut, TensorSpec, even_cuts
from dws.lease import Grant, LeaseStats
from dws.mapping import Box, Fused, Part, Parts, Slice
from dws.results import NotCommittedError, PublishStats, ReceiverBehind, WaitResult
from dws.ring import VersionWriter
from dws.stream import Stream
from dws.torch_module import bind, named_tensors
from dws.trainer import Trainer

__all__ = [
    "Boundaries",
    "CudaError",
    "Box",
    "Cut",
    "DType",
    "DTypeError",
    "DaemonFailedError",
    "DaemonUnavailableError",
    "DeadlineError",
    "DwsError",
    "Engine",
    "EngineEndedError",
    "EnginePaused",
    "EngineStats",
    "Fused",
    "Grant",
    "InvalidArgumentError",
    "LayoutError",
    "LeaseStats",
    "MinibatchAbandonedError",
    "NotCommittedError",
    "Part",
    "Parts",
    "PublishStats",
    "RankLostError",
    "ReceiverBehind",
    "RegistrationLostError",
    "SenderStalledError",
    "Slice",
    "StateError",
    "Stream",
    "TensorSpec",
    "TokenLostError",
    "Trainer",
    "VersionError",
    "VersionLostError",
    "VersionWriter",
    "WaitResult",
    "__version__",
    "balance",
    "bind",
    "daemons",
    "declare",
    "even_cuts",
    "named_tensors",
    "on_demand",
]
