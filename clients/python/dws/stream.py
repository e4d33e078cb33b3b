"""Streams: the incarnations of a trainer."""

from __future__ import annotations

import dataclasses
import secrets
import time
from typing import Any, Optional

from dws._proto import delta_pb2
from dws.errors import InvalidArgumentError


@dataclasses.dataclass(frozen=True, order=True)
class Stream:
    """The identity of one incarnation of a trainer; versions count inside it.

    Rank 0 makes it and passes it to the other ranks in any way: it is two plain integers. Receivers
    refuse a stream whose incarnation is lower than one they have seen.

    Attributes:
      incarnation: grows with every restart of the trainer.
      id: 128 random bits.
    """

    incarnation: int
    id: int

    @classmethod
    def new(cls, incarnation: Optional[int] = None) -> "Stream":
        """Returns a stream with a random id.

        Args:
          incarnation: the restart counter of the job, if it has one; by default the wall clock in
            milliseconds, which grows as long as the clock is not set back. Daemons refuse an
            incarnation that is more than a day ahead of their clock.
        """
        if incarnation is None:
            incarnation = time.time_ns() // 1_000_000
        if not 0 < incarnation < 1 << 64:
            raise InvalidArgumentError(f"incarnation {incarnation} is not a positive 64-bit number")
        return cls(incarnation, secrets.randbits(128))

    @classmethod
    def from_proto(cls, message: Any) -> "Stream":
        return cls(message.incarnation, (message.id_hi << 64) | message.id_lo)

    @classmethod
    def parse(cls, text: str) -> "Stream":
        """Parses the text that str() gives.

        Raises:
          InvalidArgumentError: it is not that.
        """
        incarnation, _, identity = text.partition(":")
        try:
            return cls(int(incarnation), int(identity, 16))
        except ValueError as error:
            raise InvalidArgumentError(
                f"'{text}' is no stream, expected its incarnation, a colon and 32 hex digits"
            ) from error

    def to_proto(self) -> Any:
        return delta_pb2.StreamId(
            incarnation=self.incarnation, id_hi=self.id >> 64, id_lo=self.id & ((1 << 64) - 1)
        )

    def __str__(self) -> str:
        return f"{self.incarnation}:{self.id:032x}"
