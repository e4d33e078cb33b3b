"""Publishes a local checkpoint that `dws-receiver --slime-dir` keeps up to date, for engines' live memory.

Such a receiver patches the files of the checkpoint in place. This program hands every version of
them to a dws-sender, as the only rank of a trainer. Engines attached to that sender's receivers get
slime's versions, with slime's numbers, in their live memory.

    python3 -m dws.checkpoint_trainer --checkpoint /models/policy --socket /run/dws/sender-0.sock \\
        --job-id run7

Only tensors whose digest has changed are read. If the checkpoint changes while a version is read,
that version is given up and the next one is published instead.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import glob
import json
import os
import sys
import threading
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from dws.errors import DwsError, InvalidArgumentError, LayoutError
from dws.layout import TensorSpec
from dws.plugins import checkpoint_files
from dws.plugins.checkpoint_files import INDEX
from dws.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class LocalVersion:
    """A version of the checkpoint that no process is changing.

    Attributes:
      version: slime's number; 0 is the base, which engines have from elsewhere.
      digests: tensor name -> digest of its bytes.
      identity: of all versions up to this one: two runs may use the same number, and equal
        versions.
    """

    version: int
    digests: Mapping[str, str]
    identity: str


class ChangedMeanwhile(Exception):
    """The checkpoint was written to while it was read."""


def settled_version(checkpoint: str) -> Optional[LocalVersion]:
    """Returns the version that the checkpoint holds; None while a version is being applied, or
    before the first look.

    Args:
      checkpoint: folder with .weight_sync in it (common/formats/slime_delta/local/local_state.h).

    Raises:
      OSError, ValueError, KeyError: the files there cannot be read.
    """
    sync = os.path.join(checkpoint, ".weight_sync")
    # The redo index exists from before the first byte is changed until state.json has the version.
    # It is searched for first, so a change that ends after this shows in state.json.
    changing = glob.glob(os.path.join(glob.escape(sync), "redo", "*", INDEX))
    try:
        with open(os.path.join(sync, "digests.json"), encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return None
    state = 0  # the base has no file
    with contextlib.suppress(FileNotFoundError):
        with open(os.path.join(sync, "state.json"), encoding="utf-8") as file:
            state = int(json.load(file)["version"])
    version = int(found["version"])
    if changing or version != state:
        return None
    return LocalVersion(version, found["tensors"], found["chain"])


class CheckpointFiles:
    """Maps the tensors of a folder of safetensors files. Read only what `settled_version` gave."""

    def __init__(self, checkpoint: str) -> None:
        """Raises:
        InvalidArgumentError: as dws.plugins.checkpoint_files.
        """
        self._files = checkpoint_files.CheckpointFiles(checkpoint)
        self.specs = {
            name: TensorSpec(name, found.dtype, found.shape)
            for name, found in self._files.canonical().items()
        }

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """A copy of one tensor, in its numpy type."""
        copy: np.ndarray[Any, Any] = np.array(self._files.bits(name))
        return copy.view(self.specs[name].dtype.numpy)


class CheckpointTrainer:
    """Hands the versions of one checkpoint to one sender. One thread at a time."""

    def __init__(self, checkpoint: str, trainer: Trainer) -> None:
        """Takes over `trainer`, which is not registered. The caller closes it."""
        self.checkpoint = checkpoint
        self.published: Optional[LocalVersion] = None
        self._given_up = False  # the last version
        self._trainer = trainer
        self._specs: Optional[dict[str, TensorSpec]] = None

    def step(self) -> Optional[int]:
        """Publishes the version that the checkpoint holds now, if it is new and no process is
        changing it.

        Returns:
          The version that was published, or None.

        Raises:
          LayoutError: the checkpoint has other tensors than when it was registered.
          InvalidArgumentError: its files do not fit each other (dws.plugins.checkpoint_files).
          DwsError: see Trainer.publish; the version may be tried again.
        """
        now = settled_version(self.checkpoint)
        if now is None or now.version == 0 or now == self.published:
            return None
        try:
            files = CheckpointFiles(self.checkpoint)
        except InvalidArgumentError:
            if settled_version(self.checkpoint) != now:
                return None  # its files are being replaced
            raise
        self._register(files.specs)
        # What a version that was given up has overwritten may not have been undone.
        known = self.published.digests if self.published and not self._given_up else {}
        self._given_up = True
        try:
            with self._trainer.version(now.version) as version:
                for name, digest in now.digests.items():
                    if known.get(name) != digest:
                        version.put(name, files.read(name))
                if settled_version(self.checkpoint) != now:
                    raise ChangedMeanwhile
        except ChangedMeanwhile:
            return None
        self._given_up = False
        self.published = now
        return now.version

    def _register(self, specs: dict[str, TensorSpec]) -> None:
        if self._specs is None:
            self._trainer.register_ring(list(specs.values()))
            self._specs = specs
        elif specs != self._specs:
            raise LayoutError(
                f"{self.checkpoint} has other tensors than before: start this program again"
            )


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python3 -m dws.checkpoint_trainer", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--checkpoint", required=True, help="folder that dws-receiver patches")
    parser.add_argument("--socket", required=True, help="the sender's --socket")
    parser.add_argument("--job-id", required=True, help="the sender's --job-id")
    parser.add_argument("--poll-ms", type=int, default=100, help="time between two checks")
    options = parser.parse_args(arguments)
    pause = threading.Event()
    try:
        with Trainer(options.socket, options.job_id) as trainer:
            follower = CheckpointTrainer(options.checkpoint, trainer)
            while True:
                version = follower.step()
                if version is not None:
                    print(f"published version {version}", flush=True)
                else:
                    pause.wait(options.poll_ms / 1000)
    except KeyboardInterrupt:
        pass
    except (DwsError, OSError, ValueError, KeyError) as error:
        # A new process registers again and publishes the whole checkpoint.
        sys.exit(f"checkpoint_trainer: {options.checkpoint}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
