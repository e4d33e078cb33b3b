"""The ways in which workers bring their weights together, and the bytes that each sends to the other owners."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import numpy as np

from dws.dtypes import DType
from dws.on_demand.pulse_loco import PulseLoCo, Settings, ShardSum
from dws.on_demand.pulse_loco.arithmetic import outer_step, select
from dws.on_demand.pulse_loco.objects import bytes_sent

Array = np.ndarray[Any, Any]
F32 = np.float32
DILOCO = Settings(0.7, 0.9)
AVERAGING = Settings(1.0, 0.0)


def shards_of(elements: int, workers: int) -> list[int]:
    """Each worker owns one, of about the same size."""
    return [elements * (rank + 1) // workers - elements * rank // workers for rank in range(workers)]


class Way:
    """Attributes:
      theta: theta_g.
      sent_bytes: for each round the mean over the workers of the bytes to other owners.
      sent_entries: likewise the elements; 4 bytes of index and 4 of value each are what is compared with.
      sums_bytes: likewise the bytes of the sums that an owner sends to each of the others.
      everyone_bytes: likewise, if there were no owners, and each worker sent its contribution to all others.
    """

    def __init__(self, theta: Array, workers: int) -> None:
        self.theta = theta
        self.shards = shards_of(theta.size, workers)
        self.sent_bytes: list[float] = []
        self.sent_entries: list[float] = []
        self.sums_bytes: list[float] = []
        self.everyone_bytes: list[float] = []

    def round(self, thetas: Sequence[Array]) -> None:
        raise NotImplementedError


class Dense(Way):
    """All of the change in FP32: DiLoCo, or averaging. With `dropped` only what PULSELoCo would choose, without a
    residual."""

    def __init__(self, theta: Array, workers: int, settings: Settings, dropped: bool = False) -> None:
        super().__init__(theta, workers)
        self._settings, self._dropped = settings, dropped
        self._u, self._none = np.zeros_like(theta), np.zeros_like(theta)

    def round(self, thetas: Sequence[Array]) -> None:
        sums = np.zeros(self.theta.size)
        for theta_r in thetas:
            sums += select(self.theta, self._none, theta_r, DType.F32).values if self._dropped else self.theta - theta_r
        self.theta, self._u = outer_step(self.theta, self._u, sums.astype(F32), len(thetas), self._settings)
        if not self._dropped:
            self.sent_bytes.append(4 * self.theta.size * (1 - 1 / len(thetas)))


class Pulse(Way):
    """Real workers and owners, with real objects between them."""

    def __init__(self, theta: Array, workers: int, settings: Settings) -> None:
        super().__init__(theta, workers)
        self._workers = [PulseLoCo(theta, rank=rank, shards=self.shards, settings=settings) for rank in range(workers)]

    def round(self, thetas: Sequence[Array]) -> None:
        workers = self._workers
        ends = np.cumsum(self.shards)
        for worker in workers:
            worker.begin()
        objects = [worker.contribute(theta_r) for worker, theta_r in zip(workers, thetas)]
        self.sent_bytes.append(float(np.mean([bytes_sent(of, rank) for rank, of in enumerate(objects)])))
        sums, entries = [], 0
        for shard, (size, end) in enumerate(zip(self.shards, ends)):
            owner = ShardSum(workers[0].theta_g[end - size : end], workers[0].address(shard), workers[0].settings.values)
            for rank, of in enumerate(objects):
                owner.add(of[shard], f"worker {rank}")
            entries += sum(np.count_nonzero(owner.values(rank)) for rank in owner.ranks if rank != shard)
            sums.append(owner.total(range(len(workers))))
        self.sent_entries.append(entries / len(workers))
        others = len(workers) - 1
        self.sums_bytes.append(float(np.mean([len(data) for data in sums])) * others)
        self.everyone_bytes.append(float(np.mean([bytes_sent(of) for of in objects])) * others)
        digests = {worker.apply(sums) for worker in workers}
        assert len(digests) == 1, "workers differ"
        self.theta = workers[0].theta_g


def make(name: str, theta: Array, workers: int) -> Way:
    """Raises KeyError for a name that is not in NAMES."""
    return _MAKERS[name](theta, workers)


_MAKERS: dict[str, Callable[[Array, int], Way]] = {
    "averaging": lambda theta, workers: Dense(theta, workers, AVERAGING),
    "DiLoCo": lambda theta, workers: Dense(theta, workers, DILOCO),
    "PULSELoCo FP32": lambda theta, workers: Pulse(theta, workers, DILOCO),
    "PULSELoCo BF16": lambda theta, workers: Pulse(theta, workers, DILOCO._replace(values=DType.BF16)),
    "PULSELoCo BF16, no outer momentum":
        lambda theta, workers: Pulse(theta, workers, AVERAGING._replace(values=DType.BF16)),
    "residuals dropped": lambda theta, workers: Dense(theta, workers, DILOCO, dropped=True),
}
NAMES = tuple(_MAKERS)
