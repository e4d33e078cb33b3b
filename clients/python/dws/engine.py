"""The rollout engine's side: weights that a dws-receiver patches in place.

engine = dws.Engine("/run/dws/receiver.sock")
engine.attach(model)               # on CUDA it stays where it is; on the host it moves into shared
                                   # memory, and parameters become views of that
engine.wait_ready(timeout=60)
while True:
    with engine.running() as lease:         # commits fall between these blocks
        tokens = model.generate(prompts)
    send(tokens, lease.version, lease.state_token)
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Optional, Sequence

from dws.attachment import Attachment
from dws.engine_stats import EngineStats
from dws.errors import InvalidArgumentError, StateError
from dws.lease import ExecutionLease, Grant
from dws.lease_stream import PostCommitHook
from dws.mapping import Mapped
from dws.receiver_link import (
    ATTACH_TIMEOUT_SECONDS,
    CLOSE_TIMEOUT_SECONDS,
    RELEASE_TIMEOUT_SECONDS,
    ReceiverLink,
)


class Engine:
    """One engine rank's connection to its dws-receiver.

    Lifecycle: make, attach once, run; close (or `with`). The engine starts paused. If the receiver
    goes away while it may generate, it goes on with the version it has; if it goes away while the
    engine is paused, the engine stays paused. Either way a background thread attaches again, under
    a new generation: forward passes stop, the receiver checks the live weights and releases the
    engine. A receiver that says that the engine has ended (its commit group has) pauses it for good.

    Weights on CUDA devices may come to lie elsewhere (reallocated, asleep and awake): every pause
    looks, and attaches them again where they are now. Who knows that they will move says so with
    `suspend` and `refresh`: only then does the receiver let go of the memory first.

    Threads: `running` from any; everything else from one.
    """

    def __init__(self, socket: str, engine_rank: int = 0, world_size: int = 1) -> None:
        """Args:
          socket: the receiver's --socket.
          engine_rank, world_size: of this engine (tensor-parallel ranks, say); of an engine over
            several hosts, of its ranks on this host, from 0.

        Raises:
          InvalidArgumentError: the rank does not fit.
        """
        if not 0 <= engine_rank < world_size:
            raise InvalidArgumentError(
                f"engine rank {engine_rank} of world size {world_size}: expected 0 <= rank < it"
            )
        self.engine_rank = engine_rank
        self.world_size = world_size
        self._lease = ExecutionLease()
        self._link = ReceiverLink(socket, engine_rank, self._lease)
        self._attachment: Optional[Attachment] = None

    def attach(
        self,
        target: Any,
        mapping: Optional[Mapped] = None,
        excluded: Sequence[str] = (),
        post_commit: Optional[PostCommitHook] = None,
        drain: Optional[Callable[[], None]] = None,
        timeout: float = ATTACH_TIMEOUT_SECONDS,
    ) -> dict[str, Any]:
        """Registers the engine's weights, after moving those of the host into shared memory.

        Tensors of CUDA devices stay where they are and are written in place, with their strides;
        those of the host are copied in, contiguous. A target may have both.

        Args:
          target: a torch module (its parameters and persistent buffers, tied ones included, once,
            under the first of their names; those of the host become views), or name -> numpy array,
            torch tensor, or any object with `__cuda_array_interface__`.
          mapping: engine name -> what it is made of (see dws.mapping); by default the canonical
            tensor of the same name. None leaves a tensor alone: it is the engine's own.
          excluded: canonical tensors this engine knowingly does not hold.
          post_commit: called with the version after each commit, before the engine resumes, to
            rebuild derived tensors; must be idempotent. Runs on a background thread. The devices
            that weights are on are synchronised after it.
          drain: called when forward passes have ended, returns when nothing of them runs on. The
            devices that weights are on are synchronised after it in any case.
          timeout: seconds; the receiver answers once it has heard the trainer's layout.

        Returns:
          name -> view of shared memory, or the tensor itself where it is on a device. For a module
          they are in place already; a dict's owner uses these instead of its own arrays.

        Raises:
          LayoutError, DTypeError: a tensor that cannot be mapped or shared, by name.
          CudaError: the driver failed, or a device did.
          InvalidArgumentError: the receiver refused: unknown tensor, wrong shape, a slice that is
            no union of the trainer's slices (the message names the grid), tensors neither mapped
            nor excluded.
          DaemonUnavailableError: no receiver; the message says how to start it.
          DeadlineError: not attached in time; the message says what the receiver waits for ("no
            trainer layout yet", "no sender is connected"), or that it does not answer.
          EngineEndedError: the commit group of this engine has ended.
          StateError: attached before.
        """
        if self._attachment is not None:
            raise StateError("this Engine is attached: make another one to attach other tensors")
        attachment = Attachment(target, mapping)
        attachment.request.engine_rank = self.engine_rank
        attachment.request.engine_world_size = self.world_size
        attachment.request.excluded.extend(excluded)
        attachment.request.has_post_commit_hook = post_commit is not None
        self._link.attach(attachment, drain, timeout)
        try:
            attachment.bind()
        except BaseException:
            self.close()
            raise
        self._attachment = attachment
        self._link.keep(post_commit)
        return attachment.views

    @contextlib.contextmanager
    def running(self, timeout: Optional[float] = None) -> Iterator[Grant]:
        """A block in which the weights do not change: forward passes belong here.

        Blocks while the engine is paused. Blocks may nest and run on several threads; a commit
        waits for all of them, so keep them short (a step, a batch).

        Args:
          timeout: seconds to wait for the release, None = for ever.

        Yields:
          Grant: version, stream and state token of the weights in memory.

        Raises:
          EnginePaused: not released in time; `reason` says why. With a timeout of 2 s or more the
            receiver is asked, within it: "no trainer layout yet", "version 7 is being fetched".
        """
        grant = self._link.enter(timeout)
        try:
            yield grant
        finally:
            self._lease.leave()

    def wait_ready(self, timeout: float) -> Grant:
        """Waits for the first release, or the next one; returns what is in memory.

        Raises:
          EnginePaused: not released in time; `reason` says why.
        """
        with self.running(timeout) as grant:
            return grant

    def suspend(self, timeout: float = RELEASE_TIMEOUT_SECONDS) -> None:
        """Pauses and lets go of the weights: before they are put to sleep or moved. Not from inside
        `running`. Returns when forward passes have ended and the receiver has let go of the weights.

        Args:
          timeout: seconds for the receiver, once forward passes have ended.

        Raises:
          StateError: never attached, or called inside of `running`.
          DeadlineError: the receiver still uses the weights; they must stay where they are.
        """
        self._require_attached()
        self._link.suspend(timeout)

    def refresh(self, timeout: float = RELEASE_TIMEOUT_SECONDS) -> None:
        """Attaches the weights anew where they lie now: after `suspend`, or after they moved. The
        engine is paused until the receiver has checked them; `wait_ready` waits for that.

        Args:
          timeout: seconds for the receiver to let go of where they lay before. One that is hung does
            not: then the weights are attached again as soon as it answers.

        Raises:
          StateError: never attached.
        """
        self._require_attached()
        self._link.refresh(timeout)

    def _require_attached(self) -> None:
        if self._attachment is None:
            raise StateError("attach() first")

    @property
    def grant(self) -> Optional[Grant]:
        """What the engine may generate with now, None while paused."""
        return self._lease.grant

    def stats(self) -> EngineStats:
        return self._link.stats()

    def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Gives the lease up and detaches: the engine is paused for good, views stay valid.
        Idempotent.

        Args:
          timeout: seconds for the receiver to let go of the weights. When it has not (its process is
            hung), a ResourceWarning says that it may yet write to them: memory of a device must stay
            allocated until the receiver's process has ended.
        """
        self._link.close(timeout)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()
