"""A second decoder of delta objects, written only from common/delta/FORMAT.md.

Slow and simple on purpose: bits are characters, planes are read one number at a time. Its agreement
with the C++ decoder shows that the format page is complete.
"""

import struct
from typing import Any, Dict, List, NamedTuple, Tuple

import xxhash
import zstandard

from tests.golden.naive_layout import BLOCK_ELEMENTS, DTYPES, Slice, rank_slices, signature_text

MAGIC = b"\x89DWS\r\n\x1a\n"
MASK64 = (1 << 64) - 1

class FormatError(Exception):
    """An object is refused; `code` is the status code that FORMAT.md names."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def must(condition: bool, message: str) -> None:
    if not condition:
        raise FormatError("DATA_LOSS", message)


# --- Ordinals and digest ---------------------------------------------------------------------------


def ordinal(bits: int, dtype: str) -> int:
    _, size, is_float = DTYPES[dtype]
    w = size * 8
    if is_float and bits >> (w - 1):
        return bits ^ ((1 << (w - 1)) - 1)
    return bits


def fin(x: int) -> int:
    m = 0xD6E8FEB86659FD93
    x ^= x >> 32
    x = x * m & MASK64
    x ^= x >> 32
    x = x * m & MASK64
    return x ^ (x >> 32)


def digest_words(words: List[int], first: int) -> Tuple[int, int]:
    lane0 = lane1 = 0
    for i, w in enumerate(words, first):
        lane0 += fin((0x9E3779B97F4A7C15 * w + 0xC2B2AE3D27D4EB4F * i + 0x243F6A8885A308D3) & MASK64)
        lane1 += fin((0xD6E8FEB86659FD93 * w + 0xA0761D6478BD642E * i + 0x13198A2E03707344) & MASK64)
    return lane0 & MASK64, lane1 & MASK64


def words_of(data: bytes) -> List[int]:
    data += b"\0" * (-len(data) % 8)
    return list(struct.unpack(f"<{len(data) // 8}Q", data))


def slice_digest(part: Slice, data: bytes) -> Tuple[int, int]:
    """The digest of a slice, block by block: each block is padded separately."""
    total, word = [0, 0], part.first_word
    step = BLOCK_ELEMENTS * part.element_bytes
    for at in range(0, len(data), step):
        words = words_of(data[at : at + step])
        lanes = digest_words(words, word)
        total = [(total[0] + lanes[0]) & MASK64, (total[1] + lanes[1]) & MASK64]
        word += len(words)
    return total[0], total[1]


def layout_signature(layout: List[Dict[str, Any]]) -> Tuple[int, int]:
    return digest_words(words_of(signature_text(layout)), 0)


def state_token(digests: List[Tuple[int, int]]) -> Tuple[int, int]:
    return digest_words([lane for pair in digests for lane in pair], 0)


# --- Object and manifest ---------------------------------------------------------------------------


def protobuf(data: bytes) -> Dict[int, List[Any]]:
    """The fields of a message: varints and fixed64 as numbers, messages as bytes."""
    fields: Dict[int, List[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            must(at < len(data), "manifest: cut off")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        kind = tag & 7
        must(kind in (0, 1, 2), f"manifest: wire type {kind}")
        if kind == 0:
            value: Any = varint()
        else:
            size = 8 if kind == 1 else varint()
            must(at + size <= len(data), "manifest: cut off")
            value = data[at : at + size]
            at += size
            if kind == 1:
                value = struct.unpack("<Q", value)[0]
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def number(fields: Dict[int, List[Any]], field: int) -> int:
    return fields.get(field, [0])[-1]


def digest_field(fields: Dict[int, List[Any]], field: int) -> Tuple[int, int]:
    lanes = protobuf(fields.get(field, [b""])[-1])
    return number(lanes, 1), number(lanes, 2)


def checksum(data: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(data))


def unzstd(data: bytes, size: int) -> bytes:
    try:
        out = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise FormatError("DATA_LOSS", f"zstd: {error}") from error
    must(len(out) == size, f"zstd: {len(out)} bytes, expected {size}")
    return out


def read_header(data: bytes) -> Tuple[bytes, bytes]:
    """The manifest before compression, and the bytes of all frames."""
    must(len(data) >= 64, "header cut off")
    must(data[:8] == MAGIC, "magic")
    must(checksum(data[:56]) == struct.unpack("<Q", data[56:64])[0], "header checksum")
    version, flags, stored, raw, manifest_sum, frames, reserved = struct.unpack("<IIQQQQQ", data[8:56])
    if version != 1:
        raise FormatError("UNIMPLEMENTED", f"format version {version}")
    must(flags in (0, 1) and reserved == 0, "flags or reserved bytes")
    must(stored < raw if flags else stored == raw, "manifest sizes")
    must(raw <= 1 << 28 and frames <= 1 << 42, "sizes above the limits")
    must(len(data) == 64 + stored + frames, "size of the object")
    manifest = data[64 : 64 + stored]
    must(checksum(manifest) == manifest_sum, "manifest checksum")
    return (unzstd(manifest, raw) if flags else manifest), data[64 + stored :]


def decode_object(data: bytes, layout: List[Dict[str, Any]], base: List[bytes],
                  compare_base: bool = True) -> List[bytes]:
    """The state of all slices after the object `data` was applied to `base`. Raises FormatError."""
    slices = rank_slices(layout)
    manifest_bytes, frames = read_header(data)
    blocks = sum(part.blocks for part in slices)
    must(len(manifest_bytes) <= 160 + 96 * len(slices) + 56 * blocks, "size of the manifest")
    manifest = protobuf(manifest_bytes)
    if digest_field(manifest, 5) != layout_signature(layout):
        raise FormatError("FAILED_PRECONDITION", "another layout")
    must(number(manifest, 3) >= 1 and number(manifest, 3) > number(manifest, 4), "versions")

    state = list(base)
    next_slice = next_offset = 0
    for message in manifest.get(6, []):
        delta = protobuf(message)
        index = number(delta, 1)
        must(next_slice <= index < len(slices), f"slice {index}")
        next_slice = index + 1
        part = slices[index]
        must(number(delta, 2) <= part.elements and 5 in delta, f"slice {index}: changes or frames")
        if compare_base:
            must(slice_digest(part, state[index]) == digest_field(delta, 3), f"slice {index}: base")
        table = delta.get(6, [b""])[-1]
        must(len(table) in (0, *range(2, 10)), f"slice {index}: class table")
        must(all(a < b for a, b in zip(b"\0" + table[2:], table[2:])), f"slice {index}: thresholds")
        nnz = next_block = 0
        for entry in map(protobuf, delta[5]):
            first, count, offset, size, frame_sum = (number(entry, f) for f in range(1, 6))
            must(next_block <= first and 1 <= count <= 65536 and first + count <= part.blocks,
                 f"slice {index}: blocks of a frame")
            must(24 <= size <= 1 << 20 and offset == next_offset, f"slice {index}: bytes of a frame")
            must(offset + size <= len(frames), f"slice {index}: a frame outside the object")
            next_block, next_offset = first + count, offset + size
            frame = frames[offset : offset + size]
            must(checksum(frame) == frame_sum, f"slice {index}: frame checksum")
            for i, block in enumerate(read_frame(frame, count)):
                state[index] = apply_block(part, first + i, block, state[index], table)
                nnz += block.nnz
        must(nnz == number(delta, 2), f"slice {index}: nnz")
        must(slice_digest(part, state[index]) == digest_field(delta, 4), f"slice {index}: digest after")
    must(next_offset == len(frames), "bytes that belong to no frame")
    if manifest.get(6) is None or len(manifest[6]) == len(slices):
        digests = [slice_digest(part, data) for part, data in zip(slices, state)]
        must(digest_field(manifest, 7) == state_token(digests), "state token")
    return state


# --- Frame -----------------------------------------------------------------------------------------


class Block(NamedTuple):
    mode: int
    nnz: int
    parameters: int
    payload: bytes


class Bits:
    """A sequence of bits, read from the front."""

    def __init__(self, data: bytes) -> None:
        self.bits = "".join(format(byte, "08b")[::-1] for byte in data)
        self.at = 0

    def take(self, width: int) -> int:
        must(self.at + width <= len(self.bits), "a plane is cut off")
        text = self.bits[self.at : self.at + width]
        self.at += width
        return int(text[::-1], 2) if text else 0

    def plane(self, count: int, width: int) -> List[int]:
        return [self.take(width) for _ in range(count)]

    def unary(self) -> int:
        one = self.bits.find("1", self.at)
        must(one >= 0, "a plane is cut off")
        zeros = one - self.at
        self.at = one + 1
        return zeros

    def finish(self) -> None:
        rest = self.bits[self.at :]
        must(len(rest) < 8 and "1" not in rest, "padding")


def read_frame(frame: bytes, count: int) -> List[Block]:
    blocks, payload_bytes, size_base, nnz_base = struct.unpack("<IIII", frame[:16])
    parameter_base, mode_base, *widths, zero = struct.unpack("<HBBBBBB", frame[16:24])
    must(blocks == count and zero == 0, "frame header")
    at, columns = 24, []
    for base, width, limit in zip((size_base, nnz_base, parameter_base, mode_base), widths, (20, 17, 16, 8)):
        must(width <= limit, "width of a column")
        size = -(-count * width // 8)
        must(at + size <= len(frame), "column cut off")
        bits = Bits(frame[at : at + size])
        column = bits.plane(count, width)
        bits.finish()
        must(min(column) == 0 and max(column).bit_length() == width, "column not packed tightly")
        must(base + max(column) < 1 << limit, "value of a column")
        columns.append([base + value for value in column])
        at += size
    begin = -(-at // 8) * 8
    must(begin + payload_bytes == len(frame) and not any(frame[at:begin]), "size or padding of a frame")
    must(sum(columns[0]) == payload_bytes, "sizes of payloads")
    result = []
    for size, nnz, parameters, mode in zip(*columns):
        result.append(Block(mode, nnz, parameters, frame[begin : begin + size]))
        begin += size
    return result


# --- Block modes -----------------------------------------------------------------------------------


def read_gaps(bits: Bits, remainders: List[int], k: int, limit: int) -> List[int]:
    positions, last = [], -1
    for remainder in remainders:
        last += 1 + (bits.unary() << k) + remainder
        positions.append(last)
    must(not positions or last < limit, "position outside")
    return positions


def value_coding(parameters: int, w: int) -> Tuple[int, bool, int]:
    width, fixed, escape = parameters & 0x7F, bool(parameters >> 7 & 1), parameters >> 8
    if fixed:
        must(width <= w and escape == 0, "value coding")
    else:
        must(width < w and width + escape <= w, "value coding")
    return width, fixed, escape


def read_quotients(bits: Bits, values: List[int], width: int, escape_width: int) -> List[int]:
    quotients = [bits.unary() for _ in values]
    escapes = []
    for i, quotient in enumerate(quotients):
        must(quotient <= 16, "quotient above 16")
        if quotient == 16:
            must(escape_width > 0, "escape without width")
            escapes.append(bits.take(escape_width))
            quotients[i] += escapes[-1]
    needed = max(1, max(escapes).bit_length()) if escapes else 0
    must(escape_width == needed, "escape width")
    return [value + (quotient << width) for value, quotient in zip(values, quotients)]


def read_exceptions(bits: Bits, steps: List[int], w: int) -> List[int]:
    """Sets the sizes of the exceptions among +-1 steps; returns their numbers."""
    count = bits.take(16) + 1
    k2 = bits.take(4)
    width, fixed, escape = value_coding(bits.take(15), w)
    must(count <= len(steps), "exceptions")
    gap_remainders = bits.plane(count, k2)
    values = bits.plane(count, width)
    exceptions = read_gaps(bits, gap_remainders, k2, len(steps))
    if not fixed:
        values = read_quotients(bits, values, width, escape)
    for index, value in zip(exceptions, values):
        steps[index] *= value + 2
        must(-(1 << (w - 1)) <= steps[index] < 1 << (w - 1), "magnitude")
    return exceptions


def split_rice(block: Block, elements: int, w: int) -> Dict[int, int]:
    must(block.parameters < 32, "parameters")
    k = block.parameters & 15
    bits = Bits(block.payload)
    remainders = bits.plane(block.nnz, k)
    signs = bits.plane(block.nnz, 1)
    positions = read_gaps(bits, remainders, k, elements)
    steps = [-1 if sign else 1 for sign in signs]
    if block.parameters & 16:
        read_exceptions(bits, steps, w)
    bits.finish()
    return dict(zip(positions, steps))


def dense_ulp(block: Block, elements: int, w: int) -> Dict[int, int]:
    width, fixed, escape = value_coding(block.parameters, w)
    bits = Bits(block.payload)
    values = bits.plane(elements, width)
    if not fixed:
        values = read_quotients(bits, values, width, escape)
    bits.finish()
    must(all(value < 1 << w for value in values), "step too large")
    steps = {i: value >> 1 if value % 2 == 0 else -(value >> 1) - 1 for i, value in enumerate(values) if value}
    must(len(steps) == block.nnz, "nnz")
    return steps


def class_split(block: Block, old: List[int], dtype: str, table: bytes) -> Dict[int, int]:
    _, size, is_float = DTYPES[dtype]
    w = size * 8
    top = 127 if w == 8 else 255
    must(len(table) >= 2 and is_float and all(n <= top for n in table), "class table")
    shift = (block.parameters >> 12) - 8
    hot_below, hot_scale, *thresholds = (number + shift for number in table)
    must(all(0 <= n <= top for n in (hot_below, hot_scale)) and all(1 <= t <= top for t in thresholds), "shift")
    count_bits, escape_width = (block.parameters & 15) + 1, block.parameters >> 5 & 127
    bits = Bits(block.payload)

    magnitudes = [x % 128 if w == 8 else (x >> (w - 9)) % 256 for x in old]
    members: List[List[int]] = [[] for _ in range(len(thresholds) + 1)]
    for position, magnitude in enumerate(magnitudes):
        members[sum(magnitude >= t for t in thresholds)].append(position)
    heads = [(bits.take(count_bits), bits.take(4), bits.take(1)) for _ in members]
    must(max(1, max(count for count, _, _ in heads).bit_length()) == count_bits, "width of counts")
    must(all(count or not k for count, k, _ in heads), "parameter of no ranks")
    remainders = [bits.plane(count, k) for count, k, _ in heads]
    signs = bits.plane(block.nnz, 1)
    changed = []
    for group, (_, k, inverted), plane in zip(members, heads, remainders):
        ranks = set(read_gaps(bits, plane, k, len(group)))
        changed += [position for rank, position in enumerate(group) if (rank in ranks) != bool(inverted)]
    must(len(changed) == block.nnz, "nnz")
    positions = sorted(changed)
    steps = [-1 if sign else 1 for sign in signs]

    hot = [i for i, position in enumerate(positions) if magnitudes[position] < hot_below]
    widths = [min(15, w - 1, max(0, hot_scale - magnitudes[positions[i]])) for i in hot]
    values = [bits.take(width) for width in widths]
    quotients = read_quotients(bits, [0] * len(hot), 0, escape_width)
    if block.parameters & 16:
        must(not set(read_exceptions(bits, steps, w)) & set(hot), "a hot exception")
    for i, value, width, quotient in zip(hot, values, widths, quotients):
        steps[i] *= value + (quotient << width) + 1
        must(-(1 << (w - 1)) <= steps[i] < 1 << (w - 1), "magnitude")
    bits.finish()
    return dict(zip(positions, steps))


def dense_values(block: Block, elements: int, size: int) -> bytes:
    must(block.nnz == elements and block.parameters == 0, "nnz or parameters")
    if block.mode == 5:
        must(len(block.payload) == elements * size, "payload size")
        return block.payload
    planes = unzstd(block.payload, elements * size)
    return bytes(planes[j * elements + i] for i in range(elements) for j in range(size))


def raw_values(block: Block, elements: int, size: int) -> Dict[int, int]:
    must(block.parameters == 0 and len(block.payload) == block.nnz * (2 + size), "payload size")
    positions = struct.unpack_from(f"<{block.nnz}H", block.payload)
    must(all(a < b for a, b in zip(positions, positions[1:])) and positions[-1] < elements, "positions")
    at = block.nnz * 2
    return {p: int.from_bytes(block.payload[at + i * size : at + (i + 1) * size], "little")
            for i, p in enumerate(positions)}


def apply_block(part: Slice, index: int, block: Block, state: bytes, table: bytes) -> bytes:
    """The bytes of the slice with one block at the new version."""
    size, elements = part.element_bytes, part.block_elements(index)
    w = size * 8
    if block.mode > 6:
        raise FormatError("UNIMPLEMENTED", f"mode {block.mode}")
    if block.mode == 0:
        must(block.nnz == 0 and block.parameters == 0 and not block.payload, "empty block")
        return state
    must(1 <= block.nnz <= elements, "nnz")
    begin = index * BLOCK_ELEMENTS * size
    if block.mode in (5, 6):
        return state[:begin] + dense_values(block, elements, size) + state[begin + elements * size :]
    result = bytearray(state)

    def put(position: int, bits: int) -> None:
        at = begin + position * size
        result[at : at + size] = bits.to_bytes(size, "little")

    if block.mode == 1:
        for position, value in raw_values(block, elements, size).items():
            put(position, value)
        return bytes(result)
    if block.mode == 3:
        old_bits = [int.from_bytes(state[begin + i * size : begin + (i + 1) * size], "little")
                    for i in range(elements)]
        steps = class_split(block, old_bits, part.dtype, table)
    else:
        steps = (split_rice if block.mode == 2 else dense_ulp)(block, elements, w)
    for position, step in steps.items():
        at = begin + position * size
        old = int.from_bytes(state[at : at + size], "little")
        put(position, ordinal((ordinal(old, part.dtype) + step) % (1 << w), part.dtype))
    return bytes(result)
