"""dws.verl with real daemons, called as verl's CheckpointEngineManager calls it. verl and Ray are stand-ins with what the
module uses of them."""

from __future__ import annotations

import abc
import asyncio
import concurrent.futures
import importlib
import json
import subprocess
import sys
import tempfile
import types
import unittest
import urllib.request
from typing import Any, Iterator, Optional
from unittest import mock

try:
    import torch
except ImportError:  # Debian's package python3-torch
    torch = None

import dws
from tests.integration.cluster import RECEIVER, SENDER

WAIT_SECONDS = 60.0


class CheckpointEngine(abc.ABC):
    """The abstract methods of verl 0.9.1."""

    @abc.abstractmethod
    def prepare(self) -> Any: ...

    @classmethod
    @abc.abstractmethod
    def build_topology(cls, actor_wg_world_size: Any, rollout_world_size: Any, metadata: Any) -> Any: ...

    @abc.abstractmethod
    def init_process_group(self, **kwargs: Any) -> Any: ...

    @abc.abstractmethod
    def finalize(self) -> Any: ...

    @abc.abstractmethod
    async def send_weights(self, weights: Any, global_steps: Any = None) -> Any: ...

    @abc.abstractmethod
    async def receive_weights(self, global_steps: Any = None) -> Any: ...


class Registry:
    found: dict[str, Any] = {}

    @classmethod
    def register(cls, backend: str) -> Any:
        def wrapper(engine: Any) -> Any:
            cls.found[backend] = engine
            return engine

        return wrapper


def stand_ins() -> dict[str, types.ModuleType]:
    store: dict[tuple[bytes, bytes], bytes] = {}
    found = {name: types.ModuleType(name) for name in
             ("verl", "verl.checkpoint_engine", "verl.utils", "verl.utils.device", "ray", "ray.experimental")}  # fmt: skip
    setattr(found["verl.checkpoint_engine"], "CheckpointEngine", CheckpointEngine)
    setattr(found["verl.checkpoint_engine"], "CheckpointEngineRegistry", Registry)
    setattr(found["verl.utils.device"], "get_device_name", lambda: "cuda")  # as on a machine without one
    setattr(found["verl.utils.device"], "get_device_id", lambda: 0)
    setattr(found["verl.utils.device"], "get_torch_device", lambda: types.SimpleNamespace(is_available=lambda: False))
    # Ray takes the namespace by name only.
    values = types.SimpleNamespace(
        _internal_kv_put=lambda key, value, overwrite=True, *, namespace=None: store.__setitem__((namespace, key), value),
        _internal_kv_get=lambda key, *, namespace=None: store.get((namespace, key)),
    )
    setattr(found["ray.experimental"], "internal_kv", values)
    return found


class Worker:
    """A worker of verl's, with its checkpoint engine."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.weights: dict[str, Any] = {}  # of a rollout worker: what its inference engine has loaded
        self.gathered = 0  # of a worker of the trainer

    def gathering(self, weights: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, tensor in weights.items():
            self.gathered += 1
            yield name, tensor

    def send(self, weights: dict[str, Any], step: int) -> Any:
        return asyncio.run(self.engine.send_weights(self.gathering(weights), global_steps=step))

    def receive(self, step: int) -> None:
        async def load() -> None:
            async for name, tensor in self.engine.receive_weights(global_steps=step):
                self.weights[name] = tensor.clone()

        asyncio.run(load())


@unittest.skipIf(torch is None, "torch is not installed")
class VerlTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp")  # short: sockets are in it
        self.addCleanup(folder.cleanup)
        self.top = folder.name
        patched = mock.patch.dict(sys.modules, stand_ins())
        patched.start()
        self.addCleanup(patched.stop)
        sys.modules.pop("dws.verl", None)
        self.module = importlib.import_module("dws.verl")
        self.engines: list[Any] = []
        self.addCleanup(self.end)
        generator = torch.Generator().manual_seed(5)
        self.weights = {
            "embed.weight": torch.randn(70, 33, generator=generator).to(torch.bfloat16),
            "layer.0.w": torch.randn(300, 40, generator=generator),
            "layer.0.scale": torch.tensor(0.5),
            "layer.0.steps": torch.arange(7),
        }

    def end(self) -> None:
        for engine in self.engines:
            if engine._receiving is not None:
                engine._receiving.close()
            if engine._publishing is not None:
                engine._publishing._transfer.destroy()
                if engine._publishing._daemon is not None:
                    engine._publishing._daemon.close()

    def worker(self, **options: Any) -> Worker:
        engine = Registry.found["dws"](
            bucket_size=1 << 20,
            timeout=WAIT_SECONDS,
            sender_options={"program": SENDER, "run_dir": self.top, "http": "127.0.0.1:0"},
            receiver_options={"program": RECEIVER, "run_dir": self.top, "scrub_rate": 0},
            **options,
        )
        self.engines.append(engine)
        return Worker(engine)

    def update(
        self, actors: list[Worker], rollouts: list[Worker], step: int, weights: Optional[dict[str, Any]] = None
    ) -> list[Any]:
        """What CheckpointEngineManager.update_weights does. Returns what the trainer's workers return."""
        workers = [*actors, *rollouts]
        metadata = [worker.engine.prepare() for worker in workers]
        kind = type(actors[0].engine)
        for group, arguments in zip((actors, rollouts), kind.build_topology(len(actors), len(rollouts), metadata)):
            for number, worker in enumerate(group):
                self.assertTrue(all(len(values) == len(group) for values in arguments.values()), arguments)
                worker.engine.init_process_group(**{key: values[number] for key, values in arguments.items()})
        with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
            sent = [pool.submit(worker.send, self.weights if weights is None else weights, step) for worker in actors]
            received = [pool.submit(worker.receive, step) for worker in rollouts]
            results = [each.result(WAIT_SECONDS * 2) for each in sent]
            for each in received:
                each.result(WAIT_SECONDS * 2)
        for worker in workers:
            worker.engine.finalize()
        return results

    def assert_loaded(self, rollouts: list[Worker]) -> None:
        for worker in rollouts:
            self.assertEqual(sorted(worker.weights), sorted(self.weights))
            for name, tensor in self.weights.items():
                loaded = worker.weights[name]
                self.assertEqual((loaded.dtype, loaded.shape), (tensor.dtype, tensor.shape), name)
                bits = [each.contiguous().reshape(-1).view(torch.uint8) for each in (loaded, tensor)]
                self.assertTrue(torch.equal(*bits), name)

    def test_rollout_workers_load_what_the_trainer_has_and_later_steps_are_deltas(self) -> None:
        actors = [self.worker(is_master=True), self.worker()]
        rollouts = [self.worker(), self.worker()]
        for step in range(4):
            self.weights["layer.0.w"][step] += 0.25
            results = self.update(actors, rollouts, step)
            self.assertEqual(results, [{"dws/version": step + 1}, {}])
            self.assert_loaded(rollouts)
        self.assertEqual([worker.gathered for worker in actors], [4 * len(self.weights)] * 2)
        # A rollout worker that comes later begins with the version of its first step.
        rollouts.append(self.worker())
        self.weights["embed.weight"][3] = 2.0
        self.update(actors, rollouts, 5)
        self.assert_loaded(rollouts)
        port = self.engines[0]._publishing._daemon.ports["http"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=WAIT_SECONDS) as page:
            history = json.load(page)["sender"]["history"]
        self.assertEqual(len(history), 5)
        for version in history[1:]:
            self.assertLess(int(version["wire_bytes"]), int(history[0]["wire_bytes"]) / 10)

    def test_a_trainer_that_was_started_again_is_followed(self) -> None:
        actors, rollouts = [self.worker(is_master=True)], [self.worker()]
        self.update(actors, rollouts, 0)
        actors = [self.worker(is_master=True)]
        self.weights["layer.0.w"][:] = 7.0
        self.update(actors, rollouts, 1)
        self.assert_loaded(rollouts)

    def test_no_rollout_worker_takes_a_version_of_an_earlier_training(self) -> None:
        """Both have one job_id, one sender and one number for their first version; a new worker beside has the later one."""
        sender = self.enterContext(dws.daemons.sender("kept", program=SENDER, run_dir=self.top))
        options = {"job_id": "kept", "sender": sender.socket, "address": sender.address}
        actors, rollouts = [self.worker(is_master=True, **options)], [self.worker()]
        self.update(actors, rollouts, 0)
        actors, rollouts = [self.worker(is_master=True, **options)], [*rollouts, self.worker()]
        self.weights["layer.0.w"][:] = 7.0
        self.update(actors, rollouts, 0)
        self.assert_loaded(rollouts)

    def test_other_weights_are_refused_by_name_and_all_workers_have_gathered(self) -> None:
        actors, rollouts = [self.worker(is_master=True), self.worker()], [self.worker()]
        self.update(actors, rollouts, 0)
        rollouts[0].engine._receiving._timeout = 2.0
        with self.assertRaisesRegex(dws.StateError, "'other' was not among the weights of the first version"):
            self.update(actors, rollouts, 1, {"other": torch.zeros(3), **self.weights})
        self.assertEqual([worker.gathered for worker in actors], [2 * len(self.weights) + 1] * 2)
        self.update(actors, rollouts, 2)  # what has failed leaves nothing behind
        self.assert_loaded(rollouts)

    def test_a_rollout_worker_says_what_it_waits_for(self) -> None:
        actors, rollouts = [self.worker(is_master=True)], [self.worker()]
        plan = actors[0].engine.prepare()
        rollouts[0].engine._timeout = 0.5
        rollouts[0].engine.init_process_group(rank=0, plan=plan)
        with self.assertRaisesRegex(dws.DeadlineError, "has not told in 0.5 s which weights it has"):
            rollouts[0].receive(0)
        rollouts[0].engine._receiving._timeout = WAIT_SECONDS
        self.update(actors, rollouts, 0)
        # The trainer sends nothing: the version does not come.
        rollouts[0].engine._receiving._timeout = 1.0
        rollouts[0].engine.init_process_group(rank=0, plan=actors[0].engine.prepare())
        with self.assertRaisesRegex(dws.DeadlineError, "version 2"):
            rollouts[0].receive(1)
        rollouts[0].engine._receiving._daemon.kill()
        with self.assertRaises(dws.DaemonFailedError):
            rollouts[0].receive(1)

    def test_daemons_that_run_already_are_used(self) -> None:
        with dws.daemons.sender("named", program=SENDER, run_dir=self.top) as sender, dws.daemons.receiver(
            "rollout-0", [sender], "named", program=RECEIVER, run_dir=self.top
        ) as receiver:
            options = {"job_id": "named", "sender": sender.socket, "address": sender.address}
            actors = [self.worker(is_master=True, **options)]
            rollouts = [self.worker(job_id="named", receiver=receiver.socket.replace("rollout-0", "rollout-{rank}"))]
            self.update(actors, rollouts, 0)
            self.assert_loaded(rollouts)
            self.assertIsNone(rollouts[0].engine._receiving._daemon)
            self.end()
            self.engines.clear()

    def test_what_does_not_fit_is_refused(self) -> None:
        for options, message in (
            ({"sender": "/run/dws/sender-0.sock"}, "needs its `sender`, `address` and `job_id`"),
            ({"sender": "/run/dws/sender-0.sock", "address": "h:1"}, "job_id=None"),
            ({"receiver": "/run/dws/receiver-0.sock"}, "receivers that run already need `job_id`"),
        ):
            with self.subTest(message), self.assertRaisesRegex(dws.InvalidArgumentError, message):
                self.worker(is_master=True, **options)
        kind = Registry.found["dws"]
        with self.assertRaisesRegex(dws.StateError, "found 0 of 2"):
            kind.build_topology(2, 1, [{}, {}, {}])
        with self.assertRaisesRegex(dws.StateError, "before init_process_group"):
            self.worker().receive(0)
        plan = {"job_id": "j", "address": "unix:/tmp/s.sock", "host": "elsewhere", "version": 1, "stream": str(dws.Stream(1, 2))}
        with self.assertRaisesRegex(dws.StateError, "reached only on elsewhere"):
            self.worker().engine.init_process_group(rank=0, plan=plan)


class ImportTest(unittest.TestCase):
    def test_the_client_imports_neither_verl_nor_ray(self) -> None:
        code = "import sys, dws, dws.trainers, dws.daemons; assert not {'verl', 'ray', 'dws.verl'} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})


if __name__ == "__main__":
    unittest.main()
