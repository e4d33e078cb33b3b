"""Engines of several ranks: their parts, what they compute together, and a short demo with real
daemons."""

from __future__ import annotations

import threading
import unittest
from typing import Any

import torch

from tests.integration.cluster import Cluster
from tools.demo import demo, task, tensor_parallel
from tools.demo.policy import Policy, PolicyConfig
from tools.demo.ranks import Ranks
from tools.demo.verdict import judge

SMALL = PolicyConfig(task.VOCABULARY, task.CONTEXT, width=32, layers=2, heads=4)


class ThreadRank(Ranks):
    """A rank of an engine as a thread of the test."""

    def __init__(self, rank: int, parts: list[Any], barrier: threading.Barrier) -> None:
        super().__init__()
        self.rank, self.size = rank, len(parts)
        self._parts = parts
        self._barrier = barrier

    def total(self, part: torch.Tensor) -> torch.Tensor:
        self._parts[self.rank] = part
        self._barrier.wait(20)
        found = torch.stack(self._parts).sum(0)
        self._barrier.wait(20)
        return found


class PartsTest(unittest.TestCase):
    def test_ranks_with_their_parts_compute_what_the_whole_policy_computes(self) -> None:
        torch.manual_seed(0)
        whole = Policy(SMALL)
        weights = {name: weight.detach() for name, weight in whole.named_parameters()}
        tokens = task.prompts(8, torch.Generator().manual_seed(1))
        for ranks in (2, 4):
            parts: list[Any] = [None] * ranks
            barrier = threading.Barrier(ranks)
            logits: list[Any] = [None] * ranks

            def run(rank: int) -> None:
                policy = Policy(SMALL, ThreadRank(rank, parts, barrier))
                policy.load_state_dict(tensor_parallel.part(weights, rank, ranks))
                logits[rank] = policy(tokens).detach()

            threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for found in logits:
                torch.testing.assert_close(found, whole(tokens).detach(), rtol=1e-4, atol=1e-5)

    def test_what_ranks_map_is_what_the_trainer_declares(self) -> None:
        weights = dict(Policy(SMALL).named_parameters())
        cuts = tensor_parallel.cuts(weights, 2)
        slices: dict[str, list[tuple[int, int]]] = {}
        for rank in range(2):
            policy = Policy(SMALL, ThreadRank(rank, [None] * 2, threading.Barrier(2)))
            for name, source in tensor_parallel.mapping(policy).items():
                slices.setdefault(name, []).extend((s.begin, s.end) for s in source.parts)
        self.assertEqual(set(slices), set(cuts))
        for name, cut in cuts.items():
            bounds = (0, *cut.boundaries, weights[name].shape[cut.dim])
            self.assertEqual(sorted(slices[name]), list(zip(bounds, bounds[1:])), name)

    def test_engines_of_one_rank_have_whole_weights(self) -> None:
        policy = Policy(SMALL)
        weights = dict(policy.named_parameters())
        self.assertEqual(tensor_parallel.cuts(weights, 1), {})
        self.assertEqual(tensor_parallel.mapping(policy), {})
        self.assertEqual(tensor_parallel.part(weights, 0, 1), weights)


class ShortDemoTest(unittest.TestCase):
    def test_trainer_ranks_with_rows_feed_engine_ranks_with_columns_to_the_bit(self) -> None:
        flags = ["--steps=4", "--warm-up=2", "--engines=1", "--ranks=2", "--engine-tp=2"]
        with Cluster(demo.JOB) as cluster:
            run = demo.Demo(demo.parse(flags), cluster)
            try:
                run.warm_up()
                findings = run.train()
            finally:
                run.finish()
        self.assertTrue(all(len(check.sha256) == 2 for check in findings.checks))
        # So few steps show no reward, and a busy machine no share of time.
        outcomes = [o for o in judge(findings) if not o.text.startswith(("mean", "time"))]
        self.assertEqual([o.text for o in outcomes if not o.holds], [])
        self.assertEqual(len(outcomes), 3)


if __name__ == "__main__":
    unittest.main()
