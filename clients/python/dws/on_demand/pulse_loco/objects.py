"""What workers and owners of PULSELoCo send each other: the contribution of one worker to one shard, and the sum of
the contributions. OBJECT.md defines the bytes.

Both ends have the shard of theta_g that the object is coded against; its digest is in the object.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from dws.digest import Digest, digest_bytes, digest_hex
from dws.dtypes import DType
from dws.errors import InvalidArgumentError
from dws.on_demand.pulse_loco.bits import Array, damaged
from dws.on_demand.pulse_loco.blocks import BLOCK_ELEMENTS, block_bytes_max, decode_block, encode_block

RANKS_MAX = 256
_MAGIC, _FORMAT = b"DWSPULSE", 1
_HEADER = np.dtype([("magic", "S8"), ("format", "<u4"), ("kind", "u1"), ("dtype", "u1"), ("rank", "<u2"),
                    ("round", "<u8"), ("attempt", "<u8"), ("elements", "<u8"), ("payload_bytes", "<u8"),
                    ("shard", "<u4"), ("zero", "<u4"), ("base", "<u8", 2), ("payload", "<u8", 2),
                    ("checksum", "<u8")])
_CHECKED = 88  # bytes before the checksum
_RANKS_BYTES = RANKS_MAX // 8


class Kind(enum.Enum):
    CONTRIBUTION = 1
    SUM = 2


class Address(NamedTuple):
    """What an object belongs to.

    Attributes:
      round: the rounds that theta_g has behind it.
      attempt: of the round, from 1.
      shard: the number of the shard.
    """

    round: int
    attempt: int
    shard: int


class Base(NamedTuple):
    """The shard of theta_g that an object is coded against: finite FP32, and its digest."""

    theta: Array
    digest: Digest

    @classmethod
    def of(cls, theta: Array) -> "Base":
        return cls(theta, digest_bytes(theta))


class Decoded(NamedTuple):
    """Attributes:
      positions: ascending, below the elements of the shard, int64.
      values: FP32, finite, none is 0.
      ranks: whose contributions are in it, ascending.
    """

    positions: Array
    values: Array
    ranks: tuple[int, ...]

    def dense(self, elements: int) -> Array:
        out = np.zeros(elements, np.float32)
        out[self.positions] = self.values
        return out


def encode(kind: Kind, address: Address, base: Base, values: Array, dtype: DType, ranks: Sequence[int]) -> bytes:
    """Args:
      values: FP32, finite, as many as the shard has; 0 is not sent. With dtype BF16 each is a BF16 number.
      ranks: of a contribution the one that it comes from; of a sum all that are in it.
    """
    blocks = [encode_block(base.theta[begin : begin + BLOCK_ELEMENTS], values[begin : begin + BLOCK_ELEMENTS])
              for begin in range(0, base.theta.size, BLOCK_ELEMENTS)]
    sizes = np.array([len(block) for block in blocks], "<u4").tobytes()
    members = b""
    if kind is Kind.SUM:
        flags = np.zeros(RANKS_MAX, np.uint8)
        flags[list(ranks)] = 1
        members = np.packbits(flags, bitorder="little").tobytes()
    payload = b"".join([members, sizes, *blocks])
    header = np.zeros(1, _HEADER)
    header["magic"], header["format"], header["kind"], header["dtype"] = _MAGIC, _FORMAT, kind.value, dtype.value
    header["rank"] = ranks[0] if kind is Kind.CONTRIBUTION else 0
    header["round"], header["attempt"], header["shard"] = address
    header["elements"], header["payload_bytes"] = base.theta.size, len(payload)
    header["base"], header["payload"] = base.digest, digest_bytes(payload)
    header["checksum"] = digest_bytes(header.tobytes()[:_CHECKED])[0]
    return header.tobytes() + payload


def decode(kind: Kind, data: bytes, address: Address, base: Base, dtype: DType, sender: str) -> Decoded:
    """Decodes a whole object. Nothing is allocated by what the object says before that was compared with the shard.

    Args:
      address, base, dtype: what the receiver expects.
      sender: who sent it, for errors.

    Raises:
      InvalidArgumentError: the object is damaged, or of another kind, round, attempt, shard, theta_g or type; the
        message names the sender, what was expected and what was found.
    """
    what = f"the {kind.name.lower()} that {sender} sent for shard {address.shard}"
    header = _header(data, what)
    _require_expected(header, kind, address, base, dtype, what)
    payload = data[_HEADER.itemsize :]
    if tuple(int(lane) for lane in header["payload"]) != digest_bytes(payload):
        raise damaged(what, "its payload does not have the digest in its header")
    ranks: tuple[int, ...] = (int(header["rank"]),)
    if kind is Kind.SUM:
        flags = np.unpackbits(np.frombuffer(payload[:_RANKS_BYTES], np.uint8), bitorder="little")
        ranks = tuple(int(rank) for rank in np.flatnonzero(flags))
        payload = payload[_RANKS_BYTES:]
        if not ranks:
            raise damaged(what, "expected at least one rank")
    positions, values = _blocks(payload, base.theta, what)
    if dtype is DType.BF16 and (values.view(np.uint32) & np.uint32(0xFFFF)).any():
        raise damaged(what, "expected BF16 values, found others")
    return Decoded(positions, values, ranks)


def _header(data: bytes, what: str) -> Any:
    """Checks what an object says about itself, apart from the payload's digest."""
    if len(data) < _HEADER.itemsize:
        raise damaged(what, f"expected a header of {_HEADER.itemsize} bytes, found {len(data)} bytes")
    header = np.frombuffer(data[: _HEADER.itemsize], _HEADER)[0]
    if header["magic"] != _MAGIC:
        raise damaged(what, f"expected {_MAGIC!r} at its begin, found {data[:8]!r}")
    if int(header["checksum"]) != digest_bytes(data[:_CHECKED])[0]:
        raise damaged(what, "its header does not have the checksum that it says")
    if header["format"] != _FORMAT:
        raise InvalidArgumentError(
            f"{what} has format {header['format']}, expected {_FORMAT}: run the same release of DWS everywhere"
        )
    if header["zero"] or header["kind"] not in (1, 2) or header["dtype"] not in (DType.BF16.value, DType.F32.value):
        raise damaged(what, f"its header has a field without a meaning: {header}")
    if header["payload_bytes"] != len(data) - _HEADER.itemsize:
        raise damaged(what, f"expected {header['payload_bytes']} bytes after the header, found "
                            f"{len(data) - _HEADER.itemsize}")
    return header


def _require_expected(header: Any, kind: Kind, address: Address, base: Base, dtype: DType, what: str) -> None:
    found = tuple(int(lane) for lane in header["base"])
    pairs: list[tuple[str, object, object]] = [
        ("kind", kind.name, Kind(int(header["kind"])).name),
        ("shard", address.shard, int(header["shard"])),
        ("round", address.round, int(header["round"])),
        ("attempt", address.attempt, int(header["attempt"])),
        ("element type", dtype.name, DType(int(header["dtype"])).name),
        ("elements", base.theta.size, int(header["elements"])),
        ("digest of theta_g", digest_hex(base.digest), digest_hex((found[0], found[1]))),
    ]
    for name, expected, other in pairs:
        if expected != other:
            remedy = ": one of the two has to take theta_g and u in full" if name == "digest of theta_g" else ""
            raise InvalidArgumentError(f"{what}: expected {name} {expected}, found {other}{remedy}")
    limit = RANKS_MAX if kind is Kind.CONTRIBUTION else 1
    if header["rank"] >= limit:
        raise damaged(what, f"expected a rank below {limit}, found {header['rank']}")
    blocks = _block_count(base.theta.size)
    fixed = 4 * blocks + (_RANKS_BYTES if kind is Kind.SUM else 0)
    most = fixed + blocks * block_bytes_max(BLOCK_ELEMENTS)
    if not fixed <= header["payload_bytes"] <= most:
        raise damaged(what, f"expected {fixed} to {most} bytes of payload, found {header['payload_bytes']}")


def object_bytes_max(elements: int) -> int:
    """The most bytes that an object of a shard with so many elements can have."""
    return _HEADER.itemsize + _RANKS_BYTES + _block_count(elements) * (4 + block_bytes_max(BLOCK_ELEMENTS))


def _block_count(elements: int) -> int:
    return -(-elements // BLOCK_ELEMENTS)


def _blocks(payload: bytes, theta: Array, what: str) -> tuple[Array, Array]:
    blocks = _block_count(theta.size)
    sizes = np.frombuffer(payload[: 4 * blocks], "<u4").astype(np.int64)
    at = 4 * blocks
    if at + int(sizes.sum()) != len(payload):
        raise damaged(what, f"expected {len(payload) - at} bytes of blocks, found {int(sizes.sum())}")
    positions, values = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    for number, size in enumerate(sizes.tolist()):
        begin = number * BLOCK_ELEMENTS
        found = decode_block(payload[at : at + size], theta[begin : begin + BLOCK_ELEMENTS], f"{what}, block {number},")
        positions.append(found[0] + begin)
        values.append(found[1])
        at += size
    return np.concatenate(positions), np.concatenate(values)


def bytes_sent(objects: Sequence[bytes], own_shard: Optional[int] = None) -> int:
    """The bytes of a worker's objects, without that for the shard that it owns itself."""
    return sum(len(data) for number, data in enumerate(objects) if number != own_shard)
