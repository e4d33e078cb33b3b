"""An engine of two tensor-parallel ranks, attached by dws.vllm in a stand-in for vLLM, with real daemons."""

from __future__ import annotations

import os
import unittest
from concurrent import futures
from typing import Any

import numpy as np
import torch

from dws.plugins.canonical import ModelShape, slice_grid
from tests.clients.python.engine_models import Checkpoint, Config, checkpoint
from tests.integration.integration_case import WAIT_SECONDS, IntegrationCase
from tests.integration.plugin_worker import DTYPE, WorkerProcess

CONFIG = Config(tie_word_embeddings=False, num_key_value_heads=2)
RANKS = 2


class PluginTest(IntegrationCase):
    def start_engine(self, v2: bool = False) -> None:
        store = os.path.join(self.cluster.folder, "ranks")
        self.workers = [WorkerProcess(rank, RANKS, store, CONFIG, v2) for rank in range(RANKS)]
        for worker in self.workers:
            self.addCleanup(worker.stop)
        for worker in self.workers:
            self.addCleanup(worker.end)

    def rpc(self, method: str, **kwargs: Any) -> list[Any]:
        """Calls a method on all ranks at once, like vLLM's collective_rpc: a reply behind an error is left for
        the next call."""
        for worker in self.workers:
            worker.send(method, **kwargs)
        return [worker.receive() for worker in self.workers]

    def start_trainer(self, weights: Checkpoint) -> tuple[Any, dict[str, Any]]:
        trainer = self.trainer()
        shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        cuts = slice_grid(shapes, ModelShape.from_config(CONFIG), [(1, 1), (RANKS, 1), (4, 1)])
        return trainer, trainer.register(weights, cuts=cuts)

    def step(self) -> tuple[Any, Any]:
        """One engine step, which is two calls, as vLLM's executor makes them. Returns the logits of sampled
        tokens and of prompt tokens, which are equal on both ranks."""
        self.assertEqual(self.rpc("execute_model"), [None, None])
        first, second = self.rpc("sample_tokens")
        for mine, others in zip(first, second):
            self.assertTrue(np.array_equal(mine, others))
        sampled, prompt = first
        return sampled, prompt

    def references(self, published: dict[int, Checkpoint]) -> dict[int, Any]:
        """version -> its logits, from a model that loads it; the last one is compared with the live weights."""
        found = {}
        for version, weights in published.items():
            for reference in self.rpc("reference", weights=weights):
                found[version] = reference["logits"]
                if version == max(published):
                    # The padding's noise is the same in both models: it has the same seed.
                    self.assertEqual(reference["differs"], [])
        return found

    def assert_whole(self, steps: list[tuple[Any, Any]], expected: dict[int, Any]) -> set[int]:
        """Checks that every step used one version only. Returns the versions seen."""
        seen = set()
        for number, step in enumerate(steps):
            versions = [
                {v for v, logits in expected.items() if np.array_equal(part, logits)}
                for part in step
            ]
            self.assertEqual(len(set.intersection(*versions)), 1, f"step {number}: of {versions}")
            seen |= versions[0]
        return seen

    def test_steps_of_two_ranks_run_with_one_version_and_its_exact_weights(self) -> None:
        self.start()
        weights = checkpoint(CONFIG, seed=5, dtype=DTYPE)
        trainer, views = self.start_trainer(weights)
        self.start_engine()
        attached = self.rpc("dws_attach", socket=self.cluster.receivers[0].socket, timeout=60)
        self.assertEqual([status["rank"] for status in attached], [0, 1])
        random = torch.Generator().manual_seed(1)
        published: dict[int, Checkpoint] = {}
        steps: list[tuple[Any, Any]] = []
        for version in (1, 2, 3):
            for view in views.values():
                view[torch.rand(view.shape, generator=random) < 0.05] *= 1.5
            published[version] = {name: view.clone() for name, view in views.items()}
            trainer.publish(version)
            newest = 0
            # Steps continue while the version arrives: commits fall between them, on both ranks at once.
            while newest < version:
                steps.append(self.step())
                newest = min(status["version"] or 0 for status in self.rpc("dws_status"))
            steps.append(self.step())
            trainer.wait(version, timeout=WAIT_SECONDS)
        expected = self.references(published)
        self.assertEqual(self.assert_whole(steps, expected), {1, 2, 3})
        self.assertFalse(np.array_equal(expected[2], expected[3]))
        tokens = {status["state_token"] for status in self.rpc("dws_status")}
        self.assertEqual(len(tokens), 1)

    def test_frequent_versions_neither_tear_a_step_nor_deadlock_the_ranks(self) -> None:
        self.versions_keep_coming(v2=False)

    def test_frequent_versions_tear_no_step_of_the_v2_model_runner(self) -> None:
        self.versions_keep_coming(v2=True)

    def versions_keep_coming(self, v2: bool) -> None:
        """Each rank learns of a pause separately: without an agreement one of them soon waits in the
        middle of a pass for the other, which waits for the commit."""
        self.start()
        trainer, views = self.start_trainer(checkpoint(CONFIG, seed=6, dtype=DTYPE))
        self.start_engine(v2)
        self.rpc("dws_attach", socket=self.cluster.receivers[0].socket, step_timeout=30)
        trainer.publish(1)
        self.rpc("dws_wait_ready", timeout=WAIT_SECONDS)
        published = {1: {name: view.clone() for name, view in views.items()}}

        def publish_all() -> None:
            for version in range(2, 41):
                for view in views.values():
                    view.view(-1)[version::97] *= 1.5
                published[version] = {name: view.clone() for name, view in views.items()}
                trainer.publish(version)
                trainer.wait(version, timeout=WAIT_SECONDS)

        steps = []
        with futures.ThreadPoolExecutor(1) as threads:
            publishing = threads.submit(publish_all)
            while not publishing.done():
                steps.append(self.step())
            publishing.result()
        self.assertGreater(len(self.assert_whole(steps, self.references(published))), 1)

    def test_updates_of_the_weight_transfer_backend_fall_where_they_are_asked_for(self) -> None:
        self.start()
        trainer, views = self.start_trainer(checkpoint(CONFIG, seed=7, dtype=DTYPE))
        self.start_engine()
        init_info = {"socket": self.cluster.receivers[0].socket}
        self.rpc("init_weight_transfer_engine", init_info=init_info)
        own = self.step()

        def update(version: int, timeout: float) -> None:
            self.rpc("start_weight_update")
            update_info = {"version": version, "stream": str(trainer.stream), "timeout": timeout}
            self.rpc("update_weights", update_info=update_info)
            self.rpc("finish_weight_update")

        for _ in range(2):
            with self.assertRaisesRegex(RuntimeError, "1 was not committed.*nothing was written"):
                update(1, 1.0)
            self.assertTrue(np.array_equal(self.step(), own))
        published: dict[int, Checkpoint] = {}
        for version in (1, 2, 3):
            for view in views.values():
                view.view(-1)[version::7] *= 1.5
            published[version] = {name: view.clone() for name, view in views.items()}
            trainer.publish(version)
            before = self.step()
            update(version, WAIT_SECONDS)
            if version > 1:
                with self.assertRaisesRegex(RuntimeError, "9 was not committed"):
                    update(9, 0.2)
            steps = [self.step(), self.step()]
            self.assertEqual(self.assert_whole(steps, self.references(published)), {version})
            self.assertFalse(np.array_equal(before, steps[0]))

    def test_if_one_rank_cannot_attach_no_rank_is_attached(self) -> None:
        self.start()
        self.start_trainer(checkpoint(CONFIG, seed=5, dtype=DTYPE))
        self.start_engine()
        good, bad = self.cluster.receivers[0].socket, self.cluster.folder + "/none.sock"
        for sockets, message in (((good, bad), "none.sock"), ((bad, good), "another rank")):
            for worker, socket in zip(self.workers, sockets):
                worker.send("dws_attach", socket=socket, timeout=60)
            self.assertIsNone(self.workers[0].receive())
            with self.assertRaisesRegex(RuntimeError, message):
                self.workers[1].receive()
            with self.assertRaisesRegex(RuntimeError, "not attached"):
                self.rpc("dws_status")
        attached = self.rpc("dws_attach", socket=good, timeout=60)
        self.assertEqual([status["rank"] for status in attached], [0, 1])

    def test_a_grid_that_the_trainer_did_not_declare_is_made_by_its_sender(self) -> None:
        self.start()
        trainer = self.trainer()
        trainer.register(checkpoint(CONFIG, seed=5, dtype=DTYPE))
        trainer.publish(1)
        self.start_engine()
        attached = self.rpc("dws_attach", socket=self.cluster.receivers[0].socket, timeout=60)
        self.assertEqual([status["rank"] for status in attached], [0, 1])
        trainer.wait(1, timeout=60)


if __name__ == "__main__":
    unittest.main()
