"""The rollout engine's side: weights that a dws-receiver updates in place.

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

import asyncio
import concurrent.futures
import contextlib
from typing import Any, Callable, Iterator, Optional, Sequence

from dws.attachment import Attachment
from dws.boundaries import BOUNDARY_TIMEOUT_SECONDS, Boundaries
from dws.deadline import Deadline
from dws.engine_stats import EngineStats
from dws.errors import DaemonUnavailableError, EnginePaused, InvalidArgumentError, LayoutError, StateError
from dws.held.watch import CopyWatch, explained
from dws.lease import Block, ExecutionLease, Grant, caller
from dws.lease_stream import PostCommitHook
from dws.mapping import Mapped, source_of
from dws.receiver_link import (
    ATTACH_TIMEOUT_SECONDS,
    CLOSE_TIMEOUT_SECONDS,
    RELEASE_TIMEOUT_SECONDS,
    RebuildHook,
    ReceiverLink,
)
from dws.stream import Stream
from dws.torch_module import is_module, named_tensors


class Running:
    """The block of Engine.running. Lifecycle: make it, enter it once with `with` or `async with`,
    leave it."""

    def __init__(
        self,
        link: ReceiverLink,
        lease: ExecutionLease,
        timeout: Optional[float],
        passed: Optional[Callable[[], Optional[Callable[[], None]]]] = None,
    ) -> None:
        """Args:
        passed: called inside, at the end of a block that is not part of another block and has not
          failed. It returns a call to make before the block is left; None: nothing.
        """
        self._link = link
        self._lease = lease
        self._timeout = timeout
        self._passed = passed
        self._maker = caller()
        self._used = False
        self._block: Optional[Block] = None

    def __enter__(self) -> Grant:
        self._use()
        self._block = self._link.enter(self._timeout)
        return self._block.grant

    def __exit__(self, kind: Any, *unused: Any) -> None:
        assert self._block is not None
        try:
            look = self._ended(kind)
            if look is not None:
                look()
        finally:
            self._lease.leave(self._block)

    async def __aenter__(self) -> Grant:
        self._use()
        with self._lease.entered_for(self._maker):
            self._block = await self._link.enter_async(self._timeout)
        return self._block.grant

    async def __aexit__(self, kind: Any, *unused: Any) -> None:
        assert self._block is not None
        try:
            look = self._ended(kind)
            if look is not None:
                await _on_a_thread(look)
        finally:  # awaits nothing: a coroutine that is closed leaves too
            self._lease.leave(self._block)

    def _ended(self, kind: Any) -> Optional[Callable[[], None]]:
        """Returns the result of `passed`; None also if it is not to be called."""
        assert self._block is not None
        return self._passed() if self._passed is not None and kind is None and self._block.outermost else None

    def _use(self) -> None:
        if self._used:
            raise StateError("a running() block is entered once: call running() again for the next")
        self._used = True


async def _on_a_thread(call: Callable[[], None]) -> None:
    """call(), while other tasks run. It has ended when this ends, also by a cancellation. The loop's own threads may all
    wait for the weights, so it gets another."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    try:
        await asyncio.wrap_future(pool.submit(call))
    finally:
        pool.shutdown()


class Engine:
    """One engine rank's connection to its dws-receiver.

    Lifecycle: make, attach once, run; close (or `with`). The engine starts paused. If the receiver
    goes away while the engine may generate, the engine continues with its version; if it goes away
    while the engine is paused, the engine stays paused. Either way a background thread attaches
    again, under a new generation: forward passes stop, the receiver checks the live weights and
    releases the engine. If the receiver reports that the engine has ended (its commit group has
    ended), the engine is paused for good.

    Weights on CUDA devices may move (reallocated, put to sleep and woken): every pause checks for
    that, and attaches them again at their new place. Announce a move with `suspend` and `refresh`:
    only then does the receiver release the memory before the move.

    Threads: `running` from any thread or task; everything else from one thread at a time.

    Where the receiver holds versions back (--commit-policy), commits fall only where `boundary` or
    `at_boundary` is called, and with max-behind:K also when the engine would fall too far behind.
    """

    def __init__(self, socket: str, engine_rank: int = 0, world_size: int = 1) -> None:
        """Args:
          socket: the receiver's --socket.
          engine_rank, world_size: of this engine (such as tensor-parallel ranks); for an engine
            over several hosts, among its ranks on this host, from 0.

        Raises:
          InvalidArgumentError: the rank does not fit.
        """
        if not 0 <= engine_rank < world_size:
            raise InvalidArgumentError(
                f"engine rank {engine_rank} of world size {world_size}: expected 0 <= rank < size"
            )
        self.engine_rank = engine_rank
        self.world_size = world_size
        self._lease = ExecutionLease()
        self._link = ReceiverLink(socket, engine_rank, self._lease)
        self._boundaries = Boundaries(socket)
        self._attachment: Optional[Attachment] = None
        self._stopped: Optional[str] = None
        self._watch: Optional[CopyWatch] = None

    def attach(
        self,
        target: Any,
        mapping: Optional[Mapped] = None,
        excluded: Sequence[str] = (),
        post_commit: Optional[PostCommitHook] = None,
        rebuild: Optional[RebuildHook] = None,
        drain: Optional[Callable[[], None]] = None,
        timeout: float = ATTACH_TIMEOUT_SECONDS,
        commits_on_request: bool = False,
        kept: Sequence[str] = (),
        watch: Optional[CopyWatch] = None,
    ) -> dict[str, Any]:
        """Registers the engine's weights, after moving those of the host into shared memory.

        Tensors of CUDA devices stay where they are and are written in place, with their strides. Those of
        the host are copied into shared memory, contiguous; tensors that share memory with them move too.

        Args:
          target: a torch module (its parameters and persistent buffers; tied ones once, under their first
            name; those of the host become views), or name -> numpy array, torch tensor, or
            `__cuda_array_interface__`.
          mapping: engine name -> its source (see dws.mapping), by default the canonical tensor of
            that name; None: it belongs to the engine and is not changed.
          excluded: canonical tensors that this engine intentionally does not hold.
          post_commit: called with the version after each commit, before the engine resumes, to rebuild
            derived tensors; idempotent. On a background thread; devices are synchronised after it.
          rebuild: like post_commit, called before it with the canonical tensors that may have
            changed since it last returned; with None if that is not known.
          drain: called after forward passes; it returns when none of their work is running. The
            devices that hold weights are synchronised after it in any case.
          timeout: seconds for the receiver to get the trainer's layout, with the engine's cuts.
          commits_on_request: versions are staged as they arrive, and committed only in
            `let_commit`. All ranks of an engine must pass the same value; not in a commit group.
          kept: names of a module's tensors, "layers.*.norm_fp32", that may be copies of weights.
            Without a hook, other copies are refused, and passes that make some `stop` the engine.
          watch: watches the model that computes with the target; by default the target's module.

        Returns:
          name -> view of shared memory, or the tensor itself if it is on a device. A module uses
          the views already; the owner of a dict must use them instead of its own arrays.

        Raises:
          LayoutError, DTypeError: a tensor (named) cannot be mapped or shared, or copies a weight.
          CudaError: the driver or a device failed.
          InvalidArgumentError: the receiver refused: unknown tensor, wrong shape, a slice that
            the senders refuse to cut (the message says why), tensors neither mapped nor excluded.
          DaemonUnavailableError: no receiver; the message says how to start it.
          DeadlineError: not attached in time; the message says what the receiver waits for.
          EngineEndedError: the commit group of this engine has ended.
          StateError: already attached.
        """
        self._require_unattached()
        has_hook = post_commit is not None or rebuild is not None
        if watch is None and is_module(target):
            watch = _watch(target, mapping, kept, refuses=not has_hook)
        attachment = Attachment(target, mapping, None if watch is None else watch.model)
        request = attachment.request
        request.engine_rank, request.engine_world_size = self.engine_rank, self.world_size
        request.excluded.extend(excluded)
        request.has_post_commit_hook, request.commits_on_request = has_hook, commits_on_request
        self._link.attach(attachment, self._before_commit(drain), timeout)
        try:
            attachment.bind()
        except BaseException:
            self.close()
            raise
        self._attachment, self._watch = attachment, watch
        self._link.keep(post_commit, rebuild)
        return attachment.views

    def running(self, timeout: Optional[float] = None) -> Running:
        """A block in which the weights do not change. Run forward passes inside it.

            with engine.running() as grant:        # blocks the thread while the engine is paused
            async with engine.running() as grant:  # lets other tasks run meanwhile

        Any number of threads and tasks may be inside. A commit waits for all of them, so keep
        blocks short (a step, a batch). Blocks are counted, not threads: while a commit waits, new
        blocks of all threads and tasks wait for it. Inside a block, another block begins at once as
        a part of it: in the same thread or task, in tasks that were started inside it, and in
        `asyncio.to_thread`. Do not wait inside a block for other code that begins one, for example
        in a thread of `loop.run_in_executor`: it would wait for the commit, and the commit for the
        block.

        In tasks of asyncio use `async with`. A `with` that has to wait stops its event loop. It is
        refused if another task of its thread is inside, even if it need not wait now.

        Args:
          timeout: seconds to wait for the release, None = for ever. Use it instead of
            asyncio.wait_for around `__aenter__`: before Python 3.12 that enters in a separate task,
            and code that the block starts does not know that it is inside.

        Returns:
          A context manager for one `with` or `async with`, which gives the Grant: version, stream and
          state token of the weights in memory.

        Raises (at its begin):
          EnginePaused: not released in time; `reason` says why. With a timeout of 2 s or more the
            receiver is asked, within that time: "no trainer layout yet", "version 7 is being
            fetched". Raised at once if the engine has stopped.
          StateError: a `with` while another task of this thread is inside; `async with` outside of a
            task; blocks of one thread or task that overlap, so that it never leaves all of them while a
            commit waits.
        """
        return Running(self._link, self._lease, timeout, self._counted)

    def inside(self, timeout: Optional[float] = None) -> Running:
        """Like `running`, for blocks that may run no forward pass: call `passed` if one was run."""
        return Running(self._link, self._lease, timeout)

    def passed(self) -> None:
        """Call it in a block of `inside` after a forward pass. After some of the first passes the
        model is checked: the engine stops if a layer has made a copy of a weight, which no commit
        changes, or if a parameter on the host is no longer where the attach put it. The latter is
        also checked before each commit."""
        look = self._counted()
        if look is not None:
            look()

    def _counted(self) -> Optional[Callable[[], None]]:
        """Notes that a forward pass has ended. Returns the check that is due after it; None: none
        is due."""
        watch = self._watch
        return self._look if watch is not None and self._stopped is None and watch.counts_pass() else None

    def _look(self) -> None:
        if self._lease.block_count <= 1:  # a pass beside this one may put other tensors in for its time
            self._stop_if_left()
        wrong = None if self._watch is None or self._stopped is not None else self._watch.look()
        if wrong is not None:
            self.stop(wrong)

    def _before_commit(self, drain: Optional[Callable[[], None]]) -> Callable[[], None]:
        """Returns the call to make when forward passes have ended, before a commit."""

        def call() -> None:
            if drain is not None:
                drain()
            self._stop_if_left()
            wrong = None if self._watch is None or self._stopped is not None else self._watch.before_commit()
            if wrong is not None:
                self.stop(wrong)

        return call

    def _stop_if_left(self) -> None:
        left = None if self._attachment is None or self._stopped is not None else self._attachment.left()
        if left is not None:
            self.stop(left)

    def wait_ready(self, timeout: float) -> Grant:
        """Waits until the engine is released; returns the version in memory. Blocks the thread: a
        task of asyncio calls it with `asyncio.to_thread`, like all methods here except `running`.

        Raises:
          The same errors as `running` with `with`.
        """
        grant = self.grant
        if grant is None:
            with self.inside(timeout) as grant:
                pass
        return grant

    def let_commit(self, version: int, timeout: float, stream: Optional[Stream] = None) -> Grant:
        """For an engine with commits_on_request: lets versions be committed until memory has
        `version`, or a newer one. All ranks of the engine must call it.

        Args:
          timeout: seconds.
          stream: the stream of the version; None: any stream, also that of a trainer before a
            restart.

        Raises:
          DeadlineError: the version did not arrive in time on this rank; the message says what the
            receiver is waiting for. No commit happens after that, unless one has begun.
          EnginePaused: the engine has stopped.
          StateError: called inside `running`, or never attached.
        """
        self._require_attached()
        if self._stopped is not None:
            raise EnginePaused(self._stopped)
        return self._link.let_commit(version, stream, timeout)

    def boundary(self, timeout: float = BOUNDARY_TIMEOUT_SECONDS) -> Grant:
        """Says that the engine is between two batches: the receiver commits the version that it
        holds back because of its --commit-policy. Returns after the commit, or at once if no
        version is held back or the receiver is away. If an engine has several ranks, one of them
        calls it, and the others must not begin a batch before it has returned; if they are on
        several hosts, a rank on the leader's host calls it.

        Args:
          timeout: seconds.

        Returns:
          the version that is in memory now.

        Raises:
          DeadlineError: the commit took longer. No commit begins after that.
          EnginePaused: not released in time.
          StateError: called inside `running`, or never attached.
        """
        self._require_between("boundary()")
        deadline = Deadline(timeout)
        with contextlib.suppress(DaemonUnavailableError):  # it commits nothing then
            self._boundaries.passed(timeout)
        return self.wait_ready(deadline.left)

    @contextlib.contextmanager
    def at_boundary(self, timeout: float = BOUNDARY_TIMEOUT_SECONDS) -> Iterator[None]:
        """A block between two batches, for example while the engine waits for the next prompts:
        versions are committed as they arrive. Like `boundary`, but it lasts as long as the block;
        do not use `running` inside it.

        Args:
          timeout: seconds for the end of the block, if a commit is in progress.

        Raises:
          DeadlineError: at the end: a commit that began in the block takes longer.
          StateError: called inside `running`, or never attached.
        """
        self._require_between("at_boundary()")
        with self._boundaries.stay(timeout):
            yield

    def _require_between(self, what: str) -> None:
        self._require_attached()
        if self._lease.inside:
            raise StateError(f"{what} lets commits happen: call it outside of running() blocks")

    def suspend(self, timeout: float = RELEASE_TIMEOUT_SECONDS) -> None:
        """Pauses the engine and releases the weights. Call it before they are put to sleep or
        moved, not inside `running`. Returns when forward passes have ended and the receiver has
        released the weights.

        Args:
          timeout: seconds for the receiver, once forward passes have ended.

        Raises:
          StateError: never attached, or called inside `running`.
          DeadlineError: the receiver still uses the weights; they must stay where they are.
        """
        self._require_attached()
        self._link.suspend(timeout)

    def refresh(self, timeout: float = RELEASE_TIMEOUT_SECONDS) -> None:
        """Attaches the weights again at their current place: after `suspend`, or after they moved.
        The engine is paused until the receiver has checked them; `wait_ready` waits for that.

        Args:
          timeout: seconds for the receiver to release the previous memory. If it does not (it
            hangs), the weights are attached again as soon as it answers.

        Raises:
          StateError: never attached.
        """
        self._require_attached()
        self._link.refresh(timeout)

    def _require_unattached(self) -> None:
        if self._attachment is not None:
            raise StateError("this Engine is attached: make another one to attach other tensors")

    def _require_attached(self) -> None:
        if self._attachment is None:
            raise StateError("call attach() first")

    def stop(self, reason: str) -> None:
        """Ends the engine's forward passes for good, because they would compute with wrong weights:
        no further pass begins, and the receiver is not ready and shows the reason. May be called
        inside `running`. The engine stays attached to nothing; `close` it.

        Args:
          reason: what is wrong, and what to do, in words.
        """
        self._stopped = reason
        self._link.stop(reason)

    @property
    def stopped(self) -> Optional[str]:
        """The reason given to `stop`; None: it was not called."""
        return self._stopped

    @property
    def grant(self) -> Optional[Grant]:
        """The version with which the engine may generate now; None while paused."""
        return self._lease.grant

    def stats(self) -> EngineStats:
        """What was counted since this engine was made; never blocks. Threads: any."""
        return self._link.stats()

    def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Gives up the lease and detaches: the engine is paused for good, views stay valid.
        Idempotent.

        Args:
          timeout: seconds for the receiver to release the weights. If it does not (its process
            hangs), a ResourceWarning says that it may still write to them: memory of a device must
            stay allocated until the receiver's process has ended.
        """
        self._boundaries.close()
        self._link.close(timeout)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()


def _watch(module: Any, mapping: Optional[Mapped], kept: Sequence[str], refuses: bool) -> CopyWatch:
    """Makes a CopyWatch for the module.

    Raises:
      LayoutError: the module has a copy of a weight.
    """

    def weights() -> dict[str, Any]:
        return {n: t for n, t in named_tensors(module).items() if source_of(n, mapping) is not None}

    watch = CopyWatch(module, weights, kept, refuses=lambda name: refuses)
    copies = watch.before_attach()
    if copies:
        raise LayoutError(explained(copies))
    return watch
