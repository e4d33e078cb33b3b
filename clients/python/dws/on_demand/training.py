"""Training on demand: torch's FSDP2, with parameters that each rank fetches when it needs them and gradients that it hands to
their owners, so that ranks wait for each other once a minibatch.

od = dws.on_demand.Training("/run/dws/sender-{rank}.sock", job_id="run7")
od.fully_shard(model, units=model.layers, param_dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
for batch in loader:                       # the global minibatch, the same on every rank
    plan = dws.balance.lb_mini(batch.lengths, od.ranks, limit=65_536)
    for attempt in od.minibatch(plan):
        with attempt:                      # may end early; then the same samples run again
            for samples in attempt.microbatches:
                loss(model(batch.of(samples))).backward()
            step = attempt.finish(weight=tokens)
    if step.finite:
        od.clip(1.0)
        optimizer.step()
        od.publish()
    else:
        od.skip()

torch is imported by `fully_shard`, not by this module.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Iterator, Optional, Sequence, Union

from dws.balance.plans import Microbatch, Plan
from dws.dtypes import DType, float_type
from dws.errors import (
    DwsError,
    InvalidArgumentError,
    MinibatchAbandonedError,
    StateError,
)
from dws.on_demand.member import DECIDED, OPEN, STEPPED, AttemptId, Member, Waits
from dws.on_demand.membership import Membership, require_all_publish
from dws.on_demand.minibatch import AVERAGES, Attempt, Step, own_microbatches, scale_of
from dws.on_demand.rank_memory import RankMemory
from dws.on_demand.traffic import Traffic
from dws.on_demand.units import Unit, require_torch

_LOG = logging.getLogger(__name__)
DEFAULT_TIMEOUT_SECONDS = 1800.0


class Training:
    """One for each rank; all of them make the same calls, with a torch.distributed process group of all ranks.

    Lifecycle: make; fully_shard; start, unless fully_shard did; minibatches, each with `publish` or `skip` at its end; close
    (or `with`). Threads: one at a time.

    Attributes:
      rank, ranks: of the process group, after fully_shard.
      version: the one that this rank has published last.
      waits: how long this rank has waited, and what for.
      publisher: the dws.trainers.publisher.Publisher, for its `wait`; None before `start`.
    """

    def __init__(
        self,
        socket: str,
        job_id: str,
        *,
        exact: bool = False,
        prefetch: int = 1,
        average: str = "ranks",
        lockstep: bool = False,
        outbox_buffers: int = 2,
        on_device: bool = True,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        on_abandoned: Optional[Callable[[MinibatchAbandonedError], None]] = None,
    ) -> None:
        """Args:
          socket: the sender's --socket; "{rank}" in it is replaced by the rank.
          job_id: the sender's --job-id.
          exact: sums of gradients in FP64, so that the order in which they arrive does not show.
          prefetch: units that are fetched ahead. The arena has (2 + prefetch) times the bytes of the largest unit.
          average: what the sum over all microbatches of all ranks is divided by: "ranks", their number, as FSDP2 does;
            "weight", the sum of the weights that ranks pass to `finish`; or "none".
          lockstep: a barrier of all ranks in each gather and each push, to measure what waiting costs.
          outbox_buffers: gradients of units that can be on their way; each has the size of the largest.
          on_device: False: of parameters on a device, what is published is copied to the host before each version, as with
            Publisher(on_device=False): for devices whose memory the sender cannot open.
          timeout: seconds of each wait for other ranks. A rank that is only slow is waited for so long.
          on_abandoned: called with the reason each time when an attempt is abandoned.

        Raises:
          InvalidArgumentError: an argument is none of these.
        """
        if average not in AVERAGES:
            raise InvalidArgumentError(f"average={average!r}: expected one of {AVERAGES}")
        if outbox_buffers < 1:
            raise InvalidArgumentError(f"outbox_buffers={outbox_buffers}: expected at least 1")
        self.rank, self.ranks, self.version = 0, 0, 0
        self.waits = Waits()
        self.publisher: Any = None
        self._socket = socket
        self._job_id = job_id
        self._exact = exact
        self._prefetch = prefetch
        self._average = average
        self._lockstep = lockstep
        self._outbox_buffers = outbox_buffers
        self._on_device = on_device
        self._timeout = timeout
        self._on_abandoned = on_abandoned
        self._model: Any = None
        self._units: list[tuple[Any, Unit]] = []
        self._dtype = self._gradient_dtype = DType.F32
        self._gradients: Any = None
        self._copies: Any = None  # a DeviceCopies; None: parameters are on the host
        self._membership: Optional[Membership] = None
        self._step: Optional[Step] = None  # that was decided, and neither published nor skipped
        self._done = 0  # the minibatch whose step was published or skipped last

    def fully_shard(
        self,
        model: Any,
        units: Sequence[Any] = (),
        param_dtype: Any = None,
        reduce_dtype: Any = None,
        *,
        version: int = 1,
        start: bool = True,
        **options: Any,
    ) -> Any:
        """Cuts the model with torch's FSDP2, and gives FSDP2 the communication of this class. Parameters are FP32, and on the
        host or on one CUDA device.

        Args:
          units: modules of the model whose parameters are gathered at once, such as its layers; what is left is one more.
          param_dtype: in which forward and backward pass compute, and in which parameters are published.
          reduce_dtype: of gradients on their way; None: param_dtype. Sums are FP32 or, if `exact`, FP64, in any case.
          version: of the parameters as they are.
          start: False: call `start` later, for example after a checkpoint was loaded.
          options: more arguments of torch.distributed.fsdp.fully_shard: mesh, reshard_after_forward.

        Returns:
          The model.

        Raises:
          StateError: torch is older than 2.9, or this was called before.
          InvalidArgumentError, LayoutError, DTypeError: what training on demand does not support, by name; nothing was cut.
          The errors of `start`.
        """
        import torch

        require_torch(torch.__version__)
        from torch import distributed

        from dws.on_demand import sharding

        if self._model is not None:
            raise StateError("fully_shard was called before: make another Training for another model")
        self._dtype = float_type(param_dtype or torch.float32, "param_dtype=")
        self._gradient_dtype = float_type(reduce_dtype or param_dtype or torch.float32, "reduce_dtype=")
        if self._gradient_dtype not in (DType.BF16, DType.F32):
            raise InvalidArgumentError(f"gradients of {self._gradient_dtype.name}: expected BF16 or F32; pass reduce_dtype=")
        if not distributed.is_initialized():
            raise StateError("call torch.distributed.init_process_group first: FSDP2 needs the process group")
        self.rank, self.ranks = distributed.get_rank(), distributed.get_world_size()
        self._units = sharding.cut(model, units, param_dtype, reduce_dtype, options)
        self._model = model
        if start:
            self.start(version)
        return model

    def start(self, version: int = 1) -> None:
        """Registers this rank's part of the parameters, publishes it, and joins the job. A collective call.

        Args:
          version: of the parameters as they are; above all that the job's stream has.

        Raises:
          StateError: fully_shard was not called, or this was called before; the sender has no --train-peers.
          The errors of dws.trainers.publisher.Publisher.register and publish.
        """
        if self._model is None or self._membership is not None:
            raise StateError("expected fully_shard, then start once")
        from dws.on_demand import sharding
        from dws.on_demand.gradients import Gradients
        from dws.torch_module import canonical_name
        from dws.trainers.publisher import Publisher

        units = [unit for _, unit in self._units]
        memory = RankMemory(
            units, self.ranks, self._dtype, self._gradient_dtype, self._prefetch, self._exact
        )
        parameters = {canonical_name(name): each for name, each in self._model.named_parameters()}
        self._copies = self._copies_of(sharding.device_of(self._model), memory.unit_bytes)
        if self._copies is not None:
            memory.pin()
        self._gradients = Gradients(parameters, units, self.ranks, memory, self._copies)
        cast = None if self._dtype is DType.F32 else self._dtype.torch
        publisher = Publisher(
            self._socket, self._job_id, dtype=cast, dtypes=self._cast_too(cast), on_device=self._reads_on_device()
        )
        socket = self._socket.replace("{rank}", str(self.rank))
        barrier = sharding.barrier if self._lockstep else None
        membership = Membership(
            publisher,
            memory,
            lambda: Member(socket, self._job_id, self.rank, self._timeout),
            lambda member, outbox: Traffic(
                member, outbox, self.ranks, barrier, memory.slots, self._timeout, self.waits
            ),
            self._outbox_buffers,
            lambda traffic: self._communicate_by(traffic, memory),
        )
        try:
            publisher.register(self._model)
            require_all_publish(publisher, self.ranks)
            publisher.publish(version)
            membership.join(version)
        except BaseException:
            membership.close()
            raise
        self.version, self.publisher, self._membership = version, publisher, membership

    def _copies_of(self, device: Any, unit_bytes: int) -> Any:
        from dws.on_demand.device_copies import copies_of

        return copies_of(device, unit_bytes)

    def _reads_on_device(self) -> bool:
        """Returns whether the sender may read on a device what is published. It must not find there what has changed since,
        when it has restarted and gets the version again: so all has to be cast, which makes a copy."""
        if self._copies is None or not self._on_device:
            return self._on_device
        published = self._model.state_dict()
        buffers = any(name in published for name, _ in self._model.named_buffers())  # they are not cast
        return self._dtype is not DType.F32 and not buffers

    def _cast_too(self, dtype: Any) -> dict[str, Any]:
        """Parameters that are gathered in `dtype`, although engines would keep them in FP32."""
        from dws.trainers.published_types import PublishedTypes, kept_by_model

        if dtype is None:
            return {}
        names = [parameter.name for _, unit in self._units for parameter in unit.parameters]
        kept = kept_by_model(self._model, dtype, names)
        types = PublishedTypes(dtype)
        one = next(self._model.parameters())  # all are FP32
        return {name: dtype for name in names if types.of(name, one, name in kept) is not self._dtype}

    def _communicate_by(self, traffic: Traffic, memory: RankMemory) -> None:
        """Gives FSDP2 its communication."""
        from dws.on_demand.comms import UnitGather, UnitReduce

        arena, forget, copies = memory.arena, self._gradients.detach, self._copies
        for index, (module, unit) in enumerate(self._units):
            module.set_custom_all_gather(
                UnitGather(index, unit, self._dtype, self.ranks, self.rank, arena, traffic, copies)
            )
            module.set_custom_reduce_scatter(
                UnitReduce(index, unit, self._gradient_dtype, self.ranks, traffic, forget, copies)
            )

    def minibatch(self, plan: Union[Plan, Sequence[Sequence[Microbatch]]]) -> Iterator[Attempt]:
        """Attempts at one minibatch, until one of them is decided; mostly that is the first.

        Args:
          plan: of dws.balance, or for each rank its microbatches.

        Raises:
          StateError: not started; or the step before was neither published nor skipped.
          InvalidArgumentError: as own_microbatches.
          DeadlineError: other ranks have not joined, or not published, in time; the message names them.
        """
        if self._step is not None:
            raise StateError(f"minibatch {self._step.minibatch} is decided: call publish() or skip() first")
        self._require_joined()
        microbatches = own_microbatches(plan, self.rank, self.ranks, self._lockstep)
        while True:
            attempt = self._next_attempt(microbatches)
            yield attempt
            if attempt.step is not None:
                return
            if attempt.abandoned is None:
                raise StateError("the attempt was not run: write `with attempt:` and attempt.finish()")

    def _next_attempt(self, microbatches: Sequence[Microbatch]) -> Attempt:
        membership = self._require_joined()
        membership.join_if_lost(self.version)
        member, traffic = membership.member, membership.traffic

        def ready(view: Any) -> bool:
            of_next = view.version == self.version and view.attempt.minibatch > self._done
            return of_next and view.phase in (OPEN, *DECIDED)

        view = member.wait(ready, f"rank {self.rank} waits for a minibatch to begin")
        identity = AttemptId.from_proto(view.attempt)
        if view.phase in DECIDED:  # while the sender was away: its gradient is in this rank's memory
            return Attempt(identity, (), traffic.begin_microbatch, lambda _: self._take(view), self._leave_attempt)
        member.attempt = identity
        traffic.begin()
        return Attempt(identity, microbatches, traffic.begin_microbatch, self._finish, self._leave_attempt)

    def _finish(self, weight: float) -> Step:
        membership = self._require_joined()
        membership.traffic.settle()
        return self._take(membership.member.finish(membership.traffic.pushes, weight, self.waits))

    def _take(self, view: Any) -> Step:
        """Takes a decision: a view whose phase is in DECIDED."""
        traffic = self._require_joined().traffic
        self._gradients.detach()
        decision = view.step
        finite = view.phase == STEPPED and decision.finite
        scale = scale_of(self._average, self.ranks, decision.weight) if finite else 1.0
        traffic.end()
        traffic.version = None
        for module, _ in self._units:  # a forward pass alone leaves the model's own unit gathered
            module.reshard()
        self._step = Step(
            norm=decision.norm * scale,
            weight=decision.weight,
            finite=finite,
            exact=view.exact,
            minibatch=decision.attempt.minibatch,
        )
        if finite:
            self._gradients.attach(scale)
        return self._step

    def _leave_attempt(self, error: BaseException) -> Optional[MinibatchAbandonedError]:
        """The attempt ended without a decision. Returns why it was abandoned; None: because of the error itself."""
        from dws.on_demand import sharding

        membership = self._require_joined()
        membership.traffic.end()
        member = membership.member
        abandoned = None
        if isinstance(error, MinibatchAbandonedError):
            abandoned = error
        elif isinstance(error, DwsError) and member.lost is not None:
            reason = f"the sender of rank {self.rank} is lost: {member.lost}"
            abandoned = MinibatchAbandonedError(reason, reason)
        else:
            member.abandon(f"{type(error).__name__}: {error}")
        if self._copies is not None:
            self._copies.finish()
        sharding.reset(self._model)
        self._gradients.detach()
        if abandoned is not None:
            _LOG.warning("dws: rank %d: %s", self.rank, abandoned)
            if self._on_abandoned is not None:
                self._on_abandoned(abandoned)
        return abandoned

    def clip(self, max_norm: float) -> float:
        """Scales the gradient so that its norm is at most `max_norm`, as torch.nn.utils.clip_grad_norm_ does, but with the
        norm of the decision: it is no collective call.

        Returns:
          The norm before.

        Raises:
          StateError: no step is decided, or its gradient is not finite.
        """
        step = self._require_step()
        self._gradients.scale(min(1.0, max_norm / (step.norm + 1e-6)))
        return step.norm

    def publish(self) -> Any:
        """Publishes the parameters after the optimizer's step as the next version, and lets go of the gradient: `.grad` is None.

        Returns:
          As Publisher.publish.

        Raises:
          StateError: no step is decided; or its gradient is not finite: call `skip`, and leave the optimizer alone.
          The errors of Publisher.publish: call `publish` again.
        """
        step = self._require_step()
        membership = self._require_joined()
        self._gradients.detach()
        stats = membership.publish(self.version + 1)
        self.version += 1
        self._decided(step)
        return stats

    def skip(self) -> None:
        """Lets go of a gradient that is not finite. All ranks do so, and their version stays.

        Raises:
          StateError: no step is decided, or its gradient is finite.
        """
        if self._step is None or self._step.finite:
            raise StateError("skip() is for a step whose gradient is not finite (step.finite is False): call publish()")
        membership = self._require_joined()
        membership.join_if_lost(self.version)
        self._gradients.detach()
        membership.member.skip(self._step.minibatch)
        self._decided(self._step)

    def _decided(self, step: Step) -> None:
        self._done, self._step = step.minibatch, None
        self._require_joined().traffic.version = self.version

    def _require_step(self) -> Step:
        if self._step is None:
            raise StateError("no step is decided: call attempt.finish() first")
        if not self._step.finite:
            raise StateError(
                f"the gradient of minibatch {self._step.minibatch} is not finite (norm {self._step.norm}): leave the optimizer "
                "alone, and call od.skip()"
            )
        return self._step

    def _require_joined(self) -> Membership:
        if self._membership is None:
            raise StateError("call fully_shard and start first")
        return self._membership

    def close(self) -> None:
        """Leaves the job: to the other ranks this one is lost. Parameters keep their values. Idempotent."""
        if self._gradients is not None:
            self._gradients.detach()
        if self._copies is not None:
            self._copies.finish()
        if self._membership is not None:
            self._membership.close()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()
