"""A rank's place in the job, kept over restarts of its sender. Needs no torch of its own; it calls dws.trainers.publisher."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from dws.deadline import Deadline
from dws.errors import DaemonUnavailableError, LayoutError, StateError
from dws.on_demand.member import Member, Waits
from dws.on_demand.outbox import Outbox
from dws.on_demand.rank_memory import RankMemory
from dws.on_demand.traffic import Traffic

_JOIN_SECONDS = 60.0
_RECONNECT_SECONDS = 60.0
_RETRY_SECONDS = 0.05


class Membership:
    """Lifecycle: make when the first version is published; join; close. Threads: one at a time."""

    def __init__(
        self,
        publisher: Any,
        memory: RankMemory,
        make_member: Callable[[], Member],
        make_traffic: Callable[[Member, Outbox], Traffic],
        outbox_buffers: int,
        on_joined: Callable[[Traffic], None],
    ) -> None:
        """Args:
        publisher: a registered Publisher.
        make_member, make_traffic: for each time that the rank joins.
        on_joined: called with what is under way from now on.
        """
        self._publisher = publisher
        self._memory = memory
        self._make_member = make_member
        self._make_traffic = make_traffic
        self._outbox_buffers = outbox_buffers
        self._on_joined = on_joined
        self._session = 0  # of the registration
        self._member: Optional[Member] = None
        self._outbox: Optional[Outbox] = None
        self._traffic: Optional[Traffic] = None

    @property
    def member(self) -> Member:
        """Raises StateError before the rank has joined."""
        if self._member is None:
            raise StateError("the rank has not joined: call start()")
        return self._member

    @property
    def traffic(self) -> Traffic:
        """Raises StateError before the rank has joined."""
        if self._traffic is None:
            raise StateError("the rank has not joined: call start()")
        return self._traffic

    def join(self, version: int) -> None:
        """Joins, or joins again, in the place of the membership before.

        Args:
          version: the one that the rank has published last.

        Raises:
          The errors of Member.join.
        """
        trainer = self._publisher.trainer
        self._leave()
        outbox, member = self._memory.outbox(self._outbox_buffers), self._make_member()
        try:
            request = self._memory.request(trainer.session, outbox)
            member.join(request, self._memory.descriptors(outbox), _JOIN_SECONDS)
        except BaseException:
            member.close()
            outbox.close()
            raise
        outbox.handed_over()
        self._member, self._outbox = member, outbox
        self._session = trainer.session
        self._traffic = self._make_traffic(member, outbox)
        self._traffic.version = version
        self._on_joined(self._traffic)

    def publish(self, version: int) -> Any:
        """Publishes the version that a step has led to. If the sender has started again meanwhile, the rank joins again.

        Returns:
          As Publisher.publish.

        Raises:
          DwsError: another process of this rank has ended the membership.
          The errors of Publisher.publish: call it again.
        """
        self._raise_if_displaced()
        stats = self._publisher.publish(version)
        trainer = self._publisher.trainer
        if trainer.session != self._session:
            try:
                if stats is None:  # a process of the sender that is gone has recorded it; this one has no weights
                    trainer.publish_again()
                self.join(version)
            except DaemonUnavailableError:  # it has ended again
                self._join_again(version)
        return stats

    def join_if_lost(self, version: int) -> None:
        """Joins again after a restart of the sender. The memory that is registered has `version`, which is published again,
        and the sender's record of the minibatch is with the gradients.

        Raises:
          DwsError: another process of this rank has ended the membership, or the sender does not come back.
        """
        if self.member.lost is not None:
            self._raise_if_displaced()
            self._join_again(version)

    def _raise_if_displaced(self) -> None:
        """Raises why the membership has ended, unless that is the end of the sender. While the process of a sender ends, some
        of its connections are closed before others."""
        trainer = self._publisher.trainer
        lost = self.member.lost
        if lost is None or isinstance(lost, DaemonUnavailableError):
            return
        if trainer.connected and trainer.session == self._session:
            raise lost

    def _join_again(self, version: int) -> None:
        trainer = self._publisher.trainer
        deadline = Deadline(_RECONNECT_SECONDS)
        while True:
            try:
                trainer.reconnect(deadline.left)
                trainer.publish_again()
                return self.join(version)
            except DaemonUnavailableError:  # it has ended again
                if not deadline.left:
                    raise
                time.sleep(_RETRY_SECONDS)

    def _leave(self) -> None:
        if self._traffic is not None:
            self._traffic.end()
        if self._member is not None:
            self._member.close()
        if self._outbox is not None:
            self._outbox.close()

    def close(self) -> None:
        """Leaves the job, and ends the registration. Idempotent."""
        self._leave()
        self._publisher.close()
        self._memory.close()


def require_all_publish(publisher: Any, ranks: int) -> None:
    """Raises LayoutError unless each rank has a sender."""
    trainer = publisher.trainer
    if trainer is None or trainer.world_size != ranks:
        raise LayoutError(
            f"one rank of {ranks} publishes the whole model: expected a sender for each rank, and {{rank}} in the socket's name"
        )
