"""The cast of cast_changes as a kernel of Triton, which comes with PyTorch for GPUs: one pass over masters and weights,
in which a block of elements that changed takes its place in the lists by an atomic addition. Blocks arrive in any order,
so the lists, a few per cent of the elements, are put in order afterwards.

A weight is stored only where it changes: a pass reads 6 bytes an element, and a plain cast reads 4 and writes 2.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Optional, Sequence

import torch
import triton
import triton.language as tl

from dws.change_lists import Changes

# Elements that one program casts.
BLOCK = 4096
# The lists have room for one element in so many; what is more is not listed.
ROOM_PART = 32
_ROOM_MIN = 1024
ELEMENTS_MAX = 1 << 31


@triton.jit  # type: ignore[misc]
def _cast_block(  # type: ignore[no-untyped-def]
    master, weight, position, before, after, used, starts, counts, elements, room, block: tl.constexpr
):
    program = tl.program_id(0)
    at = program * block + tl.arange(0, block)
    inside = at < elements
    bits = tl.load(master + at, mask=inside, other=0.0).to(tl.uint32, bitcast=True)
    # To the nearest, ties to even; a NaN becomes the one that devices make of it (cvt.rn.bf16.f32).
    new = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    new = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFF, new).to(tl.uint16).to(tl.int16, bitcast=True)
    old = tl.load(weight + at, mask=inside, other=0)
    changed = inside & (new != old)
    tl.store(weight + at, new, mask=changed)
    ones = changed.to(tl.int32)
    count = tl.sum(ones, 0)
    start = tl.atomic_add(used, count)
    tl.store(starts + program, start)
    tl.store(counts + program, count)
    to = start + tl.cumsum(ones, 0) - 1
    kept = changed & (to < room)
    tl.store(position + to, at, mask=kept)
    tl.store(before + to, old, mask=kept)
    tl.store(after + to, new, mask=kept)


def cast_and_list(masters: Sequence[Any], weights: Sequence[Any]) -> list[Optional[Changes]]:
    """Casts tensors of one device, which were checked.

    Args:
      masters: row-major and contiguous, as are `weights`, of fewer than ELEMENTS_MAX elements each.

    Returns:
      What changed in each, with int32 positions; None for a weight whose list has no room.
    """
    device = weights[0].device
    # Triton launches on the current device.
    context: Any = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with context:
        return _cast(masters, weights, device)


def _cast(masters: Sequence[Any], weights: Sequence[Any], device: Any) -> list[Optional[Changes]]:
    programs = [-(-weight.numel() // BLOCK) for weight in weights]
    firsts = [0, *itertools.accumulate(programs)]
    room = max(sum(weight.numel() for weight in weights) // ROOM_PART, _ROOM_MIN)
    position = torch.empty(room, dtype=torch.int32, device=device)
    before, after = (torch.empty(room, dtype=torch.int16, device=device) for _ in range(2))
    used = torch.zeros(1, dtype=torch.int64, device=device)
    starts, counts = torch.zeros(2, firsts[-1], dtype=torch.int64, device=device)
    for master, weight, first, grid in zip(masters, weights, firsts, programs):
        if not grid:
            continue
        lists = (position, before, after, used, starts[first:], counts[first:])
        bits = weight.detach().view(torch.int16)
        _cast_block[(grid,)](master.detach(), bits, *lists, weight.numel(), room, block=BLOCK)
    # A program that found no room, or not enough, spoils the list of its weight; `used` counts on.
    fits = (counts == 0) | (starts + counts <= room)
    counts = torch.where(fits, counts, 0)
    ends = counts.cumsum(0)
    shift = torch.repeat_interleave(starts - (ends - counts), counts)
    order = shift + torch.arange(len(shift), device=device)
    ordered = [values[order] for values in (position, before, after)]
    # By program, and one more: how many entries, and how many programs without room, are before it.
    before_program = torch.nn.functional.pad(torch.stack((ends, (~fits).cumsum(0))), (1, 0))
    begins, misfits = before_program[:, torch.tensor(firsts, device=device)].tolist()
    whole = [first == last for first, last in zip(misfits, misfits[1:])]
    return [
        Changes(*(values[begin:end] for values in ordered)) if fit else None
        for fit, begin, end in zip(whole, begins, begins[1:])
    ]
