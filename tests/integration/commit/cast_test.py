"""Engines that keep their router in FP32, attached by dws.plugins, with a trainer that publishes BF16 and real daemons."""

from __future__ import annotations

import os
import tempfile
import unittest
from typing import Any

import torch

from dws.plugins.agreed_mapping import Weights
from dws.plugins.attach import AttachedRank, AttachOptions, EngineRank
from dws.plugins.canonical import Parallel
from dws.torch_module import named_tensors
from tests.clients.python.engine_models import Config, PaddedModel, checkpoint, save_checkpoint
from tests.integration.integration_case import WAIT_SECONDS, IntegrationCase

# Two ranks: the router is whole on both, and of the fused projection, which is widened too, each has its rows.
CONFIG = Config(num_hidden_layers=1, num_experts=4)
WIDE = ("model.layers.0.mlp.gate.weight", "model.layers.0.self_attn.qkv_proj.weight")
RANKS = 2


def model(rank: int, weights: Any = None) -> PaddedModel:
    """A rank's parameters, as the engine has loaded them."""
    made = PaddedModel(CONFIG, rank, RANKS)
    for name in WIDE:
        made.tensor(name).data = made.tensor(name).data.float()
    made.load_weights(weights)
    return made


class CastTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.weights = checkpoint(CONFIG, seed=3)
        save_checkpoint(os.path.join(self.folder, "model.safetensors"), self.weights)

    def attached(self, rank: int) -> tuple[PaddedModel, AttachedRank]:
        engine = model(rank, self.weights)
        made = AttachedRank(
            self.cluster.receivers[0].socket,
            engine,
            CONFIG,
            EngineRank(rank, RANKS, Parallel(rank, RANKS)),
            lambda values: list(values),  # ranks of this test take no steps together
            AttachOptions(timeout=WAIT_SECONDS, checkpoint=self.folder),
            Weights(self.folder),
        )
        self.addCleanup(made.close)
        return engine, made

    def assert_as_loaded(self, live: PaddedModel, attached: AttachedRank, weights: Any, version: int) -> None:
        """Checks that the rank has the bits of one that has loaded `weights`."""
        self.await_version(attached.engine, version)
        fresh = named_tensors(model(live.tp_rank, weights))
        self.assert_same_weights(attached.engine, named_tensors(live), fresh)

    def test_every_version_has_the_bits_that_a_fresh_engine_loads(self) -> None:
        self.start()
        trainer = self.trainer()
        views = trainer.register(self.weights)
        ranks = [self.attached(rank) for rank in range(RANKS)]
        for _, attached in ranks:
            self.assertIn("2 parameters are cast after each commit", attached.mapping_by)
        random = torch.Generator().manual_seed(4)
        for version in range(1, 5):
            for name, view in views.items():
                # The last version changes the router alone.
                if version < 4 or name == WIDE[0]:
                    view[torch.rand(view.shape, generator=random) < 0.05] *= -1.5
            trainer.publish(version)
            trainer.wait(version, timeout=WAIT_SECONDS)
            for live, attached in ranks:
                self.assert_as_loaded(live, attached, views, version)

    def test_a_parameter_that_something_else_changed_is_right_after_the_next_commit(self) -> None:
        self.start()
        trainer = self.trainer()
        views = trainer.register(self.weights)
        ranks = [self.attached(rank) for rank in range(RANKS)]
        trainer.publish(1)
        trainer.wait(1, timeout=WAIT_SECONDS)
        live, attached = ranks[0]
        self.await_version(attached.engine, 1)
        with attached.engine.running(WAIT_SECONDS), torch.no_grad():
            live.tensor(WIDE[0])[1, 1] += 2**-20
        self.cluster.receivers[0].kill()
        self.cluster.receivers[0].start()
        views["model.norm.weight"].mul_(2)
        trainer.publish(2)
        trainer.wait(2, timeout=WAIT_SECONDS)
        for live, attached in ranks:
            self.assert_as_loaded(live, attached, views, 2)

    def test_a_trainer_that_publishes_the_router_in_fp32_needs_no_cast(self) -> None:
        self.start()
        trainer = self.trainer()
        as_wide = (WIDE[0], *(WIDE[1].replace("qkv", letter) for letter in "qkv"))
        views = trainer.register({n: t.float() if n in as_wide else t for n, t in self.weights.items()})
        with torch.no_grad():
            views[WIDE[0]] += 2**-20
        ranks = [self.attached(rank) for rank in range(RANKS)]
        trainer.publish(1)
        trainer.wait(1, timeout=WAIT_SECONDS)
        for live, attached in ranks:
            self.assertNotIn("cast", attached.mapping_by)
            self.assert_as_loaded(live, attached, views, 1)


if __name__ == "__main__":
    unittest.main()
