"""Hands the learner's cast to DWS, through one trainer rank or through several that own rows of
every tensor, whatever part of it an engine's rank has."""

from __future__ import annotations

import dataclasses
from typing import Mapping, Sequence

import grpc
import torch

import dws
from dws._proto import admin_pb2, admin_pb2_grpc
from dws.layout import TensorSpec, with_cuts
from dws.trainers.shares import Declared, shares_of
from tools.demo import tensor_parallel
from tools.demo.expected import Expected, rank_part, rank_token

WAIT_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Published:
    """The cost of publishing one version.

    Attributes:
      changed, elements: over all ranks.
      full: no delta leads to it.
      stall_seconds: the training loop stood still for DWS.
    """

    version: int
    changed: int
    elements: int
    full: bool
    stall_seconds: float

    @classmethod
    def of(cls, ranks: Sequence[dws.PublishStats], stall_seconds: float) -> "Published":
        return cls(
            ranks[0].version,
            sum(stats.changed_elements for stats in ranks),
            sum(stats.total_elements for stats in ranks),
            ranks[0].full,
            stall_seconds,
        )


@dataclasses.dataclass(frozen=True)
class Committed:
    """What became of a version.

    Attributes:
      wire_bytes: of the delta objects, or the tensors, of all ranks.
      commit_seconds: publish call to the commit of the last receiver.
    """

    wire_bytes: int
    commit_seconds: float

    @classmethod
    def of(cls, ranks: Sequence[dws.WaitResult]) -> "Committed":
        return cls(
            sum(result.wire_bytes for result in ranks),
            max(result.publish_to_commit_seconds for result in ranks),
        )


def receiver_versions(sockets: Sequence[str]) -> dict[str, int]:
    """receiver id -> the version that all senders, by their sockets, know it has committed."""
    found: dict[str, int] = {}
    for socket in sockets:
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            admin = admin_pb2_grpc.AdminServiceStub(channel)
            status = admin.Status(admin_pb2.StatusRequest(), timeout=10)
        for peer in status.sender.receivers:
            known = found.get(peer.receiver_id, peer.committed_version)
            found[peer.receiver_id] = min(known, peer.committed_version)
    return found


class Publisher:
    """`publish` on the training thread, `wait` on any other.

    Attributes:
      expected: what engines must report of each version.
    """

    def __init__(
        self,
        sockets: Sequence[str],
        job_id: str,
        weights: Mapping[str, torch.Tensor],
        engine_ranks: int = 1,
    ) -> None:
        """Registers `weights` with one sender a rank, cut into equal row shards, and as engines
        with so many ranks need."""
        ranks = len(sockets)
        self.expected = Expected(engine_ranks)
        stream = dws.Stream.new()
        shares = shares_of(_rows(weights, ranks, tensor_parallel.cuts(weights, engine_ranks)))
        self._trainers = []
        self._views = []
        for rank, socket in enumerate(sockets):
            trainer = dws.Trainer(socket, job_id, rank, ranks, stream)
            cells = {name: share.cells for name, share in shares[rank].items()}
            cuts = {name: share.spec.cuts for name, share in shares[rank].items()}
            self._views.append(trainer.register(weights, shards=cells, cuts=cuts))
            self._trainers.append(trainer)

    def publish(self, version: int, weights: dict[str, torch.Tensor]) -> Published:
        """Copies the cast into the resident memory of the ranks and publishes it."""
        layouts = [trainer.layout for trainer in self._trainers]
        self.expected.add(version, weights, [rank_token(layout, weights) for layout in layouts])
        for views, layout in zip(self._views, layouts):
            for name, part in rank_part(layout, weights).items():
                views[name].copy_(part)
        stats = [trainer.publish(version) for trainer in self._trainers]
        return Published.of(stats, sum(each.stall_seconds for each in stats))

    def wait(self, version: int) -> Committed:
        """Returns when every receiver has committed the version or a newer one.

        Raises:
          dws.DeadlineError: not within WAIT_SECONDS.
        """
        return Committed.of([t.wait(version, "all", WAIT_SECONDS) for t in self._trainers])

    def close(self) -> None:
        for trainer in self._trainers:
            trainer.close()


def _rows(
    weights: Mapping[str, torch.Tensor], ranks: int, cuts: Mapping[str, dws.Cut]
) -> list[dict[str, Declared]]:
    """By trainer rank: equal rows of every tensor."""
    found: list[dict[str, Declared]] = [{} for _ in range(ranks)]
    for name, weight in weights.items():
        spec = with_cuts(TensorSpec(name, weight.dtype, tuple(weight.shape)), cuts)
        bounds = (0, *dws.Cut.even(len(weight), ranks).boundaries, len(weight))
        rest = [(0, extent) for extent in weight.shape[1:]]
        for declared, rows in zip(found, zip(bounds, bounds[1:])):
            declared[name] = Declared(spec, (rows, *rest))
    return found
