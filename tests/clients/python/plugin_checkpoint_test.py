"""dws.plugins.checkpoint: detects an engine whose weights do not have the form of the mapping."""

from __future__ import annotations

import os
import struct
import tempfile
import unittest

import torch

import dws
from dws.plugins.canonical import ModelShape, Parallel
from dws.plugins.checkpoint import CheckpointFiles, require_as_loaded
from dws.plugins.fingerprint import fingerprint
from dws.plugins.mapping import rank_mapping
from dws.torch_module import named_tensors
from tests.clients.python.engine_models import (
    Checkpoint,
    Config,
    RankModel,
    checkpoint,
    save_checkpoint,
)

LLAMA = Config()
MOE = Config(num_experts=6, tie_word_embeddings=True)


class CheckpointTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def saved(self, config: Config, seed: int = 1) -> Checkpoint:
        weights = checkpoint(config, seed)
        names = sorted(weights)
        half = len(names) // 2
        for index, part in enumerate((names[:half], names[half:])):
            path = os.path.join(self.folder, f"model-{index + 1:05d}-of-00002.safetensors")
            save_checkpoint(path, {name: weights[name] for name in part})
        return weights

    def check(self, model: RankModel, rank: Parallel) -> None:
        tensors = named_tensors(model)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        mapping = rank_mapping(shapes, ModelShape.from_config(model.config), rank)
        require_as_loaded(tensors, mapping, CheckpointFiles(self.folder))

    def test_a_checkpoint_as_the_engine_loads_it_passes_on_every_rank(self) -> None:
        for config, tp, ep in ((LLAMA, 1, 1), (LLAMA, 4, 1), (MOE, 2, 1), (MOE, 4, 2)):
            weights = self.saved(config)
            for rank in range(tp):
                model = RankModel(config, rank, tp, ep)
                model.load_weights(weights)
                self.check(model, Parallel(rank, tp, ep))

    def test_halves_that_a_kernel_swapped_are_detected(self) -> None:
        model = RankModel(MOE, 0, 2)
        model.load_weights(self.saved(MOE))
        stack = model.tensor("model.layers.1.mlp.experts.w13_weight").data
        gate, up = stack.chunk(2, dim=1)
        stack.copy_(torch.cat([up, gate], dim=1))
        with self.assertRaisesRegex(
            dws.LayoutError, r"1 parameters.*'model.layers.1.mlp.experts.w13_weight' \(model"
        ):
            self.check(model, Parallel(0, 2))

    def test_another_checkpoint_and_a_wrong_rank_are_detected(self) -> None:
        model = RankModel(LLAMA, 1, 2)
        model.load_weights(checkpoint(LLAMA, seed=1))
        self.saved(LLAMA, seed=2)
        with self.assertRaisesRegex(dws.LayoutError, r"19 parameters .* \.\.\."):
            self.check(model, Parallel(1, 2))
        model.load_weights(self.saved(LLAMA, seed=1))
        with self.assertRaisesRegex(dws.LayoutError, "parameters differ from what"):
            self.check(model, Parallel(0, 2))

    def test_malformed_files_and_missing_tensors_are_named(self) -> None:
        with self.assertRaisesRegex(dws.InvalidArgumentError, "has no \\*.safetensors"):
            CheckpointFiles(self.folder)
        path = os.path.join(self.folder, "model.safetensors")
        save_checkpoint(path, {"other": torch.zeros(2, 0, dtype=torch.bfloat16)})
        files = CheckpointFiles(self.folder)
        self.assertEqual(files.bits("other").shape, (2, 0))
        with self.assertRaisesRegex(dws.LayoutError, "no tensor 'model.norm.weight'"):
            files.bits("model.norm.weight")
        for content in (b"", b"\xff" * 64, struct.pack("<Q", 9) + b"{]"):
            with open(path, "wb") as file:
                file.write(content)
            with self.assertRaisesRegex(dws.InvalidArgumentError, "model.safetensors' is no"):
                CheckpointFiles(self.folder)


class FingerprintTest(unittest.TestCase):
    def test_it_changes_with_each_bit_and_with_the_places_of_equal_weights(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200)).bfloat16()
        seen = {fingerprint(model)}
        self.assertIn(fingerprint(model), seen)
        bits = model[0].weight.data.view(torch.int16)
        with torch.no_grad():
            for change in (
                lambda: bits[0, 0].bitwise_xor_(1),
                lambda: bits[199, 299].bitwise_xor_(-(1 << 15)),
                lambda: bits.__setitem__([7, 150], bits[[150, 7]]),
                lambda: bits.copy_(bits.roll(1)),
                lambda: model[1].num_batches_tracked.add_(1),
            ):
                change()
                self.assertNotIn(now := fingerprint(model), seen)
                seen.add(now)

    def test_it_leaves_the_weights_as_they_are(self) -> None:
        model = torch.nn.Module()
        for dtype in (torch.int8, torch.bfloat16, torch.float32, torch.float64, torch.int64):
            model.register_buffer(f"of_{str(dtype).rpartition('.')[2]}", torch.arange(1, 6).to(dtype))
        fingerprint(model)
        for name, buffer in model.named_buffers():
            self.assertEqual(buffer.tolist(), [1, 2, 3, 4, 5], name)


if __name__ == "__main__":
    unittest.main()
