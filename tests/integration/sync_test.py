"""Weights go from trainers to engines, bit for bit, for every way to hand them over and to
map them."""

import types
import unittest
from typing import Any

import numpy as np
import torch

import dws
from dws.plugins.canonical import ModelShape, Parallel
from dws.plugins.mapping import rank_mapping
from tests.integration.integration_case import IntegrationCase, change, eventually

# Sizes of a layer's experts: they are odd, so that parts of a stack have no aligned places.
EXPERTS, INNER, HIDDEN = 3, 5, 7


def tiny_module(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Embedding(50, 64), torch.nn.Linear(64, 300), torch.nn.LayerNorm(300)
    ).to(torch.bfloat16)


def stacked_experts() -> torch.nn.Module:
    """A layer's experts as modules of transformers 5 have them."""
    torch.manual_seed(4)
    module = torch.nn.Module()
    module.config = types.SimpleNamespace(model_type="qwen3_moe")
    module.mlp = torch.nn.Module()
    module.mlp.experts = experts = torch.nn.Module()
    for name, shape in (("gate_up_proj", (2 * INNER, HIDDEN)), ("down_proj", (HIDDEN, INNER))):
        weight = torch.randn(EXPERTS, *shape).to(torch.bfloat16)
        experts.register_parameter(name, torch.nn.Parameter(weight))
    return module


class ResidentTest(IntegrationCase):
    def test_arrays_of_every_type_follow_the_trainer_bit_for_bit(self) -> None:
        self.start()
        random = np.random.default_rng(7)
        weights = {
            "f32": random.standard_normal((300, 257), np.float32),
            "f64": random.standard_normal(1000),
            "f16": random.standard_normal(70_000).astype(np.float16),
            "u8": random.integers(0, 255, (65_537,), np.uint8),
            "i64": random.integers(-9, 9, (3, 4, 5)),
            "scalar": np.array(1.5, np.float32),
            "empty": np.zeros((0, 4), np.float32),
        }
        trainer = self.trainer()
        source = trainer.register(weights)
        engine = self.engine()
        live = engine.attach({name: np.zeros_like(array) for name, array in weights.items()})
        for version, share in ((1, 0.0), (2, 0.01), (3, 0.5), (5, 0.0), (6, 1.0)):
            for array in source.values():
                change(array, random, share)
            trainer.publish(version)
            result = trainer.wait(version)
            self.assertEqual(result.committed, ("receiver-0",))
            grant = self.await_version(engine, version)
            self.assert_same_weights(engine, live, source)
            self.assert_token(grant, [trainer], [source])
            self.assertEqual(grant.stream, trainer.stream)

    def test_a_receiver_takes_the_bytes_of_the_slices_it_holds_and_no_others(self) -> None:
        self.start(receivers=3)
        random = np.random.default_rng(5)
        parts = {name: random.standard_normal((500, 1000), np.float32) for name in "abcd"}
        trainer = self.trainer()
        source = trainer.register(parts)
        fetched = []
        for receiver, held in zip(self.cluster.receivers, ("abcd", "ac", "bd")):
            engine = self.engine(receiver)
            live = engine.attach(
                {name: np.zeros_like(parts[name]) for name in held},
                excluded=[name for name in parts if name not in held],
            )
            fetched.append((receiver, engine, live))
        for version in range(1, 5):
            for array in source.values():
                change(array, random, 0.05)  # more than an announcement can carry
            trainer.publish(version)
            for _, engine, live in fetched:
                self.await_version(engine, version)
                self.assert_same_weights(engine, live, {name: source[name] for name in live})
        whole, one, other = (
            receiver.metric("dws_receiver_fetched_bytes_total", 'kind="delta"')
            for receiver, _, _ in fetched
        )
        # Every part also has the manifest, with the digests of all slices.
        self.assertLess(max(one, other), 0.51 * whole)
        self.assertGreater(one + other, whole)

    def test_a_bf16_module_is_patched_in_place(self) -> None:
        self.start()
        ours, theirs = tiny_module(1), tiny_module(2)
        trainer = self.trainer()
        dws.bind(ours, trainer.register(ours))
        engine = self.engine()
        engine.attach(theirs)
        pointers = [p.data_ptr() for p in theirs.parameters()]
        tokens = torch.arange(50)
        for version in (1, 2, 3):
            with torch.no_grad():
                ours[1].weight.view(-1)[version::100] += 0.125
            trainer.publish(version)
            trainer.wait(version)
            self.await_version(engine, version)
            with engine.running(), torch.no_grad():
                self.assertTrue(torch.equal(ours(tokens), theirs(tokens)))
        self.assertEqual(pointers, [p.data_ptr() for p in theirs.parameters()])

    def test_experts_that_a_module_stacks_arrive_in_the_stack_of_an_engine(self) -> None:
        self.start()
        ours = stacked_experts()
        tensors = dws.declare.from_module(ours)
        trainer = self.trainer()
        source = trainer.register(tensors)
        tensors.bind(source)
        engine = self.engine()
        stacks = {
            "mlp.experts.w13_weight": torch.zeros(EXPERTS, 2 * INNER, HIDDEN, dtype=torch.bfloat16),
            "mlp.experts.w2_weight": torch.zeros(EXPERTS, HIDDEN, INNER, dtype=torch.bfloat16),
        }
        shape = ModelShape(heads=1, kv_heads=1, head_dim=1, vocab=1, experts=EXPERTS)
        shapes = {name: tuple(stack.shape) for name, stack in stacks.items()}
        live = engine.attach(stacks, mapping=rank_mapping(shapes, shape, Parallel()))
        optimizer = torch.optim.SGD(ours.parameters(), lr=0.5)
        experts = ours.mlp.experts
        for version in (1, 2, 3):
            loss = experts.gate_up_proj[version % EXPERTS].float().sum()
            (loss + experts.down_proj.float().square().sum()).backward()
            optimizer.step()
            trainer.publish(version)
            trainer.wait(version)
            grant = self.await_version(engine, version)
            wanted = (experts.gate_up_proj.detach(), experts.down_proj.detach())
            self.assert_same_weights(engine, live, dict(zip(stacks, wanted)))
            self.assert_token(grant, [trainer], [source])

    def test_weights_are_released_before_suspend_and_close_return(self) -> None:
        self.start()
        trainer = self.trainer()
        source = trainer.register({"a": np.zeros((4096, 1024), np.float32)})
        engine = self.engine()
        live = engine.attach({"a": np.zeros((4096, 1024), np.float32)})
        process = self.cluster.receivers[0].process
        assert process is not None

        def mapped() -> bool:
            with open(f"/proc/{process.pid}/maps") as maps:
                return "memfd:dws-engine" in maps.read()

        random = np.random.default_rng(3)
        for version in range(1, 8):  # each time at another point of the receiver's work
            change(source["a"], random, 0.01)
            trainer.publish(version)
            eventually(mapped, lambda: engine.stats().last_error)
            engine.suspend()
            self.assertFalse(mapped())
            held = live["a"].copy()
            engine.refresh()
            self.await_version(engine, version)
            self.assertEqual(np.array_equal(held, live["a"]), np.array_equal(held, source["a"]))
        engine.close()
        self.assertFalse(mapped())

    def test_class_split_deltas_are_smaller_and_give_the_same_bits(self) -> None:
        self.cluster.start_sender(0, "--profile=auto")  # makes them: one receiver asks
        engines = []
        generator = torch.Generator().manual_seed(3)
        # More than an announcement can carry, which would be the same for both receivers.
        masters = torch.randn(3000, 1400, generator=generator) * 0.02
        trainer = self.trainer()
        source = trainer.register({"w": masters.to(torch.bfloat16)})
        for profile in ("fast", "wan"):
            receiver = self.cluster.start_receiver(f"receiver-{profile}", f"--profile={profile}")
            engine = self.engine(receiver)
            engines.append((engine, engine.attach({"w": torch.zeros_like(source["w"])})))
        for version in range(1, 8):
            up = torch.rand(masters.shape, generator=generator) < 0.5
            masters += torch.where(up, 1e-6, -1e-6)  # all elements change by the same amount
            source["w"].copy_(masters)
            trainer.publish(version)
            self.assertEqual(len(trainer.wait(version).committed), 2)
            for engine, live in engines:
                self.await_version(engine, version)
                self.assert_same_weights(engine, live, source)
        # A commit is counted after it was acknowledged.
        counted = lambda: [
            receiver.metric("dws_receiver_fetched_bytes_total", 'kind="delta"')
            for receiver in self.cluster.receivers
        ]
        eventually(lambda: counted()[1] < 0.9 * counted()[0], lambda: f"fast, wan: {counted()}")

    def test_dense_deltas_are_raw_on_request_and_give_the_same_bits(self) -> None:
        self.cluster.start_sender(0)
        engines = []
        trainer = self.trainer()
        source = trainer.register({"w": np.zeros((1000, 500), np.uint32)})
        for profile in ("fast", "direct"):
            receiver = self.cluster.start_receiver(f"receiver-{profile}", f"--profile={profile}")
            engine = self.engine(receiver)
            engines.append((engine, engine.attach({"w": np.zeros((1000, 500), np.uint32)})))
        for version in range(1, 6):
            source["w"][:] += 2 + version % 2  # steps of 1 would be mode A
            trainer.publish(version)
            self.assertEqual(len(trainer.wait(version).committed), 2)
            for engine, live in engines:
                self.await_version(engine, version)
                self.assert_same_weights(engine, live, source)
        fast, direct = self.cluster.receivers
        # The sender makes raw blocks from version 3 on: no receiver had asked when it published 2.
        raw_bytes = 3 * source["w"].nbytes
        eventually(
            lambda: direct.metric("dws_receiver_fetched_bytes_total", 'kind="delta"') > raw_bytes,
            lambda: "no raw blocks",
        )
        self.assertLess(
            fast.metric("dws_receiver_fetched_bytes_total", 'kind="delta"'), 0.2 * raw_bytes
        )

    def test_a_version_with_few_changes_needs_few_bytes(self) -> None:
        self.start()
        trainer = self.trainer()
        source = trainer.register({"w": np.zeros((1000, 1000), np.uint16)})
        engine = self.engine()
        engine.attach({"w": np.zeros((1000, 1000), np.uint16)})
        trainer.publish(1)
        trainer.wait(1)
        source["w"][::100, ::10] += 1
        stats = trainer.publish(2)
        self.assertEqual((stats.changed_elements, stats.total_elements), (1000, 1_000_000))
        result = trainer.wait(2)
        self.assertLess(result.wire_bytes, 4000)
        self.assertGreater(result.publish_to_commit_seconds, 0)


class RingTest(IntegrationCase):
    def test_tensors_put_one_by_one_arrive_and_those_left_out_stay(self) -> None:
        self.start()
        random = np.random.default_rng(9)
        weights = {
            "big": random.integers(0, 2**16, (1900, 1000), np.uint16),
            "cut": random.integers(0, 2**16, (900, 700), np.uint16),
            "small": random.standard_normal(10).astype(np.float32),
        }
        trainer = self.trainer()
        trainer.register_ring(weights, 1 << 19, 2, cuts={"cut": dws.Cut((100, 450), dim=1)})
        engine = self.engine()
        live = engine.attach({name: np.zeros_like(array) for name, array in weights.items()})
        with trainer.version(1) as writer:
            for name, array in weights.items():
                writer.put(name, array)
        trainer.wait(1)
        self.await_version(engine, 1)
        self.assert_same_weights(engine, live, weights)
        change(weights["cut"], random, 0.02)
        with trainer.version(2) as writer:
            writer.put("cut", weights["cut"])
        self.assertGreater(writer.stats.changed_elements, 0)
        trainer.wait(2)
        grant = self.await_version(engine, 2)
        self.assert_same_weights(engine, live, weights)
        self.assert_token(grant, [trainer], [weights])

    def test_a_version_abandoned_halfway_leaves_no_trace(self) -> None:
        self.start()
        weights = {name: np.ones((300, 300), np.float32) for name in "ab"}
        trainer = self.trainer()
        trainer.register_ring(weights, 1 << 19, 2)
        engine = self.engine()
        live = engine.attach({name: np.zeros_like(array) for name, array in weights.items()})
        with trainer.version(1) as writer:
            for name, array in weights.items():
                writer.put(name, array)
        trainer.wait(1)
        with self.assertRaisesRegex(RuntimeError, "the step failed"):
            with trainer.version(2) as writer:
                writer.put("a", weights["a"] * 5)
                raise RuntimeError("the step failed")
        weights["b"][7] = 2
        with trainer.version(2) as writer:
            writer.put("b", weights["b"])
        trainer.wait(2)
        self.await_version(engine, 2)
        self.assert_same_weights(engine, live, weights)


class RanksTest(IntegrationCase):
    def test_two_trainer_ranks_own_rows_of_the_same_tensors(self) -> None:
        self.start(ranks=2)
        ours, theirs = tiny_module(1), tiny_module(2)
        weights = dws.named_tensors(ours)
        cuts = {name: dws.Cut.even(len(weight), 2) for name, weight in weights.items()}
        stream = dws.Stream.new()
        trainers = [self.trainer(rank, 2, stream) for rank in range(2)]
        views = [
            trainer.register(ours, shards={name: (rank, 1) for name in weights}, cuts=cuts)
            for rank, trainer in enumerate(trainers)
        ]
        engine = self.engine()
        engine.attach(theirs)
        for version in (1, 2, 3):
            for rank, trainer in enumerate(trainers):
                for view in views[rank].values():
                    view.view(-1)[version :: 3 + rank] += 0.25
                trainer.publish(version)
            for trainer in trainers:
                trainer.wait(version)
            grant = self.await_version(engine, version)
            whole = {name: torch.cat([part[name] for part in views]) for name in weights}
            self.assert_same_weights(engine, dws.named_tensors(theirs), whole)
            self.assert_token(grant, trainers, views)

    def test_trainer_ranks_with_rows_serve_engines_with_columns(self) -> None:
        self.start(ranks=2)
        random = np.random.default_rng(11)
        weights = random.integers(0, 1 << 16, (7, 600, 300), np.uint16)
        cuts = {"w": [dws.Cut((3,)), dws.Cut((100,), dim=2)]}
        stream = dws.Stream.new()
        trainers = [self.trainer(rank, 2, stream) for rank in range(2)]
        views = [
            trainer.register({"w": weights}, shards={"w": [(rank, 1), (0, 2)]}, cuts=cuts)["w"]
            for rank, trainer in enumerate(trainers)
        ]
        engines, live = [], []
        for rank, (begin, end) in enumerate(((0, 100), (100, 300))):
            engines.append(self.engine(rank=rank, world_size=2))
            held = np.zeros((7, 600, end - begin), np.uint16)
            mapping = {"w": dws.Slice("w", 2, begin, end)}
            live.append(engines[-1].attach({"w": held}, mapping)["w"])
        for version in (1, 2, 3):
            for view in views:
                change(view, random, 0.01)
            for trainer in trainers:
                trainer.publish(version)
            for trainer in trainers:
                trainer.wait(version, policy="all", timeout=60)
            for engine in engines:
                self.await_version(engine, version)
            np.testing.assert_array_equal(np.concatenate(live, 2), np.concatenate(views))

    def test_an_engine_waits_for_the_slower_rank(self) -> None:
        self.start(ranks=2)
        stream = dws.Stream.new()
        trainers = [self.trainer(rank, 2, stream) for rank in range(2)]
        views = [
            trainer.register([dws.TensorSpec(f"t{rank}", "F32", (10,))])
            for rank, trainer in enumerate(trainers)
        ]
        engine = self.engine()
        live = engine.attach({f"t{rank}": np.zeros(10, np.float32) for rank in range(2)})
        for version in (1, 2):
            for trainer in trainers:
                trainer.publish(version)
        self.await_version(engine, 2)
        views[0]["t0"][:] = 3
        trainers[0].publish(3)
        with self.assertRaises(dws.DeadlineError):
            trainers[0].wait(3, timeout=0.5)
        self.assertEqual(engine.wait_ready(0).version, 2)
        trainers[1].publish(3)
        trainers[0].wait(3)
        self.await_version(engine, 3)
        self.assertEqual(live["t0"][0], 3)


class MappingTest(IntegrationCase):
    def published(self) -> tuple[dws.Trainer, Any]:
        self.start()
        random = np.random.default_rng(3)
        weights = {
            name: random.standard_normal(shape, np.float32)
            for name, shape in {"q": (8, 16), "k": (4, 16), "v": (4, 16), "down": (16, 8)}.items()
        }
        trainer = self.trainer()
        source = trainer.register(
            weights,
            cuts={
                "q": dws.Cut.even(8, 2),
                "k": dws.Cut.even(4, 2),
                "v": dws.Cut.even(4, 2),
                "down": dws.Cut.even(8, 2, dim=1),
            },
        )
        trainer.publish(1)
        return trainer, source

    def test_a_fused_projection_is_filled_from_its_parts(self) -> None:
        trainer, source = self.published()
        engine = self.engine()
        live = engine.attach(
            {"qkv": np.zeros((16, 16), np.float32), "down": np.zeros((16, 8), np.float32)},
            mapping={"qkv": dws.Fused(["q", "k", "v"], sizes=[8, 4, 4])},
        )
        for version in (2, 3):
            for array in source.values():
                array[version] += 1
            trainer.publish(version)
            trainer.wait(version)
            self.await_version(engine, version)
            fused = np.concatenate([source[name] for name in "qkv"])
            self.assert_same_weights(engine, live, {"qkv": fused, "down": source["down"]})

    def test_two_tensor_parallel_ranks_hold_slices_and_commit_together(self) -> None:
        trainer, source = self.published()
        engines = [self.engine(rank=rank, world_size=2) for rank in range(2)]
        lives = []
        for rank, engine in enumerate(engines):
            parts = [dws.Slice("q", 0, 4 * rank, 4 * rank + 4)]
            parts += [dws.Slice(name, 0, 2 * rank, 2 * rank + 2) for name in "kv"]
            lives.append(
                engine.attach(
                    {"qkv": np.zeros((8, 16), np.float32), "down": np.zeros((16, 4), np.float32)},
                    mapping={
                        "qkv": dws.Fused(parts),
                        "down": dws.Slice("down", 1, 4 * rank, 4 * rank + 4),
                    },
                )
            )
        for version in (2, 3):
            for array in source.values():
                array[:, version] -= 0.5
            trainer.publish(version)
            trainer.wait(version)
            for rank, (engine, live) in enumerate(zip(engines, lives)):
                self.await_version(engine, version)
                wanted = [source["q"][4 * rank : 4 * rank + 4]]
                wanted += [source[name][2 * rank : 2 * rank + 2] for name in "kv"]
                down = np.ascontiguousarray(source["down"][:, 4 * rank : 4 * rank + 4])
                self.assert_same_weights(
                    engine, live, {"qkv": np.concatenate(wanted), "down": down}
                )

    def test_an_engine_that_leaves_rows_out_is_refused_before_senders_cut_them(self) -> None:
        _, source = self.published()
        engine = self.engine()
        with self.assertRaisesRegex(dws.InvalidArgumentError, "'q'.*attached by no engine rank"):
            engine.attach(
                {"q": np.zeros((4, 16), np.float32)},
                mapping={"q": dws.Slice("q", 0, 2, 6)},
                excluded=["k", "v", "down"],
            )
        self.assertEqual(self.cluster.receivers[0].logged("cuts_asked_for"), 0)

    def test_a_tensor_that_is_neither_mapped_nor_excluded_is_named(self) -> None:
        self.published()
        with self.assertRaisesRegex(dws.InvalidArgumentError, "'down'.*excluded"):
            self.engine().attach({"q": np.zeros((8, 16), np.float32)}, excluded=["k", "v"])
        with self.assertRaisesRegex(dws.InvalidArgumentError, "'nothing'"):
            self.engine().attach({"nothing": np.zeros((8, 16), np.float32)})
        with self.assertRaisesRegex(dws.InvalidArgumentError, "expected \\[8, 16\\]"):
            self.engine().attach({"q": np.zeros((8, 15), np.float32)}, excluded=["k", "v", "down"])
        with self.assertRaisesRegex(dws.InvalidArgumentError, "F64"):
            self.engine().attach({"q": np.zeros((8, 16))}, excluded=["k", "v", "down"])

    def test_derived_tensors_are_rebuilt_before_the_engine_resumes(self) -> None:
        trainer, source = self.published()
        engine = self.engine()
        norm = np.zeros(1)
        live: dict[str, Any] = {}

        def rebuild(version: int) -> None:
            norm[0] = np.abs(live["q"]).sum() if live else -1

        live.update(
            engine.attach(
                {"q": np.zeros((8, 16), np.float32)},
                excluded=["k", "v", "down"],
                post_commit=rebuild,
            )
        )
        self.await_version(engine, 1)
        source["q"][0] = 9
        trainer.publish(2)
        trainer.wait(2)
        self.await_version(engine, 2)
        self.assertEqual(norm[0], np.abs(source["q"]).sum())


if __name__ == "__main__":
    unittest.main()
