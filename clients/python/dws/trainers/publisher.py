"""Publishes the weights of a torch module from a training loop: a Trainer for each process that owns
weights.

publisher = Publisher("/run/dws/sender-{rank}.sock", job_id="run7")
publisher.register(model)                  # after fully_shard and the optimizer, on every process
for step in range(1, steps + 1):
    ...
    optimizer.step()
    publisher.publish(step)
    publisher.wait(step, "all", timeout=60)
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Mapping, Optional, TypeVar, Union

from dws.change_lists import Changes
from dws.declare.megatron import MegatronTensors
from dws.dtypes import loaded_torch
from dws.errors import (
    DaemonUnavailableError,
    LayoutError,
    RegistrationLostError,
    SenderStalledError,
    StateError,
)
from dws.results import PublishStats, WaitResult
from dws.stream import Stream
from dws.trainer import PUBLISH_TIMEOUT_SECONDS, Trainer
from dws.trainer_registration import REGISTER_TIMEOUT_SECONDS
from dws.trainers.adapter_weights import AdapterWeights, unwrapped
from dws.trainers.megatron_weights import MegatronWeights
from dws.trainers.module_weights import ModuleWeights
from dws.trainers.published_types import PublishedTypes, Types
from dws.trainers.resident_shares import ShareMemory
from dws.trainers.share_lists import lists_of_shares
from dws.trainers.shares import Declared, Share, shares_of

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")
Weights = Union[ModuleWeights, MegatronWeights]


class Publisher:
    """One for each process of the trainer; all of them make the same calls.

    All processes publish, each its part through its own sender, as the rank of its number; those that have
    the same part divide it (dws.trainers.shares). But if process 0 has all weights, none cut, and all would have the
    same socket, without "{rank}", process 0 publishes alone, as rank 0 of 1: calls of the others return at once.

    Lifecycle: make, register once, publish any number of versions, close. Threads: one at a time;
    `wait` from any.
    """

    def __init__(
        self,
        socket: str,
        job_id: str,
        cuts: Optional[Mapping[str, Any]] = None,
        dtype: Any = None,
        reconnect_timeout: float = 60.0,
        dtypes: Optional[Types] = None,
        on_device: bool = True,
        adapter: Optional[str] = None,
    ) -> None:
        """Args:
        socket: the sender's --socket; "{rank}" in it is replaced by the number of the process.
        job_id: the sender's --job-id.
        cuts: for engines that hold slices; see Trainer.register.
        dtype: the type in which floating-point weights are published, such as torch.bfloat16 for
          engines of a trainer that has float32; None: as the module has them. Buffers, and weights
          that a model of transformers keeps in FP32, are not cast (dws.trainers.published_types).
        reconnect_timeout: seconds for a sender that has ended to come back, in `publish`.
        dtypes: types of single weights, before dtype=: patterns (fnmatch) of their names in order, such as
          {"*.mlp.gate.weight": torch.float32}; or the folder of a checkpoint, to publish each weight in the type that it has
          there. Nothing is spared.
        on_device: False: what would be read on its device, or cast there, is copied to the host before each version:
          for devices whose memory the sender cannot open (docs/gpu.md). Weights that are neither
          cut nor cast are not copied.
        adapter: the name of an adapter of LoRA in a model of peft, such as "default": it alone is published, by the names
          that peft saves (dws.adapters). "{adapter}" in socket and job_id is replaced by it: each
          adapter is a job of its own.

        Raises:
          InvalidArgumentError, DTypeError: dtype= or dtypes= has a type that is no floating-point type, or dtypes= has the
            pattern "*", or names no checkpoint.
        """
        self._socket = socket.replace("{adapter}", adapter or "{adapter}")
        self._job_id = job_id.replace("{adapter}", adapter or "{adapter}")
        self._adapter = adapter
        self._alone: Optional[AdapterWeights] = None
        self._cuts = cuts
        self._types = PublishedTypes(dtype, dtypes if dtypes is not None else {})
        self._reconnect_timeout = reconnect_timeout
        self._on_device = on_device
        self._weights: Optional[Weights] = None
        self._trainer: Optional[Trainer] = None
        self._shares: Mapping[str, Share] = {}

    def register(
        self,
        module: Union[Any, MegatronTensors],
        timeout: float = REGISTER_TIMEOUT_SECONDS,
        *,
        lists: bool = False,
    ) -> None:
        """Registers the module's weights. Whole weights on the host move into shared memory here,
        except Megatron's. A collective call: if it fails on one process, it raises on all, and none
        stays registered.

        Args:
          module: a torch module, an engine of DeepSpeed, or what dws.declare.from_megatron returned.
          lists: as in Trainer.register.

        Raises:
          LayoutError, DTypeError: a layout cannot express a weight, an adapter has something that is not supported, or a
            weight is not its memory (dws.arrays.require_plain), or a pattern of dtypes= has no effect, or its checkpoint
            lacks a weight; the message names it, and nothing is registered.
          StateError: registered already; or another process failed, by its number.
          The errors of Trainer.register.
        """
        if self._weights is not None:
            raise StateError("this Publisher is registered: make another one for another module")
        weights: list[Weights] = []  # of this process

        def declare() -> tuple[bool, dict[str, Declared]]:
            if isinstance(module, MegatronTensors):
                weights.append(MegatronWeights(module, self._cuts, self._types))
            elif self._adapter is not None:
                self._alone = AdapterWeights(unwrapped(module), self._adapter)
                weights.append(ModuleWeights(self._alone.module, self._cuts, self._types))
            else:
                weights.append(ModuleWeights(module, self._cuts, self._types))
            return "{rank}" in self._socket, weights[0].declared

        found = _on_all(declare)
        declared = [of_process for _, of_process in found]
        names = set().union(*declared)
        unknown = sorted(set(self._cuts or {}) - names)
        if unknown:
            raise LayoutError(f"cuts= names tensors that no process has: {unknown}")
        self._types.require_used({n: w.spec.dtype for each in declared for n, w in each.items()})
        weights[0].meet(declared)
        if not any(by_rank for by_rank, _ in found) and all(
            of_process.keys() == names and all(w.whole for w in of_process.values())
            for of_process in declared
        ):
            declared = declared[:1]  # all have the same: process 0 publishes it
        shares = shares_of(declared)
        stream = _same_stream() if len(shares) > 1 else Stream.new()
        process, trainer = _process(), None
        if process < len(shares):
            socket = self._socket.replace("{rank}", str(process))
            trainer = Trainer(socket, self._job_id, process, len(shares), stream)
        try:
            _on_all(
                lambda: None
                if trainer is None
                else weights[0].register(
                    trainer, shares[process], timeout, self._on_device, lists
                )
            )
        except BaseException:
            if trainer is not None:
                trainer.close()
            raise
        self._weights, self._trainer = weights[0], trainer
        self._shares = shares[process] if trainer is not None else {}

    def publish(
        self,
        version: int,
        timeout: float = PUBLISH_TIMEOUT_SECONDS,
        *,
        full: bool = False,
        changes: Optional[Mapping[str, Optional[Changes]]] = None,
    ) -> Optional[PublishStats]:
        """Publishes the present weights; when it returns they may be overwritten. If the sender has
        restarted, registers with it again first. With FSDP1 and ZeRO-3 it is a collective call.

        Args:
          full: as in Trainer.publish.
          changes: as in Trainer.publish, by published name, of this process's part of each weight (of a DTensor, its
            local tensor); such as from cast_and_list. Weights that FSDP1 or ZeRO-3 has cut are compared.

        Returns:
          What changed on this process; None if it publishes nothing, or if the sender had the
          version already when it came back.

        Raises:
          StateError: never registered, or a weight is not as it was registered; the message names
            it.
          The errors of Trainer.publish and Trainer.reconnect.
        """
        if self._weights is None:
            raise StateError("call register() first")
        if self._trainer is None:
            return None
        if self._alone is not None:
            self._alone.require_same()
        self._weights.refresh()
        listed = None
        if changes is not None:
            listed = lists_of_shares(self._weights.declared, self._shares, changes)
        try:
            return self._trainer.publish(version, timeout, full=full, changes=listed)
        except (DaemonUnavailableError, RegistrationLostError, SenderStalledError) as error:
            _LOG.warning("dws: version %d: %s; registering again", version, error)
            self._trainer.reconnect(self._reconnect_timeout)
        if self._trainer.last_version >= version:
            return None
        return self._trainer.publish(version, timeout, full=full, changes=listed)

    def wait(
        self, version: int, policy: Union[str, int] = "all", timeout: float = 60.0
    ) -> Optional[WaitResult]:
        """As Trainer.wait, on process 0; the others return None at once.

        Raises:
          The errors of Trainer.wait.
        """
        if self._trainer is None or self._trainer.rank != 0:
            return None
        return self._trainer.wait(version, policy, timeout)

    @property
    def trainer(self) -> Optional[Trainer]:
        """This process's, None before `register` and where nothing is published."""
        return self._trainer

    @property
    def memory(self) -> Optional[ShareMemory]:
        """Where the sender reads what this process publishes; None before `register` and where
        nothing is published."""
        return self._weights.memory if self._weights is not None and self._trainer else None

    def close(self) -> None:
        """Ends the registration; the module keeps its memory. Idempotent."""
        if self._trainer is not None:
            self._trainer.close()


def _distributed() -> Any:
    """torch.distributed with its default group, else None."""
    torch = loaded_torch()
    found = getattr(torch, "distributed", None)
    if found is None or not found.is_available() or not found.is_initialized():
        return None
    return found


def _process() -> int:
    """The number of this process."""
    group = _distributed()
    return 0 if group is None else int(group.get_rank())


def _on_all(what: Callable[[], _Result]) -> list[_Result]:
    """Calls `what` on all processes, and returns their results in their order. A collective call.

    Raises:
      As `what`; StateError: it failed on another process.
    """
    failure, result = None, None
    try:
        result = what()
    except Exception as error:
        failure = error
    found = _gathered((None if failure is None else str(failure), result))
    if failure is not None:
        raise failure
    for process, (text, _) in enumerate(found):
        if text is not None:
            raise StateError(f"process {process} cannot register: {text}")
    return [each for _, each in found]


def _gathered(mine: Any) -> list[Any]:
    """What each process passes, in their order. A collective call."""
    group = _distributed()
    if group is None:
        return [mine]
    found: list[Any] = [None] * int(group.get_world_size())
    group.all_gather_object(found, mine)
    return found


def _same_stream() -> Stream:
    """A new stream, the same on all processes. A collective call."""
    message = [str(Stream.new())]
    _distributed().broadcast_object_list(message, src=0)
    return Stream.parse(message[0])
