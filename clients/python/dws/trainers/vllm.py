"""The trainer's side of vLLM's weight transfer: WeightTransferTrainerFactory makes its engine of backend "dws".

    init = DwsTrainerInit(rank=rank, trainer=trainer, socket="/run/dws/receiver-rollout-0.sock")
    engine = WeightTransferTrainerFactory.trainer_init(init, client=client, source=ModuleSource(model))
    engine.send_weights(version=step)

Without a source the weights are those that the dws.Trainer was registered with.
"""

from __future__ import annotations

import dataclasses
import importlib
import weakref
from typing import Any, Iterator, Optional

# vLLM makes the class below, and has loaded this already.
from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from dws.errors import LayoutError, StateError
from dws.layout import TensorSpec
from dws.plugins.fingerprint import fingerprint_of
from dws.plugins.requested import UPDATE_SECONDS
from dws.trainer import Trainer

@dataclasses.dataclass
class DwsTrainerInit(TrainerInitInfo):  # type: ignore[misc]
    """For WeightTransferTrainerFactory.trainer_init, on every rank of the trainer.

    Attributes:
      trainer: this rank's dws.Trainer: registered, or, with a source, not registered. With a source rank 0 alone
        publishes, as a trainer of one rank, and the others have none.
      socket: the receiver's --socket on the engine's host.
      options: of dws.plugins.attach.AttachOptions.
      timeout: seconds for each update.
    """

    backend = "dws"

    trainer: Optional[Trainer]
    socket: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    timeout: float = UPDATE_SECONDS


class _Shared:
    """The common state of all engines of one dws.Trainer: several servers get the same versions.

    Attributes:
      engines: the engines of the trainer.
      version, content: the version that one of them published last, and the fingerprint of the
        weights then; None: not taken, because the number was given.
      specs: what a source yields; None: no source was given.
    """

    def __init__(self) -> None:
        self.engines: weakref.WeakSet[Any] = weakref.WeakSet()
        self.version = 0
        self.content: Optional[int] = None
        self.specs: Optional[list[TensorSpec]] = None


class _NoTrainer:
    """In the place of the trainer of a rank that only takes part in gathering."""


_NO_TRAINER = _NoTrainer()
_SHARED: weakref.WeakKeyDictionary[Any, _Shared] = weakref.WeakKeyDictionary()


class DwsTrainerWeightTransferEngine(
    TrainerWeightTransferEngine[DwsTrainerInit]  # type: ignore[misc]
):
    """Publishes the weights, and has vLLM take them. Several servers have an engine each, which share the trainer: the
    first of their calls with a number publishes it, the others only send it.

    Lifecycle: made by vLLM's factory. Threads: one at a time, in all engines of a trainer.
    """

    init_info_cls = DwsTrainerInit

    def __init__(self, info: DwsTrainerInit, client: Any, source: Any = None) -> None:
        super().__init__(client=client, source=source, is_sender=info.is_sender)
        self._info = info
        self._shared = _SHARED.setdefault(info.trainer or _NO_TRAINER, _Shared())
        self._shared.engines.add(self)

    @classmethod
    def trainer_init(
        cls, init_info: DwsTrainerInit, *, client: Any, source: Any = None
    ) -> "DwsTrainerWeightTransferEngine":
        """Args:
          source: a WeightSource of vLLM, such as ModuleSource(model): `send_weights` gathers from it, tensor after
            tensor. On every rank, because the gathering may be collective.

        Raises:
          StateError: the trainer does not fit to the source.
          LayoutError: rank 0 does not gather all tensors of the source, by name.
          The errors of `client`, and of dws.Trainer.register_ring.
        """
        trainer = init_info.trainer
        if source is None and trainer is None:
            raise StateError("no trainer and no source: give a registered dws.Trainer, or a source of the weights")
        if source is not None and (trainer is not None) != init_info.is_sender:
            raise StateError(
                f"rank {init_info.rank} has {'a' if trainer else 'no'} trainer: of the ranks that gather from a source "
                "rank 0 publishes, and the others give trainer=None"
            )
        if source is not None and trainer is not None:
            _register(trainer, source)
        if init_info.is_sender:
            client.init_weight_transfer_engine(
                {"socket": init_info.socket, "options": init_info.options}
            )
        return cls(init_info, client, source)

    def send_weights(self, version: Optional[int] = None) -> None:
        """Publishes the weights unless they are published; on rank 0 returns when vLLM generates with
        them.

        Args:
          version: their number, such as the trainer's step: the same for each server that gets
            them, and on each rank. It is published if it is above the trainer's last version; the
            last version is sent as it was published. By default it is the next number; if several
            engines share the trainer and no weight has changed since the last call, it is the
            number of that call. All weights are read to find that out.

        Raises:
          VersionError: an older version.
          StateError: no version was given although several engines share a trainer of several
            ranks: a rank cannot tell whether the weights of the others have changed.
          The errors of dws.Trainer.publish and of `client`.
        """
        shared = self._shared
        compares = version is None and len(shared.engines) > 1
        if version is None:
            known = compares and self._is_published()
            version = shared.version if known else self._last_version() + 1
        publishes = version != self._last_version()
        if self.source is not None:
            version, publishes = _of_rank_0(version, publishes)
        if publishes:
            self._publish(version)
            shared.version, shared.content = version, self._content() if compares else None
        if not self.is_sender:
            return
        stream = str(self._trainer().stream)
        self.client.start_weight_update()
        self.client.update_weights(
            {"version": version, "stream": stream, "timeout": self._info.timeout}
        )
        self.client.finish_weight_update(weight_version=str(version))

    def _trainer(self) -> Trainer:
        assert self._info.trainer is not None  # trainer_init
        return self._info.trainer

    def _last_version(self) -> int:
        """A rank that has no trainer counts what it has gathered for."""
        return self._shared.version if self._info.trainer is None else self._info.trainer.last_version

    def _publish(self, version: int) -> None:
        if self.source is None:
            self._trainer().publish(version, self._info.timeout)
        elif self._info.trainer is None:
            for _ in _tensors(self.source):
                pass  # takes part in the gathering
        else:
            tensors = _tensors(self.source)
            try:
                self._put(version, tensors)
            except BaseException:
                for _ in tensors:
                    pass  # the other ranks gather all of them
                raise

    def _put(self, version: int, tensors: Iterator[tuple[str, Any]]) -> None:
        lacking = {spec.name: None for spec in self._shared.specs or ()}
        with self._trainer().version(version, self._info.timeout) as opened:
            for name, tensor in tensors:
                opened.put(name, tensor.detach().contiguous())
                lacking.pop(name, None)
            if lacking:  # the version would have their older weights
                raise StateError(
                    f"the source did not yield {len(lacking)} of the tensors that it describes: {', '.join(list(lacking)[:3])}"
                )

    def _is_published(self) -> bool:
        """Returns whether the weights are known to be those of the trainer's last version."""
        trainer, shared = self._info.trainer, self._shared
        ranks = _ranks() if self.source is not None else self._trainer().world_size
        if ranks > 1:
            raise StateError(
                f"{len(shared.engines)} weight transfer engines share this trainer of "
                f"{ranks} ranks: give the step's number to each, send_weights(version=...)"
            )
        known = trainer is not None and shared.content is not None and shared.version == trainer.last_version
        return known and self._content() == shared.content

    def _content(self) -> int:
        if self.source is not None:
            return fingerprint_of(tensor.contiguous() for _, tensor in _tensors(self.source))
        return fingerprint_of(map(_bits, self._trainer().resident_weights()))


def _register(trainer: Trainer, source: Any) -> None:
    """Registers a ring for what the source yields; once for all engines of the trainer."""
    described = source.metadata() if callable(source.metadata) else source.metadata  # since vLLM 0.33
    elsewhere = [one.name for one in described if 0 not in (getattr(one, "owners", None) or (0,))]
    if elsewhere:
        raise LayoutError(
            f"{len(elsewhere)} tensors of the source are gathered on other ranks than rank 0, which publishes: "
            f"{', '.join(elsewhere[:3])}. Register each rank's own weights with its dws.Trainer, and give no source"
        )
    specs = [TensorSpec(one.name, one.dtype, tuple(one.shape)) for one in described]
    shared = _SHARED.setdefault(trainer, _Shared())
    if shared.specs is None:
        trainer.register_ring(specs)
        shared.specs = specs
    elif shared.specs != specs:
        raise StateError("the engines of one trainer have sources of other tensors: give all of them the same")


def _tensors(source: Any) -> Iterator[tuple[str, Any]]:
    """The whole tensors of this rank."""
    whole: Iterator[tuple[str, Any]] = source.iter_full() if hasattr(source, "iter_full") else iter(source)
    return whole


def _ranks() -> int:
    """How many ranks gather from a source."""
    distributed: Any = importlib.import_module("torch.distributed")
    return int(distributed.get_world_size()) if distributed.is_initialized() else 1


def _of_rank_0(version: int, publishes: bool) -> tuple[int, bool]:
    """Rank 0's version and whether it publishes, on all ranks that gather from a source: they gather together, or not at all."""
    said = [(version, publishes)]
    if _ranks() > 1:
        distributed: Any = importlib.import_module("torch.distributed")
        distributed.broadcast_object_list(said, src=0)
    return said[0]


def _bits(memory: Any) -> Any:
    """A torch tensor, or a region's numpy bytes as one of 64-bit numbers."""
    torch: Any = importlib.import_module("torch")
    if torch.is_tensor(memory):
        return memory
    return torch.from_numpy(memory[: memory.size // 8 * 8]).view(torch.int64)
