"""Clients that register again and again and never hand anything over do not block trainers and engines."""

from __future__ import annotations

import threading
import time
import unittest
from typing import Any, Callable

import grpc
import numpy as np

import dws
from dws._proto import engine_pb2, engine_pb2_grpc, trainer_pb2, trainer_pb2_grpc
from dws.layout import RankLayout, TensorSpec
from tests.integration.integration_case import WAIT_SECONDS, IntegrationCase, eventually

# The maximum of tokens that a daemon has given out at a time.
TOKENS = 1024
FLOOD_THREADS = 4
_REFUSED = (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION)
TENSORS = {"w": np.ones(1000, np.float32)}


class _Flood:
    """Repeats calls on some threads until the end; their total is bounded."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.answered = 0
        self._call = call
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, daemon=True) for _ in range(FLOOD_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        for _ in range(50_000):
            if self._end.is_set():
                return
            # An attached engine and a newer stream are not replaced.
            try:
                self._call()
            except grpc.RpcError as error:
                if error.code() not in _REFUSED:
                    raise
                time.sleep(0.01)
            self.answered += 1

    def end(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


class UnfinishedTest(IntegrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.start()

    def channel(self, socket: str) -> grpc.Channel:
        channel = grpc.insecure_channel(f"unix:{socket}")
        self.addCleanup(channel.close)
        return channel

    def flood(self, call: Callable[[], Any]) -> _Flood:
        flood = _Flood(call)
        self.addCleanup(flood.end)
        eventually(lambda: flood.answered > 2 * TOKENS, lambda: f"{flood.answered} answers")
        return flood

    def test_a_trainer_registers_while_others_never_finish_registering(self) -> None:
        spec = TensorSpec("w", dws.DType.F32, (1000,))
        request = trainer_pb2.RegisterRequest(
            job_id="test",
            stream=dws.Stream.new(1).to_proto(),
            world_size=1,
            layout=RankLayout([spec], None).to_proto(),
            resident=trainer_pb2.ResidentHandover(shards=[trainer_pb2.ResidentShard()]),
        )
        request.resident.regions.add(size_bytes=4096)
        stub = trainer_pb2_grpc.TrainerServiceStub(self.channel(self.cluster.senders[0].socket))
        flood = self.flood(lambda: stub.Register(request, timeout=WAIT_SECONDS))
        trainer = self.trainer()
        trainer.register(TENSORS)
        trainer.publish(1)
        flood.end()

    def test_an_engine_attaches_while_others_never_finish_attaching(self) -> None:
        trainer = self.trainer()
        trainer.register(TENSORS)
        trainer.publish(1)
        engine = self.engine()
        request = engine_pb2.AttachRequest(engine_world_size=1)
        request.regions.add(size_bytes=4096)
        request.views.add(
            engine_name="w", tensor="w", dtype=dws.DType.F32.value, whole=True, shape=[1000],
            strides=[1],
        )
        socket = self.cluster.receivers[0].socket
        stub = engine_pb2_grpc.EngineServiceStub(self.channel(socket))
        flood = self.flood(lambda: stub.Attach(request, timeout=WAIT_SECONDS))
        live = engine.attach(TENSORS)
        self.await_version(engine, 1)
        flood.end()
        trainer.publish(2)
        trainer.wait(2)
        self.await_version(engine, 2)
        self.assertEqual(live["w"][0], 1)


if __name__ == "__main__":
    unittest.main()
