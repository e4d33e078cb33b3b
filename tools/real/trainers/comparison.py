"""The trainer's side of the comparison: after each version it waits for the engine's line about it."""

from __future__ import annotations

import os
import time
from typing import Mapping

import torch

from tools.real.trainers import models

SECONDS_MAX = 60.0


class Comparison:
    """Lifecycle: `check` after each version, then `report`."""

    def __init__(self, seen: str, dtype: str) -> None:
        """Args:
        seen: the engine's file.
        dtype: the type of the engine's floating-point weights.
        """
        self._seen = seen
        self._dtype = getattr(torch, dtype)
        self.versions = 0
        self.distinct: set[str] = set()

    def check(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Args:
          weights: the trainer's whole weights.

        Raises:
          AssertionError: the engine has other bits, or did not get the version in time.
        """
        cast = {
            name: tensor.to(self._dtype) if tensor.is_floating_point() else tensor
            for name, tensor in weights.items()
        }
        wanted = models.digest(cast)
        found = self._of_engine(version)
        assert found == wanted, f"version {version}: engine {found}, trainer {wanted}"
        self.versions += 1
        self.distinct.add(wanted)

    def _of_engine(self, version: int) -> str:
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            if os.path.exists(self._seen):
                with open(self._seen) as file:
                    lines = dict(line.split() for line in file if line.endswith("\n"))
                if str(version) in lines:
                    return lines[str(version)]
            time.sleep(0.005)
        raise AssertionError(
            f"the engine did not report version {version} within {SECONDS_MAX:g} s"
        )

    def report(self) -> str:
        """For the driver."""
        assert (
            len(self.distinct) == self.versions
        ), "versions with equal weights: nothing was trained"
        return f"{self.versions} versions compared"
