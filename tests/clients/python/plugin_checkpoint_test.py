"""dws.plugins.checkpoint: detects an engine whose weights do not have the form of the mapping."""

from __future__ import annotations

import itertools
import json
import os
import struct
import tempfile
import unittest
from unittest import mock

import numpy as np
import torch

import dws
from dws import checkpoint_trainer
from dws.checkpoint_trainer import CheckpointTrainer, LocalVersion
from dws.mapping import Part, Parts, Slice, Viewed
from dws.plugins.canonical import ModelShape, Parallel

from dws.plugins.checkpoint import fill, require_as_loaded
from dws.plugins.checkpoint_files import INDEX, CheckpointFiles
from dws.plugins.fingerprint import fingerprint
from dws.plugins.mapping import rank_mapping
from dws.plugins.padding import with_zeros
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

    def test_a_transposed_parameter_is_compared_and_filled_as_the_checkpoint_has_it(self) -> None:
        experts = torch.arange(2 * 4 * 6, dtype=torch.bfloat16).reshape(2, 4, 6)
        save_checkpoint(os.path.join(self.folder, "model.safetensors"), {"up": experts})
        files = CheckpointFiles(self.folder)
        box = Part(Slice("up", 2, 2, 5), [(0, 2), (0, 4), (0, 3)])
        mapping = {"weight": Viewed(Parts([box]), (2, 5, 4), (0, 2, 1))}
        live = torch.ones(2, 5, 4, dtype=torch.bfloat16)
        with self.assertRaisesRegex(dws.LayoutError, "'weight'"):
            require_as_loaded({"weight": live}, mapping, files)
        fill({"weight": live}, mapping, files)
        self.assertTrue(torch.equal(live[:, :3], experts[:, :, 2:5].permute(0, 2, 1)))
        self.assertTrue((live[:, 3:] == 0).all())
        require_as_loaded({"weight": live}, mapping, files)

    def test_padding_has_to_be_zero_and_becomes_zero_beside_the_engine(self) -> None:
        def module(value: float) -> torch.nn.Module:
            made = torch.nn.Module()
            made.weight = torch.nn.Parameter(torch.full((2, 5, 4), value), requires_grad=False)
            return made

        mapping = {"weight": Viewed(Parts([Part("up", [(0, 2), (0, 4), (0, 3)])]), (2, 5, 4), (0, 2, 1))}
        engine, padded = module(7.0), {"weight": 16}
        with self.assertRaisesRegex(dws.LayoutError, r"'weight' \[2, 5, 4\]: load_weights leaves 16 of its elements"):
            with_zeros(engine, engine, mapping, padded)
        named_tensors(engine)["weight"].data[:, 3:] = 0
        self.assertEqual(with_zeros(engine, engine, mapping, padded), [])
        self.assertTrue((named_tensors(engine)["weight"][:, :3] == 7.0).all())
        kept = module(3.0)
        self.assertEqual(with_zeros(kept, engine, mapping, padded), ["weight"])
        self.assertTrue((named_tensors(kept)["weight"] == 0).all())
        self.assertEqual(with_zeros(engine, engine, mapping, {}), [])

    def test_what_commits_do_not_write_of_kept_tensors_is_zero(self) -> None:
        engine, kept = torch.nn.Module(), torch.nn.Module()
        for module in (engine, kept):
            for name in ("whole", "part", "constant"):
                module.register_parameter(name, torch.nn.Parameter(torch.full((3, 2), 7.0)))
        mapping = {"whole": "a", "part": Parts([Part("b", [(0, 2), (0, 2)])]), "constant": None}
        self.assertEqual(with_zeros(kept, engine, mapping, {}), ["part", "constant"])
        self.assertEqual([float(kept.get_parameter(name).sum()) for name in mapping], [42.0, 0.0, 0.0])
        self.assertEqual(with_zeros(engine, engine, mapping, {}), [])
        self.assertEqual([float(engine.get_parameter(name).sum()) for name in mapping], [42.0] * 3)

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

    def test_a_router_that_the_engine_keeps_in_fp32_is_compared_after_the_cast(self) -> None:
        for in_file, in_engine in itertools.permutations((torch.bfloat16, torch.float32, torch.float16), 2):
            weight = torch.linspace(-3, 5, 24).reshape(4, 6).to(in_file)
            save_checkpoint(os.path.join(self.folder, "model.safetensors"), {"gate": weight, "b": weight[0]})
            files = CheckpointFiles(self.folder)
            live = {"router": weight[2:].to(in_engine), "own": weight[0]}
            mapping = {"router": Slice("gate", 0, 2, 4), "own": "b"}
            require_as_loaded(live, mapping, files)
            other = {"router": torch.zeros(2, 6, dtype=in_engine), "own": torch.zeros(6, dtype=in_file)}
            fill(other, mapping, files)
            self.assertTrue(torch.equal(other["router"], live["router"]))
            live["router"][1, 3] += 0.125
            types = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16"}
            with self.assertRaisesRegex(
                dws.LayoutError,
                rf"1 param.*'router' \(gate, {types[in_file]} in the file, {types[in_engine]} in the engine\)",
            ):
                require_as_loaded(live, mapping, files)

    def test_floats_that_the_engine_keeps_as_integers_of_their_size_are_compared_as_bits(self) -> None:
        weight = torch.linspace(-3, 5, 24, dtype=torch.bfloat16)
        save_checkpoint(os.path.join(self.folder, "model.safetensors"), {"packed": weight})
        files = CheckpointFiles(self.folder)
        live = {"packed": weight.view(torch.int16).clone()}
        require_as_loaded(live, {}, files)
        other = {"packed": torch.zeros(24, dtype=torch.int16)}
        fill(other, {}, files)
        self.assertTrue(torch.equal(other["packed"], live["packed"]))
        live["packed"][5] += 1
        with self.assertRaisesRegex(dws.LayoutError, "packed, BF16 in the file, I16 in the engine"):
            require_as_loaded(live, {}, files)


class FilesTest(unittest.TestCase):
    """Which files of a folder count: as tests/common/formats/safetensors/checkpoint_test.cc."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def save(self, file: str, **values: float) -> None:
        tensors = {name: torch.full((2,), float(value)) for name, value in values.items()}
        save_checkpoint(os.path.join(self.folder, file), tensors)

    def index(self, file: str = INDEX, **weight_map: str) -> None:
        with open(os.path.join(self.folder, file), "w", encoding="utf-8") as out:
            json.dump({"metadata": {}, "weight_map": weight_map}, out)

    def values(self) -> dict[str, float]:
        files = CheckpointFiles(self.folder)
        return {name: float(files.bits(name).view(np.float32)[0]) for name in files.canonical()}

    def refused(self, why: str) -> None:
        with self.assertRaisesRegex(dws.InvalidArgumentError, why):
            CheckpointFiles(self.folder)

    def test_the_index_decides_whatever_else_the_folder_has(self) -> None:
        self.save("model-00001-of-00002.safetensors", a=1)
        self.save("model-00002-of-00002.safetensors", b=2)
        self.index(a="model-00001-of-00002.safetensors", b="model-00002-of-00002.safetensors")
        self.save("model.safetensors", a=7, b=7)  # saved before with one shard
        self.save("model-00003-of-00003.safetensors", c=7)
        self.save("consolidated.safetensors", wq=7)
        self.index("consolidated.safetensors.index.json", wq="consolidated.safetensors")
        self.index("pytorch_model.bin.index.json", wq="pytorch_model.bin")
        self.assertEqual(self.values(), {"a": 1, "b": 2})

    def test_an_index_of_another_name_decides_where_it_is_the_only_one(self) -> None:
        self.save("one.safetensors", a=1)
        self.save("leftover.safetensors", a=7, b=7)
        self.index("x.safetensors.index.json", a="one.safetensors")
        self.index(".hidden.safetensors.index.json", a="gone.safetensors")
        self.assertEqual(self.values(), {"a": 1})
        self.index("y.safetensors.index.json", a="one.safetensors")
        self.refused("x.safetensors.index.json and y.safetensors.index.json, expected model.safe")
        self.save("model.safetensors", c=3)  # the single file of engines: now all count
        self.refused("no index, and tensor 'a' is in two files, leftover.safetensors and one.safe")
        self.index(c="model.safetensors")
        self.assertEqual(self.values(), {"c": 3})

    def test_consolidated_files_count_only_where_there_are_no_others(self) -> None:
        self.save("consolidated-00001-of-00002.safetensors", wq=1)
        self.save("consolidated-00002-of-00002.safetensors", wk=2, left=7)
        self.assertEqual(self.values(), {"wq": 1, "wk": 2, "left": 7})
        self.index("consolidated.safetensors.index.json", wq="consolidated-00001-of-00002.safetensors")
        self.assertEqual(self.values(), {"wq": 1})
        self.save("model.safetensors", a=3)
        self.assertEqual(self.values(), {"a": 3})

    def test_an_index_that_its_files_do_not_fit_is_refused_by_name(self) -> None:
        self.save("one.safetensors", a=1, b=2)
        self.save("two.safetensors", c=3)
        for weight_map, why in (
            ({"a": "one.safetensors"}, "one.safetensors has a tensor 'b', which the index does not name"),
            ({"a": "one.safetensors", "b": "two.safetensors"}, "one.safe.* 'b', which the index says is in two.safe"),
            (dict.fromkeys("abd", "one.safetensors"), "one.safetensors has no tensor 'd', but model.safe.*json says"),
            ({"a": "gone.safetensors"}, "no file gone.safetensors, which model.safetensors.index.json names"),
            ({"a": "../one.safetensors"}, "'a' is listed in '../one.safetensors', expected"),
        ):
            self.index(**weight_map)
            self.refused(why)
        for text in ("{}", "[", '{"weight_map": []}', '{"weight_map": {"a": "o", "a": "p"}}'):
            with open(os.path.join(self.folder, INDEX), "w", encoding="utf-8") as file:
                file.write(text)
            self.refused("index.json' is no index with a weight_map")

    def test_without_an_index_no_tensor_may_be_there_twice_and_no_shard_be_missing(self) -> None:
        self.save("model-00001-of-00002.safetensors", a=1)
        self.refused("of 2 numbered files 1, the first of them 1")
        self.save("model-00002-of-00002.safetensors", b=2)
        self.assertEqual(self.values(), {"a": 1, "b": 2})
        self.save("model.safetensors", b=7)
        self.refused("tensor 'b' is in two files, model-00002-of-00002.safetensors and model.safe")

    def test_files_that_are_being_replaced_are_read_again_later(self) -> None:
        self.save("one.safetensors", a=1)
        self.index(a="one.safetensors", b="one.safetensors")
        now = LocalVersion(1, {"a": "0"}, "x")
        follower = CheckpointTrainer(self.folder, mock.Mock())
        for later in (None, LocalVersion(2, {"a": "1"}, "y")):
            with mock.patch.object(checkpoint_trainer, "settled_version", side_effect=[now, later]):
                self.assertIsNone(follower.step())
        with mock.patch.object(checkpoint_trainer, "settled_version", return_value=now):
            with self.assertRaisesRegex(dws.InvalidArgumentError, "no tensor 'b'"):
                follower.step()

    def test_a_header_that_does_not_fit_its_file_is_refused(self) -> None:
        for entry, why in (
            ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "'a' F32 .2. would be the bytes .0, 4. of 8"),
            ({"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, "the bytes .0, 12. of 8"),
            ({"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}, "'a' has the type F4, expected"),
        ):
            text = json.dumps({"a": entry}).encode()
            with open(os.path.join(self.folder, "model.safetensors"), "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + bytes(8))
            self.refused(why)


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
