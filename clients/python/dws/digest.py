"""The additive digest, for programs that check DWS independently.

Specified in common/delta/FORMAT.md ("Digest"). It has 128 bits in two lanes, and every slice of a
tensor has one. A rank's *state token* is a hash over the digests of its slices, and an engine's
`Grant.state_token` is one over the state tokens of all trainer ranks.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from dws.arrays import raw_bits, slice_rows
from dws.errors import LayoutError
from dws.layout import RankLayout, elements_in

Digest = tuple[int, int]

_M = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)
# For each lane: multiplier of the word, multiplier of its number, constant.
_LANES = (
    (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x243F6A8885A308D3),
    (0xD6E8FEB86659FD93, 0xA0761D6478BD642E, 0x13198A2E03707344),
)
_MASK = (1 << 64) - 1
_CHUNK_WORDS = 1 << 15  # stays in a core's cache


def digest_bytes(data: Any, first_word: int = 0) -> Digest:
    """The digest of consecutive bytes.

    Args:
      data: bytes, or a C-contiguous array; a tail shorter than 8 bytes is padded with zeros.
      first_word: the number of its first 8-byte word in the tensor.
    """
    flat = np.frombuffer(data, np.uint8)
    whole = flat.size // 8
    lanes = [0, 0]
    pieces = [(flat[: whole * 8].view(np.uint64), first_word)]
    if flat.size % 8:
        tail = np.zeros(8, np.uint8)
        tail[: flat.size % 8] = flat[whole * 8 :]
        pieces.append((tail.view(np.uint64), first_word + whole))
    for words, number in pieces:
        for begin in range(0, words.size, _CHUNK_WORDS):
            chunk = words[begin : begin + _CHUNK_WORDS]
            for lane, constants in enumerate(_LANES):
                lanes[lane] += _mix_sum(chunk, number + begin, *constants)
    return lanes[0] & _MASK, lanes[1] & _MASK


def _mix_sum(words: Any, first: int, word_factor: int, number_factor: int, constant: int) -> int:
    x = np.arange(words.size, dtype=np.uint64)
    x *= np.uint64(number_factor)
    x += np.uint64((first * number_factor + constant) & _MASK)
    scratch = words * np.uint64(word_factor)
    x += scratch
    for factor in (_M, _M, None):
        np.right_shift(x, _SHIFT, out=scratch)
        x ^= scratch
        if factor is not None:
            x *= factor
    return int(x.sum(dtype=np.uint64))


def combine(digests: Sequence[Digest]) -> Digest:
    """A hash over digests in order: from slices to a rank's state token, from ranks' tokens to an
    engine's."""
    return digest_bytes(np.array(digests, np.uint64).reshape(-1).tobytes())


def rank_state_token(layout: RankLayout, tensors: Mapping[str, Any]) -> Digest:
    """The state token of a rank with this layout and the weights `tensors`.

    Args:
      tensors: name -> the rank's part, numpy or torch, contiguous.

    Raises:
      LayoutError: a tensor is missing or has another shape than its shard.
    """
    digests = []
    for shard in layout.shards:
        spec = shard.tensor
        if spec.name not in tensors:
            raise LayoutError(f"the state token needs tensor '{spec.name}'")
        bits = raw_bits(spec.name, tensors[spec.name], spec.dtype)
        if bits.shape != shard.shape:
            raise LayoutError(f"'{spec.name}' is {list(bits.shape)}, expected {list(shard.shape)}")
        # Words are numbered over the whole tensor; no word is shared by two slices.
        first_words, words = {}, 0
        for ranges in spec.slices():
            first_words[ranges] = words
            words += -(-elements_in(ranges) * spec.dtype.itemsize // 8)
        for ranges, rows in zip(shard.slices(), slice_rows(bits, shard)):
            digests.append(digest_bytes(np.ascontiguousarray(rows), first_words[ranges]))
    return combine(digests)


def digest_hex(digest: Digest) -> str:
    """32 hex digits, as the daemons print it and as in `Grant.state_token`."""
    return f"{digest[0]:016x}{digest[1]:016x}"
