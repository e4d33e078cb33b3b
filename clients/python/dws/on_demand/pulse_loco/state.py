"""A worker's state as a flat dict of numpy arrays: for numpy.savez, or, as tensors, for a distributed checkpoint."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional

import numpy as np

from dws.digest import Digest, combine, digest_bytes
from dws.dtypes import DType
from dws.errors import InvalidArgumentError
from dws.on_demand.pulse_loco.arithmetic import Array, Settings

_FORMAT = 1
_NAMES = ("theta_g", "u", "residual", "counted", "shards", "numbers", "settings")
_PENDING_NAMES = ("pending_residual", "pending_theta_r", "pending_sizes", "pending_objects")


class Pending(NamedTuple):
    """A contribution that no sum is known for.

    Attributes:
      theta_r: digest of the weights that it was made from.
      residual: FP32; e if it is counted.
      objects: one a shard.
    """

    theta_r: Digest
    residual: Array
    objects: list[bytes]


class State(NamedTuple):
    """What a worker is. `counted` as in Full; attempt 0: no round is open."""

    theta_g: Array
    u: Array
    residual: Array
    counted: Array
    shards: list[int]
    rank: int
    round: int
    attempt: int
    last_attempt: int
    settings: Settings
    pending: Optional[Pending]


def pack(state: State) -> dict[str, Array]:
    """The arrays, without copies of the large ones, and the digest of all of them."""
    out = {
        "theta_g": state.theta_g, "u": state.u, "residual": state.residual, "counted": state.counted,
        "shards": np.array(state.shards, np.int64),
        "numbers": np.array([_FORMAT, state.rank, state.round, state.attempt, state.last_attempt,
                             state.settings.values.value], np.int64),
        "settings": np.array([state.settings.outer_lr, state.settings.momentum], np.float64),
    }
    if state.pending:
        objects = state.pending.objects
        out["pending_residual"] = state.pending.residual
        out["pending_theta_r"] = _lanes(state.pending.theta_r)
        out["pending_sizes"] = np.array([len(data) for data in objects], np.int64)
        out["pending_objects"] = np.frombuffer(b"".join(objects), np.uint8).copy()
    out["digest"] = _lanes(_digest(out))
    return out


def unpack(arrays: Mapping[str, Any]) -> State:
    """What `pack` made; arrays are copied. Also takes what numpy.load returns.

    Raises:
      InvalidArgumentError: an array is missing, or they do not have their digest; or another release made them.
    """
    names = [*_NAMES, *(_PENDING_NAMES if "pending_objects" in arrays else ())]
    missing = [name for name in (*names, "digest") if name not in arrays]
    if missing:
        raise InvalidArgumentError(f"the state of a worker lacks {', '.join(missing)}: load the whole checkpoint")
    found = {name: np.array(arrays[name]) for name in names}
    if not np.array_equal(np.array(arrays["digest"]), _lanes(_digest(found))):
        raise InvalidArgumentError("the state of a worker does not have its digest: load another checkpoint")
    numbers = found["numbers"].tolist()
    if numbers[0] != _FORMAT:
        raise InvalidArgumentError(f"the state of a worker has format {numbers[0]}, expected {_FORMAT}")
    lr, momentum = found["settings"].tolist()
    pending = None
    if "pending_objects" in found:
        ends = np.cumsum(found["pending_sizes"]).tolist()
        data = found["pending_objects"].tobytes()
        objects = [data[begin:end] for begin, end in zip([0, *ends], ends)]
        lanes = found["pending_theta_r"].view(np.uint64).tolist()
        pending = Pending((lanes[0], lanes[1]), found["pending_residual"], objects)
    return State(
        found["theta_g"], found["u"], found["residual"], found["counted"], found["shards"].tolist(), numbers[1],
        numbers[2], numbers[3], numbers[4], Settings(lr, momentum, DType(numbers[5])), pending,
    )


def _lanes(digest: Digest) -> Array:
    """A digest as int64, since releases of torch lack unsigned numbers of 64 bits."""
    return np.array(digest, np.uint64).view(np.int64)


def _digest(arrays: Mapping[str, Array]) -> Digest:
    """In the order of the names; with types and shapes."""
    digests = []
    for name in (*_NAMES, *_PENDING_NAMES):
        if name in arrays:
            array = arrays[name]
            digests.append(digest_bytes(f"{name} {array.dtype.str} {list(array.shape)}".encode()))
            digests.append(digest_bytes(np.ascontiguousarray(array)))
    return combine(digests)
