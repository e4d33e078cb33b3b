"""Hands the learner's cast to DWS, through one trainer rank or several that own rows of every
tensor, whatever part of it an engine's rank has."""

from __future__ import annotations

import dataclasses
from typing import Mapping, Sequence

import grpc
import torch

import dws
from dws._proto import admin_pb2, admin_pb2_grpc
from dws.digest import combine, digest_hex, rank_state_token
from dws.layout import TensorSpec, with_cuts
from dws.trainers.shares import Declared, shares_of
from tools.demo import tensor_parallel
from tools.demo.weights_hash import weights_sha256

WAIT_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Published:
    """What publishing one version took.

    Attributes:
      changed, elements: over all ranks.
      stall_seconds: the training loop stood still for DWS.
    """

    version: int
    changed: int
    elements: int
    stall_seconds: float


@dataclasses.dataclass(frozen=True)
class Committed:
    """What became of a version.

    Attributes:
      wire_bytes: of the delta objects of all ranks; 0 for the first version (sent as full tensors).
      commit_seconds: publish call to the commit of the last receiver.
    """

    wire_bytes: int
    commit_seconds: float


class Publisher:
    """`publish` on the training thread, `wait` on any other.

    Attributes:
      tokens: version -> state token, computed here from the cast, not asked from DWS.
      hashes: version -> SHA-256 of what each rank of an engine has of the cast.
    """

    def __init__(
        self,
        sockets: Sequence[str],
        job_id: str,
        weights: Mapping[str, torch.Tensor],
        engine_ranks: int = 1,
    ) -> None:
        """Registers `weights` with one sender a rank, cut into equal row shards, and as engines of
        so many ranks need it."""
        ranks = len(sockets)
        self._engine_ranks = engine_ranks
        stream = dws.Stream.new()
        shares = shares_of(_rows(weights, ranks, tensor_parallel.cuts(weights, engine_ranks)))
        self._trainers = []
        self._views = []
        self._admin = []
        for rank, socket in enumerate(sockets):
            trainer = dws.Trainer(socket, job_id, rank, ranks, stream)
            cells = {name: share.cells for name, share in shares[rank].items()}
            cuts = {name: share.spec.cuts for name, share in shares[rank].items()}
            self._views.append(trainer.register(weights, shards=cells, cuts=cuts))
            self._trainers.append(trainer)
            channel = grpc.insecure_channel(f"unix:{socket}")
            self._admin.append(admin_pb2_grpc.AdminServiceStub(channel))
        self.tokens: dict[int, str] = {}
        self.hashes: dict[int, tuple[str, ...]] = {}

    def publish(self, version: int, weights: dict[str, torch.Tensor]) -> Published:
        """Copies the cast into the resident memory of the ranks and publishes it."""
        self.hashes[version] = tuple(
            weights_sha256(tensor_parallel.part(weights, rank, self._engine_ranks).items())
            for rank in range(self._engine_ranks)
        )
        ranks = [self._part(rank, weights) for rank in range(len(self._trainers))]
        tokens = [rank_state_token(t.layout, part) for t, part in zip(self._trainers, ranks)]
        self.tokens[version] = digest_hex(combine(tokens))
        for views, part in zip(self._views, ranks):
            for name, view in views.items():
                view.copy_(part[name])
        stats = [trainer.publish(version) for trainer in self._trainers]
        return Published(
            version,
            sum(s.changed_elements for s in stats),
            sum(s.total_elements for s in stats),
            sum(s.stall_seconds for s in stats),
        )

    def wait(self, version: int) -> Committed:
        """Returns when every receiver has committed the version or a newer one.

        Raises:
          dws.DeadlineError: not within WAIT_SECONDS.
        """
        results = [trainer.wait(version, "all", WAIT_SECONDS) for trainer in self._trainers]
        return Committed(
            sum(result.wire_bytes for result in results),
            max(result.publish_to_commit_seconds for result in results),
        )

    def receiver_versions(self) -> dict[str, int]:
        """receiver id -> the version all senders know it has committed."""
        found: dict[str, int] = {}
        for admin in self._admin:
            status = admin.Status(admin_pb2.StatusRequest(), timeout=10)
            for peer in status.sender.receivers:
                known = found.get(peer.receiver_id, peer.committed_version)
                found[peer.receiver_id] = min(known, peer.committed_version)
        return found

    def close(self) -> None:
        for trainer in self._trainers:
            trainer.close()

    def _part(self, rank: int, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        layout = self._trainers[rank].layout
        return {name: weights[name][layout.shard(name).index] for name in weights}


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
