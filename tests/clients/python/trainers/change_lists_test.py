"""The lists of changes that a client writes for its sender: every kind of array, in the format of proto/trainer.proto."""

from __future__ import annotations

import os
import random
import unittest
from typing import Any
from unittest import mock

import numpy as np
import torch

from dws.change_lists import ChangeLists, Changes
from dws.layout import RankLayout, TensorSpec
from tests.clients.python.torch_gpu import OwnMemory, TorchGpu

SEED = int(os.environ.get("DWS_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
DTYPES = {"a": "BF16", "b": "F32", "c": "U8", "d": "F64", "e": "F8_E4M3", "f": "BF16", "g": "I16"}


class ChangeListsTest(unittest.TestCase):
    def setUp(self) -> None:
        print(f"seed {SEED}")
        self.random = np.random.default_rng(SEED)
        self.gpu = TorchGpu(OwnMemory())
        self.layout = RankLayout([TensorSpec(n, d, (500, 3)) for n, d in DTYPES.items()])
        self.lists = ChangeLists(self.layout, DTYPES)
        self.addCleanup(self.lists.close)

    def raw(self, name: str) -> tuple[np.ndarray[Any, Any], ...]:
        """A list as unsigned bits."""
        shard = self.layout.shard(name)
        position = np.flatnonzero(self.random.random(1500) < 0.1)
        bits = self.random.integers(0, 256, (2, len(position), shard.tensor.dtype.itemsize), np.uint8)
        return (position, *(each.reshape(-1).view(shard.tensor.dtype.raw) for each in bits))

    def passed(self, raw: tuple[np.ndarray[Any, Any], ...]) -> Changes:
        """The same list in arrays of a random kind."""
        kind = self.random.integers(0, 4)
        position, before, after = raw
        if kind == 0:
            return Changes(position.astype(np.uint32), before, after)
        if kind == 1:
            return Changes(position, *(v.view(f"f{v.itemsize}" if v.itemsize > 1 else "i1") for v in raw[1:]))
        signed = [torch.from_numpy(v.view(f"i{v.itemsize}").copy()) for v in (position, before, after)]
        if kind == 2:
            return Changes(signed[0].to(torch.int32), *signed[1:])
        return Changes(*(self.gpu.tensor(each) for each in signed))

    def read(self, count: int, offset: int, itemsize: int) -> list[np.ndarray[Any, Any]]:
        memory = self.lists.region.bytes()
        found = []
        for width in (4, itemsize, itemsize):
            found.append(memory[offset : offset + count * width].view(f"u{width}"))
            offset += -(-count * width // 8) * 8
        return found

    def test_lists_of_every_kind_are_written_in_one_format(self) -> None:
        for _ in range(20):
            raw = {n: self.raw(n) for n in DTYPES if self.random.random() < 0.8}
            put = self.lists.put({**{n: self.passed(each) for n, each in raw.items()}, "g": None})
            raw.pop("g", None)
            names = [self.layout.shards[shard].tensor.name for shard, _, _ in put]
            self.assertEqual(names, sorted(raw))
            for name, (_, count, offset) in zip(names, put):
                self.assertEqual((count, offset % 8), (len(raw[name][0]), 0))
                itemsize = self.layout.shard(name).tensor.dtype.itemsize
                for wanted, found in zip(raw[name], self.read(count, offset, itemsize)):
                    np.testing.assert_array_equal(found, wanted)

    def test_weights_of_the_host_have_no_lists(self) -> None:
        lists = ChangeLists(self.layout, ["b"])
        self.addCleanup(lists.close)
        put = lists.put({name: self.passed(self.raw(name)) for name in DTYPES})
        self.assertEqual([shard for shard, _, _ in put], [1])

    def test_neighbouring_lists_of_a_device_are_copied_at_once(self) -> None:
        lists = {n: self.raw(n) for n in DTYPES}
        on_gpu = {
            n: Changes(*(self.gpu.tensor(torch.from_numpy(v.view(f"i{v.itemsize}"))) for v in each))
            for n, each in lists.items()
        }
        on_gpu["d"] = Changes(*lists["d"])  # of the host, in between
        with mock.patch.object(torch, "cat", wraps=torch.cat) as joined:
            self.lists.put(on_gpu)
        self.assertEqual(joined.call_count, 2)


if __name__ == "__main__":
    unittest.main()
