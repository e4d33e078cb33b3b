"""What a cell found."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a cell. `text`: figures, or why it failed."""

    good: bool
    text: str
