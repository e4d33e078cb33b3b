"""What a user can set of an adapter that is attached, in any engine."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Type, TypeVar

from dws.plugins.attach import STEP_TIMEOUT_SECONDS, known_options
from dws.receiver_link import ATTACH_TIMEOUT_SECONDS

_Options = TypeVar("_Options", bound="AdapterOptions")


@dataclasses.dataclass(frozen=True)
class AdapterOptions:
    """All of it fits into JSON.

    Attributes:
      dtype: in which the trainer publishes A and B, such as "bfloat16"; None: as they are in the folder.
      ranks_on_host, step_timeout, timeout: as AttachOptions. The first adapter's step_timeout counts.
    """

    dtype: Optional[str] = None
    ranks_on_host: Optional[int] = None
    step_timeout: float = STEP_TIMEOUT_SECONDS
    timeout: float = ATTACH_TIMEOUT_SECONDS

    @classmethod
    def of(cls: Type[_Options], options: dict[str, Any]) -> _Options:
        """Raises:
        InvalidArgumentError: an unknown option, by name.
        """
        return known_options(cls, options)
