"""The trainer's side: hands a rank's weights to its dws-sender and publishes versions of them.

trainer = dws.Trainer("/run/dws/sender-0.sock", job_id="run7")
weights = trainer.register(module)                 # resident: name -> view to write into
weights["lm_head.weight"].copy_(new)
trainer.publish(1)                                 # on return they may be overwritten
trainer.wait(1, policy="all", timeout=60)

trainer.register_ring(specs)                       # or: gathered one by one, never all at once
with trainer.version(1) as w:
    for name, tensor in gather():
        w.put(name, tensor)
"""

from __future__ import annotations

import contextlib
import time
from typing import Iterator, Mapping, Optional, Union

from dws.change_lists import Changes
from dws.deadline import Deadline
from dws.errors import StateError, VersionError
from dws.results import PublishStats, WaitResult
from dws.ring import VersionWriter
from dws.trainer_registration import RegisteredTrainer

PUBLISH_TIMEOUT_SECONDS = 300.0


class Trainer(RegisteredTrainer):
    """One trainer rank's connection to its dws-sender. One thread at a time; `wait` from any.

    Lifecycle: make, register once, publish any number of versions, close (or `with`). After a
    restart of the sender, calls raise RegistrationLostError: `reconnect` keeps the same memory.
    """

    def publish(
        self,
        version: int,
        timeout: float = PUBLISH_TIMEOUT_SECONDS,
        *,
        full: bool = False,
        changes: Optional[Mapping[str, Optional[Changes]]] = None,
    ) -> PublishStats:
        """Captures the resident weights as `version`; on return they may be overwritten.

        First waits until the devices that hold weights have finished the work of this process.
        Weights that have moved on their devices since are registered at their new place.

        Sealing, the ledger and the announcement run in the background: `wait` returns when
        receivers have the version.

        Whatever it raises, no receiver ever gets a version that has some weights from before this
        call returned and some from after. If it raises after the sender was asked, the version may
        or may not be published, but never in part; `reconnect` shows which, in `last_version`.

        Args:
          timeout: seconds for the sender, which keeps the last 0.1 s for its answer. After them the
            publish is given up, which takes at most SETTLE_GRACE_SECONDS (2 s) more. The wait for
            devices has no limit.
          full: publish the tensors themselves, and no delta: for weights that all have changed, such
            as those of another checkpoint. The sender does so by itself when deltas are about as
            large as the weights. A full version that is given up cannot be undone: until the next
            version, engines that join find no weights.
          changes: by name, what the trainer itself knows that it has changed since the version before in the rank's
            part of a tensor, such as from dws.trainers.cast_and_list. The sender reads these weights once, to prove
            the list by their digest, and compares them with the version before only if it is wrong, or if a cut
            that engines need runs through the rows. Tensors without a list, or with None, and those of the host, where
            that is faster, are compared.

        Raises:
          VersionError: not above the newest version.
          StateError: not registered, or registered as a ring (use `version`); changes= without register(lists=True).
          InvalidArgumentError, LayoutError, DTypeError: changes= of an unknown tensor, or not as in Changes.
          DeadlineError: the sender did not capture the weights in time, and has given the version
            up, unless it was published just then: `reconnect` shows which.
          SenderStalledError: the sender did not even confirm that it has given the version up (its
            process may be stopped). The weights may be overwritten; `reconnect` before the next
            publish.
          DaemonUnavailableError: the sender is gone; see `reconnect`.
          CudaError: a device failed.
        """
        handover = self._require_registered()
        if handover.ring is not None:
            raise StateError("a ring registration publishes with `with trainer.version(v) as w:`")
        if changes is not None and handover.lists is None:
            raise StateError("changes= needs memory for lists: register(..., lists=True)")
        self._require_next(version)
        started = time.monotonic()
        deadline = Deadline(timeout)
        handover.settle(lambda moved: self._register(moved, deadline))
        with self._link.attempt(version):  # a sender that stalled may still read earlier lists
            lists = handover.lists.put(changes) if handover.lists and changes else ()
            stats = self._link.publish(version, started, deadline.left, full, lists)
        self.last_version = version
        return stats

    def publish_again(self, timeout: float = PUBLISH_TIMEOUT_SECONDS) -> PublishStats:
        """Publishes the newest version again, in full, from memory that has not changed since: after a restart the sender
        has none, and other trainer ranks may read this one (dws.on_demand). Call it after `reconnect`.

        Raises:
          StateError: not registered, registered as a ring, or nothing was published.
          The errors of `publish`.
        """
        handover = self._require_registered()
        if handover.ring is not None or not self.last_version:
            raise StateError("publish_again() needs resident weights and a version that was published")
        started = time.monotonic()
        with self._link.attempt(self.last_version):
            return self._link.publish(self.last_version, started, timeout, full=True)

    @contextlib.contextmanager
    def version(
        self, version: int, timeout: float = PUBLISH_TIMEOUT_SECONDS, *, full: bool = False
    ) -> Iterator[VersionWriter]:
        """A block in which tensors are put; its end publishes them as `version`.

        Tensors not put are unchanged. If the block raises, the version is given up and what was
        captured is undone; the same number may be used again. A full version cannot be undone once
        a tensor was put: then the next version has to bring every tensor.

        Args:
          timeout: seconds for the sender to open the version, for each put, and for the end of the
            block. Giving up takes at most SETTLE_GRACE_SECONDS (2 s) more.
          full: see `publish`. Every tensor has to be put. A version that the sender itself makes
            full may leave out tensors.

        Raises:
          StateError: a first or full version lacks a tensor; the message names it.
          The errors of `publish`.
        """
        handover = self._require_registered()
        if handover.ring is None:
            raise StateError("version() needs register_ring(); resident weights use publish()")
        if self._open_version is not None:
            raise StateError(f"version {self._open_version} is still open: end its block first")
        self._require_next(version)
        handover.try_pin()
        started = time.monotonic()
        with self._link.attempt(version):
            layout = self._link.begin(version, handover.layout, timeout, full)
            writer = VersionWriter(version, layout, handover.ring, self._link)
            writer.stall_seconds += time.monotonic() - started
            self._open_version = version
            try:
                yield writer
                deadline = Deadline(timeout)
                writer.drain()
                started = time.monotonic() - writer.stall_seconds
                writer.stats = self._link.publish(version, started, deadline.left)
            except BaseException:
                writer.discard()
                raise
            finally:
                self._open_version = None
        self.last_version = version

    def wait(
        self, version: int, policy: Union[str, int] = "all", timeout: float = 60.0
    ) -> WaitResult:
        """Waits until receivers have committed `version` or a newer one.

        Args:
          policy: "all" receivers that are present (with none present it waits for one), "any", or a
            number of receivers. "all" does not wait for a receiver that has committed nothing for
            the sender's --laggard-after (300 s) while others have: the result names it in
            `left_out`, until it commits again. After a restart of the sender, "all" waits for the
            receivers that were connected before it, for ten minutes at most.
          timeout: seconds. A sender that does not answer gets WAIT_GRACE_SECONDS (2 s) more.

        Raises:
          NotCommittedError: a DeadlineError: the policy was not met in time. The message says how
            many receivers have committed the version, and names the others with their versions and
            how long they have had them.
          VersionLostError: the version was lost with its sender: publish a newer one.
          InvalidArgumentError: an unknown policy or version.
        """
        self._require_registered()
        return self._link.wait(version, policy, timeout)

    def _require_next(self, version: int) -> None:
        if version <= self.last_version:
            raise VersionError(
                f"version {version} is not above {self.last_version}, the newest one of stream "
                f"{self.stream}: use {self.last_version + 1} or more"
            )
