"""verl's checkpoint engine `dws`: trainer workers publish to a dws-sender, rollout workers load what a dws-receiver brings.

actor_rollout_ref.rollout.checkpoint_engine.backend=dws
actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=dws.verl

verl imports this module in its workers, which registers the engine. Options are arguments of `DwsCheckpointEngine`, in
`checkpoint_engine.engine_kwargs.dws`. Only changes travel from the trainer to the rollout workers; each of these holds all
weights in host memory, and gives them to verl's own adapter of its inference engine (docs/trainers.md).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import uuid
from typing import Any, AsyncIterator, Iterator, Mapping, Optional, Sequence

import ray
import torch
from ray.experimental import internal_kv
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.device import get_device_id, get_device_name, get_torch_device

import dws.daemons
from dws.arrays import spec_of
from dws.dtypes import DType
from dws.engine import Engine
from dws.errors import DeadlineError, InvalidArgumentError, StateError
from dws.stream import Stream
from dws.trainers.weight_transfer import WAIT_SECONDS, WeightTransfer

_NAMESPACE = b"dws"  # of Ray's key-value store
_POLL_SECONDS = 0.05


class _Publishing:
    """The side of the trainer's first worker. Lifecycle: one training. Threads: one at a time."""

    def __init__(
        self, job_id: str, sender: Optional[str], address: Optional[str], options: Mapping[str, Any], timeout: float
    ) -> None:
        self._job_id = job_id
        self._daemon: Optional[dws.daemons.Daemon] = None
        if sender is None or address is None:
            self._daemon = dws.daemons.sender(job_id, **_reachable(options))
            sender, address = self._daemon.socket, self._daemon.address
        self._address = address
        # Rollout workers wait for exactly this version themselves.
        self._stream = Stream.new()  # the next training counts from 1 again
        self._transfer = WeightTransfer(sender, job_id, policy="any", timeout=timeout, stream=self._stream)
        self._told = False

    @property
    def version(self) -> int:
        return self._transfer.last_version

    def plan(self) -> dict[str, Any]:
        """What rollout workers need to get the next version."""
        if self._daemon is not None:
            self._daemon.check()
        return {
            "job_id": self._job_id,
            "address": self._address,
            "host": socket.gethostname(),
            "version": self.version + 1,
            "stream": str(self._stream),
        }

    def send(self, weights: Iterator[tuple[str, Any]]) -> None:
        self._transfer.send_weights(weights if self._told else self._telling(weights))

    def _telling(self, weights: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yields the weights; after the last one tells rollout workers what there is, before it is published."""
        layout = []
        for name, tensor in weights:
            spec = spec_of(name, tensor)
            layout.append([name, spec.dtype.name, list(spec.shape)])
            yield name, tensor
        internal_kv._internal_kv_put(_layout_key(self._stream), json.dumps(layout).encode(), True, namespace=_NAMESPACE)
        self._told = True


class _Receiving:
    """The side of a rollout worker. Lifecycle: one sender. Threads: one at a time."""

    def __init__(
        self, plan: Mapping[str, Any], rank: int, receiver: Optional[str], options: Mapping[str, Any], timeout: float
    ) -> None:
        self.source = _source(plan)
        self._stream = Stream.parse(plan["stream"])
        self._job_id = plan["job_id"]
        self._timeout = timeout
        self._weights: Optional[dict[str, torch.Tensor]] = None
        self._daemon: Optional[dws.daemons.Daemon] = None
        if receiver is None:
            _require_reachable(plan)
            name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            self._daemon = dws.daemons.receiver(name, [plan["address"]], self._job_id, **options)
            receiver = self._daemon.socket
        self._engine = Engine(receiver.replace("{rank}", str(rank)))

    def await_version(self, version: int) -> None:
        """Returns when host memory has the version.

        Raises:
          DeadlineError: it did not come in time; the message says what the receiver waits for.
          StateError: another version came.
          The errors of Engine.attach and Engine.let_commit.
        """
        deadline = time.monotonic() + self._timeout
        if self._daemon is not None:
            self._daemon.check()
        if self._weights is None:
            layout = _read_layout(self._job_id, self._stream, self._timeout)
            tensors = {name: torch.zeros(shape, dtype=DType[dtype].torch) for name, dtype, shape in layout}
            self._weights = self._engine.attach(tensors, timeout=deadline - time.monotonic(), commits_on_request=True)
        grant = self._engine.let_commit(version, max(deadline - time.monotonic(), 1.0), self._stream)
        if grant.version != version:
            raise StateError(f"expected version {version} of job '{self._job_id}', the receiver has committed {grant.version}")

    async def weights(self, version: int) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """All weights of the version, on this worker's device. No commit falls in between."""
        await asyncio.to_thread(self.await_version, version)
        assert self._weights is not None
        # verl names a device also where there is none.
        there = get_torch_device().is_available()
        device = torch.device(get_device_name(), get_device_id()) if there else torch.device("cpu")
        async with self._engine.running(self._timeout):
            for tensor_name, tensor in self._weights.items():
                yield tensor_name, tensor.to(device)

    def close(self) -> None:
        self._engine.close()
        if self._daemon is not None:
            self._daemon.close()


@CheckpointEngineRegistry.register("dws")
class DwsCheckpointEngine(CheckpointEngine):  # type: ignore[misc]  # verl has no types
    """verl calls it in each worker; of the trainer's workers the first publishes.

    Lifecycle: one worker's. It ends, with the daemons that it has started, with the worker's process.
    Threads: one at a time.
    """

    wire_format = "named_tensors"

    def __init__(
        self,
        bucket_size: int = 0,
        is_master: bool = False,
        job_id: Optional[str] = None,
        sender: Optional[str] = None,
        address: Optional[str] = None,
        receiver: Optional[str] = None,
        listen: Optional[str] = None,
        insecure: bool = False,
        timeout: float = WAIT_SECONDS,
        sender_options: Optional[Mapping[str, Any]] = None,
        receiver_options: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Args:
          bucket_size, is_master: from verl. The first is not used: verl's adapters cut what they are given into buckets.
          job_id: by default a new one for each training. Needed with `sender` and `receiver`.
          sender: the socket of a dws-sender that runs beside the trainer's first worker. By default that worker starts one.
          address: where receivers reach that sender, "HOST:PORT" or "unix:PATH".
          receiver: the socket of a dws-receiver that runs beside each rollout worker, with "{rank}" for the worker's number
            among all of them. By default each worker starts one.
          listen: for rollout workers on other hosts: where the sender that is started listens, "0.0.0.0:0".
          insecure: lets it do so without TLS. With TLS: tls_ca=, tls_cert=, tls_key= in the options of both.
          timeout: seconds for a version to be in the rollout workers' memory.
          sender_options, receiver_options: options of the daemons that are started (dws.daemons).

        Raises:
          InvalidArgumentError: options that do not fit each other.
        """
        if (sender is None) != (address is None) or (sender is not None and job_id is None):
            raise InvalidArgumentError(
                "engine_kwargs.dws: a sender that runs already needs its `sender`, `address` and `job_id`, found "
                f"sender={sender!r}, address={address!r}, job_id={job_id!r}"
            )
        if receiver is not None and job_id is None:
            raise InvalidArgumentError("engine_kwargs.dws: receivers that run already need `job_id`, that of their sender")
        self.is_master = is_master
        self._job_id, self._sender, self._address, self._receiver = job_id, sender, address, receiver
        self._timeout = timeout
        both: dict[str, Any] = {"insecure": True} if insecure else {}
        self._sender_options = {**both, **({"listen": listen} if listen else {}), **dict(sender_options or {})}
        self._receiver_options = {**both, **dict(receiver_options or {})}
        self._publishing: Optional[_Publishing] = None
        self._receiving: Optional[_Receiving] = None
        self._expected: Optional[int] = None  # the version that receive_weights yields

    def prepare(self) -> dict[str, Any]:
        """Returns what rollout workers need of the trainer's first worker; in the other workers nothing."""
        if not self.is_master:
            return {}
        if self._publishing is None:
            job_id = self._job_id or f"verl-{uuid.uuid4().hex[:12]}"
            self._publishing = _Publishing(job_id, self._sender, self._address, self._sender_options, self._timeout)
        return self._publishing.plan()

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Raises:
        StateError: the trainer's first worker does not publish.
        """
        plans = [each for each in metadata[:actor_wg_world_size] if each]
        if len(plans) != 1:
            raise StateError(f"expected one worker of the trainer that publishes, found {len(plans)} of {actor_wg_world_size}")
        actors, rollouts = range(actor_wg_world_size), range(rollout_world_size)
        return (
            {"rank": list(actors), "plan": [None for _ in actors]},
            {"rank": list(rollouts), "plan": [plans[0] for _ in rollouts]},
        )

    def init_process_group(self, rank: int, plan: Optional[Mapping[str, Any]]) -> None:
        """Connects a rollout worker to the trainer's sender, and takes the number of the version that comes."""
        if plan is None:
            return
        source = _source(plan)
        if self._receiving is not None and self._receiving.source != source:  # the trainer was started again
            self._receiving.close()
            self._receiving = None
        if self._receiving is None:
            self._receiving = _Receiving(plan, rank, self._receiver, self._receiver_options, self._timeout)
        self._expected = plan["version"]

    def finalize(self) -> None:
        """Nothing: the next version is a delta of what is held now."""

    async def send_weights(
        self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: Optional[int] = None
    ) -> dict[str, Any]:
        """Publishes all weights, and returns when a rollout worker has them. The other workers of the trainer only take
        part in gathering.

        Raises:
          The errors of WeightTransfer.send_weights.
        """
        weights = iter(weights)
        try:
            if self._publishing is not None:
                self._publishing.send(weights)
        finally:
            for _ in weights:  # a collective call: the other workers wait in it
                pass
        return {} if self._publishing is None else {"dws/version": self._publishing.version}

    async def receive_weights(self, global_steps: Optional[int] = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yields all weights of the version that the trainer publishes now.

        Raises:
          StateError: init_process_group was not called.
          The errors of Engine.attach and Engine.let_commit.
        """
        if self._receiving is None or self._expected is None:
            raise StateError("receive_weights before init_process_group")
        async for name, tensor in self._receiving.weights(self._expected):
            yield name, tensor


def _reachable(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, listening on this node's address in place of all: other nodes may not know this host's name."""
    host, _, port = str(options.get("listen") or "").rpartition(":")
    if host not in ("0.0.0.0", "[::]"):
        return dict(options)
    address = ray.util.get_node_ip_address()
    return {**options, "listen": f"[{address}]:{port}" if ":" in address else f"{address}:{port}"}


def _source(plan: Mapping[str, Any]) -> tuple[str, str, str]:
    return plan["job_id"], plan["address"], plan["stream"]


def _layout_key(stream: Stream) -> bytes:
    return f"layout/{stream}".encode()


def _read_layout(job_id: str, stream: Stream, timeout: float) -> list[tuple[str, str, list[int]]]:
    """Waits for the trainer's tensors: name, type and shape of each."""
    deadline = time.monotonic() + timeout
    while True:
        text = internal_kv._internal_kv_get(_layout_key(stream), namespace=_NAMESPACE)
        if text is not None:
            layout: list[tuple[str, str, list[int]]] = json.loads(text)
            return layout
        if time.monotonic() >= deadline:
            raise DeadlineError(
                f"the trainer of job '{job_id}' has not told in {timeout:g} s which weights it has: has its first worker "
                "failed in send_weights?"
            )
        time.sleep(_POLL_SECONDS)


def _require_reachable(plan: Mapping[str, Any]) -> None:
    if plan["address"].startswith("unix:") and plan["host"] != socket.gethostname():
        raise StateError(
            f"the trainer's sender is reached only on {plan['host']} ({plan['address']}), and this rollout worker is on "
            f"{socket.gethostname()}: set engine_kwargs.dws.listen='0.0.0.0:0', with TLS or insecure=true"
        )
