"""Readers of slime's folders keep a quantised checkpoint: the sender writes a view there. Every byte is compared with numpy. One
reader is independent of DWS, the other a receiver."""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest
from typing import Any, Optional

import numpy as np

import dws
from tests.common.quantise import oracle
from tests.integration.cluster import RECEIVER, SENDER, Daemon
from tests.integration.integration_case import eventually
from tests.integration.slime_publish_test import INDEX, SlimeReader, read_file, write_checkpoint
from tests.integration.transfer.view_test import EXCEPT, SHAPES, ViewCase, outputs

DEEPSEEK = f"fp8-block128/deepseek,{EXCEPT}"
NVFP4 = "nvfp4/modelopt,share=gate_proj+up_proj"
RANKS = 2
# Whole on one rank each, as the format needs them.
OF_RANK: tuple[dict[str, tuple[int, ...]], ...] = (
    {"l.0.gate_proj.weight": (96, 256), "l.0.norm.weight": (640,), "l.0.up_proj.weight": (64, 256)},
    {"l.1.experts.weight": (2, 64, 256), "l.1.input_scale": (1,)},
)


def random_bits(random: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """What ViewCase.begin gives a trainer."""
    found = {}
    for name, shape in shapes.items():
        values = random.standard_normal(shape, np.float32) * 0.02
        found[name] = (values.view(np.uint32) >> 16).astype(np.uint16)
    return found


def nvfp4(whole: dict[str, Any]) -> dict[str, Any]:
    """The tensors of NVFP4, of which gate_proj and up_proj share a scale."""
    gate, up, experts = "l.0.gate_proj.weight", "l.0.up_proj.weight", "l.1.experts.weight"
    found = {name: whole[name] for name in ("l.0.norm.weight", "l.1.input_scale")}
    for names in ((gate, up), (experts,)):
        stacks = [whole[name].reshape(-1, *whole[name].shape[-2:]) for name in names]
        together = np.concatenate(stacks, axis=1)
        made = oracle.quantise("nvfp4/modelopt", together)
        scale = np.ascontiguousarray(made["tensor_scale"]).view(np.float32)
        begin = 0
        for name, stack in zip(names, stacks):
            lead, end = whole[name].shape[:-2], begin + stack.shape[1]
            for role, ending in (("codes", ""), ("scales", "_scale")):
                rows = np.ascontiguousarray(made[role]).view(np.uint8).reshape(*together.shape[:2], -1)[:, begin:end]
                found[name + ending] = np.ascontiguousarray(rows).reshape(*lead, stack.shape[1], -1)
            found[name + "_scale_2"] = scale.reshape(lead)
            begin = end
    return found


def types_of(view: str, tensors: dict[str, Any]) -> dict[str, str]:
    """The types in safetensors files."""
    packed = view.startswith("nvfp4")
    bytes_are = {name: "F8_E4M3" if packed == name.endswith("_scale") else "U8" for name in tensors}
    kinds = {"uint16": "BF16", "float32": "F32", "int32": "I32"}
    return {name: kinds.get(array.dtype.name, bytes_are[name]) for name, array in tensors.items()}


class ViewSlimeCase(ViewCase):
    def setUp(self) -> None:
        super().setUp()
        self.versions, self.base, self.local = (
            os.path.join(self.cluster.folder, name) for name in ("versions", "base", "local")
        )

    def write_base(self, view: str, tensors: dict[str, Any]) -> None:
        """The quantised checkpoint that the engines have loaded."""
        write_checkpoint(self.base, tensors, types_of(view, tensors))
        with open(os.path.join(self.base, "config.json"), "w", encoding="utf-8") as file:
            file.write("{}")
        shutil.copytree(self.base, self.local)

    def slime_flags(self, view: str, *more: str) -> tuple[str, ...]:
        named = (f"--slime-view={view}",) if view else ()
        return (f"--slime-dir={self.versions}", f"--slime-checkpoint={self.base}", *named, *more)

    def follower(self) -> Daemon:
        return self.cluster.start_receiver(
            "follower", f"--slime-dir={self.versions}", f"--checkpoint={self.local}", "--slime-poll-ms=20", senders=False
        )

    def check_folder(self, reader: SlimeReader, follower: Daemon, view: str, wanted: dict[str, Any]) -> bool:
        """Both readers apply the version and have these tensors. Returns whether it is full."""
        path = os.path.join(self.versions, f"weight_v{self.version:06d}", INDEX)
        eventually(lambda: os.path.exists(path), lambda: f"no {path}: {self.cluster.logs(30)}")
        metadata = reader.apply(self.version)
        eventually(
            lambda: "dws_follower_version{" in follower.page("/metrics") and follower.metric("dws_follower_version") == self.version,
            follower.log_tail,
        )
        held: dict[str, Any] = {}
        for file in os.listdir(self.local):
            if file.endswith(".safetensors"):
                held.update(read_file(os.path.join(self.local, file))[1])
        self.assertEqual(sorted(held), sorted(wanted))
        for name, array in wanted.items():
            bits = np.ascontiguousarray(array).tobytes()
            self.assertEqual(reader.weights[name].tobytes(), bits, f"'{name}' of '{view}', version {self.version}")
            self.assertEqual(held[name].tobytes(), bits, f"'{name}' of '{view}', version {self.version}")
        return "delta_encoding" not in metadata


class ViewSlimeTest(ViewSlimeCase):
    def begin_folder(self, view: str, *flags: str) -> tuple[SlimeReader, Daemon]:
        recipe = view.split(",")[0]
        base: dict[str, Any] = {}
        for name, bits in random_bits(np.random.default_rng(37), SHAPES).items():  # as ViewCase begins
            base.update(outputs(recipe, name, bits))
        self.write_base(view, base)
        self.begin(SHAPES, flags=self.slime_flags(view, *flags))
        return SlimeReader(self.versions, base), self.follower()

    def check_view(self, view: str, *flags: str) -> list[bool]:
        reader, follower = self.begin_folder(view, *flags)
        fulls = []
        for share in (0.01, 0.0, 0.001, 0.5, 0.01):
            self.publish(share)
            fulls.append(self.check_folder(reader, follower, view, self.expected(view)))
        sender = self.cluster.senders[0]
        eventually(lambda: sender.metric("dws_sender_slime_newest_version") == self.version, sender.log_tail)
        self.assertEqual(sender.metric("dws_sender_slime_failing"), 0)
        return fulls

    def test_blocks_of_fp8_follow_from_a_full_version(self) -> None:
        self.assertEqual(self.check_view(DEEPSEEK), [True] + [False] * 4)

    def test_packed_int4_follows_by_overwrite(self) -> None:
        fulls = self.check_view(f"int4-g128/amax7,{EXCEPT}", "--slime-encoding=overwrite", "--slime-keep=3")
        self.assertEqual(fulls, [True, False, False, False, True])

    def test_mxfp8_follows_from_the_base_by_deltas_alone(self) -> None:
        self.assertEqual(self.check_view(f"mxfp8/floor,{EXCEPT}", "--slime-first=base"), [False] * 5)

    def test_a_restarted_sender_continues_and_another_view_is_refused(self) -> None:
        reader, follower = self.begin_folder(DEEPSEEK)
        for _ in range(2):
            self.publish()
            self.check_folder(reader, follower, DEEPSEEK, self.expected(DEEPSEEK))
        sender = self.cluster.senders[0]

        def restart() -> None:
            sender.kill()
            sender.start()
            self.dws_trainer.reconnect()
            self.publish()

        restart()
        self.assertTrue(self.check_folder(reader, follower, DEEPSEEK, self.expected(DEEPSEEK)))
        self.publish()
        self.assertFalse(self.check_folder(reader, follower, DEEPSEEK, self.expected(DEEPSEEK)))
        # Its names, types and shapes are the same; its bits are not.
        other = f"fp8-block128/deepseek-divide,{EXCEPT}"
        sender.command[sender.command.index(f"--slime-view={DEEPSEEK}")] = f"--slime-view={other}"
        restart()
        eventually(lambda: "in another view" in sender.log_tail(100), sender.log_tail)
        self.assertFalse(os.path.exists(os.path.join(self.versions, f"weight_v{self.version:06d}")))
        sender.command[sender.command.index(f"--slime-view={other}")] = f"--slime-view={DEEPSEEK}"
        restart()
        self.assertTrue(self.check_folder(reader, follower, DEEPSEEK, self.expected(DEEPSEEK)))

    def test_what_does_not_fit_is_named_before_a_version_is_published(self) -> None:
        fp8: dict[str, Any] = {}
        for name, bits in random_bits(self.random, SHAPES).items():
            fp8.update(outputs("fp8-block128/deepseek", name, bits))
        self.write_base(DEEPSEEK, fp8)
        for number, (view, reason) in enumerate((
            ("fp8-block128/deepseek", "tensor 'gate.weight' of --slime-checkpoint is BF16 [8, 256], and the view's is F8_E4M3"),
            (f"{DEEPSEEK},except=mlp.*", "tensor 'mlp.weight' of --slime-checkpoint is F8_E4M3 [300, 640], and the view's is BF16"),
            (f"int4-g128/amax7,{EXCEPT}", "the view has no tensor 'experts.weight', which the checkpoint"),
            ("int4-g128/amax7", "could not be made of the trainer's tensors"),
        )):
            with self.subTest(view):
                shapes = SHAPES if "," in view or number == 0 else {**SHAPES, "gate.weight": (8, 100)}
                sender = self.cluster.start_sender(
                    0, *self.slime_flags(view, "--folder-stale-after=1"), name=f"sender-{number}"
                )
                trainer = dws.Trainer(sender.socket, "test", 0, 1)
                self.addCleanup(trainer.close)
                trainer.register([dws.TensorSpec(n, dws.DType.BF16, s) for n, s in shapes.items()], views="numpy")
                eventually(lambda: sender.readyz()[0] == 503, lambda: str(sender.readyz()))
                self.assertIn(f"view '{view}'", sender.readyz()[1])
                self.assertIn(reason, sender.readyz()[1])
                self.assertEqual(sender.metric("dws_sender_slime_failing"), 1)

    def test_options_that_make_no_sense_are_refused_at_the_start(self) -> None:
        sender = [SENDER, "--job-id=j", "--trainer-rank=0", f"--state-dir={self.versions}-state"]
        receiver = [RECEIVER, "--job-id=j", "--receiver-id=r", f"--state-dir={self.versions}-state"]
        many = [f"--shared-view=fp8-channel/vllm,except={number}.*" for number in range(8)]
        for command, reason in (
            ([*sender, f"--slime-view={DEEPSEEK}"], "there is no --slime-dir to write to"),
            ([*sender, f"--slime-dir={self.versions}", "--slime-view=fp8"], "no quantisation recipe"),
            ([*sender, f"--slime-dir={self.versions}", f"--shared-dir={self.base}", f"--slime-view={DEEPSEEK}", *many],
             "9 views with those of --shared-view, at most 8 are supported"),
            ([*sender, f"--slime-dir={self.versions}", f"--slime-view={DEEPSEEK}"], "--slime-dir needs --slime-checkpoint"),
            ([*receiver, f"--slime-dir={self.versions}", f"--checkpoint={self.local}", f"--view={DEEPSEEK}"],
             f"start the senders that write it with --slime-view"),
        ):  # fmt: skip
            with self.subTest(reason):
                ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
                self.assertNotEqual(ran.returncode, 0)
                self.assertIn(reason, ran.stderr + ran.stdout)


class ViewSlimeRanksTest(ViewSlimeCase):
    """A trainer of two ranks, each with whole tensors."""

    def start_ranks(self, view: str) -> None:
        self.whole = random_bits(self.random, {name: shape for shapes in OF_RANK for name, shape in shapes.items()})
        self.write_base(view, nvfp4(self.whole))
        sockets = [f"unix:{self.cluster.folder}/sender-{rank}/d.sock" for rank in range(RANKS)]
        for rank in range(RANKS):
            self.cluster.start_sender(
                rank, *self.slime_flags(view, f"--train-peers={','.join(sockets)}", "--folder-stale-after=1")
            )
        self.trainers: list[dws.Trainer] = []
        for rank in range(RANKS):
            self.trainers.append(self.trainer(rank, RANKS, self.trainers[0].stream if self.trainers else None))
            self.register(rank)

    def register(self, rank: int) -> None:
        specs = [dws.TensorSpec(name, dws.DType.BF16, shape) for name, shape in OF_RANK[rank].items()]
        for name, array in self.trainers[rank].register(specs, views="numpy").items():
            array[...] = self.whole[name]
            self.whole[name] = array

    def publish_all(self, moved: Optional[str] = None) -> None:
        self.version += 1
        for name, array in self.whole.items():
            if name != "l.1.input_scale":
                array[self.random.random(array.shape) < 0.01] ^= 1
        if moved is not None:  # the amax of the matrix grows
            self.whole[moved].reshape(-1)[3] = 0x3F00 + self.version
        for trainer in self.trainers:
            trainer.publish(self.version)

    def test_nvfp4_follows_the_parts_of_two_ranks(self) -> None:
        self.version = 0
        self.start_ranks(NVFP4)
        reader, follower = SlimeReader(self.versions, nvfp4(self.whole)), self.follower()
        scales = set()
        for moved in (None, "l.0.up_proj.weight", None, "l.1.experts.weight", None):
            self.publish_all(moved)
            wanted = nvfp4(self.whole)
            self.assertEqual(self.check_folder(reader, follower, NVFP4, wanted), self.version == 1)
            scales.add(wanted["l.0.gate_proj.weight_scale_2"].tobytes())
        self.assertEqual(len(scales), 2)  # that of gate_proj moves by an element of up_proj
        # A sender that has started again has no version to make a delta of.
        self.cluster.senders[1].kill()
        self.cluster.senders[1].start()
        self.trainers[1].reconnect()
        for full in (True, False):
            self.publish_all()
            self.assertEqual(self.check_folder(reader, follower, NVFP4, nvfp4(self.whole)), full)

    def test_a_rank_without_the_view_is_named(self) -> None:
        self.version = 0
        self.start_ranks(NVFP4)
        sender = self.cluster.senders[1]
        sender.kill()
        sender.command.remove(f"--slime-view={NVFP4}")
        sender.start()
        self.trainers[1].reconnect()
        self.publish_all()
        for one in self.cluster.senders:
            eventually(lambda: one.readyz()[0] == 503, lambda: str(one.readyz()))  # noqa: B023
            self.assertIn("the same --slime-dir and --slime-view", one.readyz()[1])
        self.assertFalse(os.path.exists(os.path.join(self.versions, "weight_v000001")))

    def test_matrices_that_lie_over_ranks_are_refused_by_name(self) -> None:
        """The senders exchange their amax, but the format has whole tensors."""
        self.version = 0
        name, shape = "l.o_proj.weight", (128, 512)
        self.whole = random_bits(self.random, {name: shape})
        made = oracle.quantise("nvfp4/modelopt", self.whole[name][None])
        parts = {
            name: np.ascontiguousarray(made["codes"]).view(np.uint8).reshape(128, 256),
            f"{name}_scale": np.ascontiguousarray(made["scales"]).view(np.uint8).reshape(128, 32),
            f"{name}_scale_2": np.ascontiguousarray(made["tensor_scale"]).view(np.float32).reshape(()),
        }
        self.write_base(NVFP4, parts)
        sockets = [f"unix:{self.cluster.folder}/sender-{rank}/d.sock" for rank in range(RANKS)]
        stream = dws.Stream.new()
        for rank in range(RANKS):
            sender = self.cluster.start_sender(
                rank, *self.slime_flags("nvfp4/modelopt", f"--train-peers={','.join(sockets)}", "--folder-stale-after=1")
            )
            self.trainer(rank, RANKS, stream).register(
                [dws.TensorSpec(name, dws.DType.BF16, shape)], cuts={name: dws.Cut.even(128, RANKS, 0)},
                shards={name: (rank, 1)}, views="numpy",
            )  # fmt: skip
            eventually(lambda: sender.readyz()[0] == 503, lambda: str(sender.readyz()))  # noqa: B023
            self.assertIn("slime's versions hold whole tensors", sender.readyz()[1])
            self.assertIn(f"of tensor '{name}'", sender.readyz()[1])


if __name__ == "__main__":
    unittest.main()
