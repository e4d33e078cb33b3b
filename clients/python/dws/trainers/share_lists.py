"""The lists of a process's parts of weights (dws.change_lists), as lists of the shares that it publishes."""

from __future__ import annotations

import math
from typing import Mapping, Optional

import numpy as np

from dws.arrays import is_torch
from dws.change_lists import Changes
from dws.errors import InvalidArgumentError
from dws.trainers.placement import Ranges
from dws.trainers.shares import Declared, Share


def lists_of_shares(
    declared: Mapping[str, Declared],
    shares: Mapping[str, Share],
    changes: Mapping[str, Optional[Changes]],
) -> dict[str, Changes]:
    """Leaves out what is compared: weights that are cut flat, and those of whose part another process publishes some
    columns.

    Args:
      declared: the parts, by name.
      shares: by name.
      changes: by name, with positions in the part; None: no list.

    Raises:
      InvalidArgumentError: there is no such part.
    """
    found = {}
    for name, listed in changes.items():
        if name not in declared:
            raise InvalidArgumentError(
                f"changes= names '{name}', of which this process has no part: use the names that are published"
            )
        if listed is None or name not in shares or declared[name].flat is not None:
            continue
        of_share = _within(listed, declared[name].ranges, shares[name].ranges)
        if of_share is not None:
            found[name] = of_share
    return found


def _within(listed: Changes, part: Ranges, share: Ranges) -> Optional[Changes]:
    """The changes in some rows of a part; None: the share has something else of it. What is no list is passed on, to be
    refused with its name."""
    if part == share or len({tuple(getattr(values, "shape", ())) for values in listed}) != 1:
        return listed
    if part[1:] != share[1:]:
        return None
    row = math.prod(end - begin for begin, end in part[1:])
    first, last = ((at - part[0][0]) * row for at in share[0])
    position = listed.position.long() if is_torch(listed.position) else listed.position.astype(np.int64)
    mine = (position >= first) & (position < last)
    return Changes(position[mine] - first, listed.before[mine], listed.after[mine])
