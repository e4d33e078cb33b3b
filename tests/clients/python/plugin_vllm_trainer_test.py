"""dws.trainers.vllm in a stand-in for vLLM: the trainer's side of its weight transfer backend "dws"."""

from __future__ import annotations

import sys
import tempfile
import unittest
from typing import Any
from unittest import mock

import numpy as np
import torch

import dws
import dws.vllm
from dws.plugins.requested import Requested
from tests.clients.python.fake_daemons import FakeSender
from tests.clients.python.vllm_case import vllm
from vllm.distributed.weight_transfer import base
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

assert vllm.__version__.endswith("+fake")  # vllm_case names the folder of the stand-in


class TrainerSideTest(unittest.TestCase):
    def engine(self, rank: int, source: Any = None) -> Any:
        from dws.trainers.vllm import DwsTrainerInit

        dws.vllm.register()
        self.trainer = mock.create_autospec(dws.Trainer, instance=True)
        self.trainer.last_version, self.trainer.stream = 6, dws.Stream(1, 2)
        self.client = mock.Mock()
        info = DwsTrainerInit(rank=rank, trainer=self.trainer, socket="/run/r", timeout=9.0)
        return WeightTransferTrainerFactory.trainer_init(info, client=self.client, source=source)

    def test_rank_0_publishes_and_has_vllm_take_the_version(self) -> None:
        engine = self.engine(0)
        engine.send_weights()
        self.trainer.publish.assert_called_once_with(7, 9.0)
        self.assertEqual(
            self.client.mock_calls,
            [
                mock.call.init_weight_transfer_engine({"socket": "/run/r", "options": {}}),
                mock.call.start_weight_update(),
                mock.call.update_weights(
                    {"version": 7, "stream": str(dws.Stream(1, 2)), "timeout": 9.0}
                ),
                mock.call.finish_weight_update(weight_version="7"),
            ],
        )

    def test_an_update_takes_less_time_than_vllms_client_waits(self) -> None:
        from dws.trainers.vllm import DwsTrainerInit

        self.assertEqual(Requested(1).timeout, 240)
        self.assertEqual(DwsTrainerInit(rank=0, trainer=None, socket="/run/r").timeout, 240)

    def test_other_ranks_publish_only(self) -> None:
        self.engine(1).send_weights()
        self.trainer.publish.assert_called_once_with(7, 9.0)
        self.assertEqual(self.client.mock_calls, [])

    def test_a_version_that_is_published_already_is_sent_as_it_is(self) -> None:
        engine = self.engine(0)
        engine.send_weights(version=9)
        self.trainer.publish.assert_called_once_with(9, 9.0)
        self.trainer.last_version = 9
        engine.send_weights(version=9)
        self.trainer.publish.assert_called_once()
        self.assertEqual(self.told(), ["9", "9"])

    def told(self) -> list[str]:
        calls = self.client.finish_weight_update.mock_calls
        return [call.kwargs["weight_version"] for call in calls]

    def test_servers_of_one_trainer_are_told_one_number_for_equal_weights(self) -> None:
        from dws.trainers.vllm import DwsTrainerInit

        with tempfile.TemporaryDirectory() as folder:
            sender = FakeSender(folder)
            self.addCleanup(sender.stop)
            trainer = dws.Trainer(sender.socket, job_id="test")
            self.addCleanup(trainer.close)
            weights = trainer.register({"a": np.zeros(3, np.uint8), "b": np.zeros(9, np.float32)})
            self.client = mock.Mock()
            dws.vllm.register()
            infos = [DwsTrainerInit(rank=0, trainer=trainer, socket=f"/run/{n}") for n in range(2)]
            first, second = (
                WeightTransferTrainerFactory.trainer_init(info, client=self.client, source=None)
                for info in infos
            )
            for engine in (first, second, second, first):
                engine.send_weights()
            weights["b"][4] = 1
            second.send_weights()
            first.send_weights()
            weights["a"][2] = 1
            first.send_weights()
            second.send_weights(version=7)
            first.send_weights(version=7)
            with self.assertRaisesRegex(dws.VersionError, "6 is not above 7"):
                second.send_weights(version=6)
        self.assertEqual(self.told(), ["1", "1", "1", "1", "2", "2", "3", "7", "7"])
        self.assertEqual(sender.published, [1, 2, 3, 7])

    def test_servers_of_a_trainer_of_several_ranks_need_the_number(self) -> None:
        engine = self.engine(0)
        self.trainer.world_size = 2
        other = type(engine)(engine._info, self.client)
        with self.assertRaisesRegex(dws.StateError, r"2 weight transfer engines.*version=\.\.\."):
            other.send_weights()
        other.send_weights(version=7)
        self.trainer.publish.assert_called_once_with(7, 9.0)

class SourceTest(unittest.TestCase):
    """Weights that vLLM's WeightSource gathers."""

    def setUp(self) -> None:
        dws.vllm.register()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.sender = FakeSender(folder.name)
        self.addCleanup(self.sender.stop)
        self.trainer = dws.Trainer(self.sender.socket, job_id="test")
        self.addCleanup(self.trainer.close)
        self.client = mock.Mock()
        self.module = torch.nn.Linear(4, 3)

    def engine(self, source: Any, rank: int = 0, socket: str = "/run/r") -> Any:
        from dws.trainers.vllm import DwsTrainerInit

        trainer = self.trainer if rank == 0 else None
        init = DwsTrainerInit(rank=rank, trainer=trainer, socket=socket)
        return WeightTransferTrainerFactory.trainer_init(init, client=self.client, source=source)

    def told(self) -> list[str]:
        calls = self.client.finish_weight_update.mock_calls
        return [call.kwargs["weight_version"] for call in calls]

    def test_a_modules_tensors_are_gathered_and_published(self) -> None:
        for source in (base.ModuleSource(self.module), base.OwnedSource(self.module)):
            self.engine(source).send_weights()
        self.assertEqual(self.sender.published, [1, 2])
        put = {data.tobytes() for data in self.sender.slices.values()}
        self.assertEqual(put, {tensor.detach().numpy().tobytes() for tensor in self.module.parameters()})

    def test_servers_get_one_version_a_step(self) -> None:
        first, second = (self.engine(base.ModuleSource(self.module), socket=f"/run/{n}") for n in range(2))
        for engine in (first, second):
            engine.send_weights()
        with torch.no_grad():
            self.module.bias[2] = 9.0
        for engine in (second, first):
            engine.send_weights()
        for engine in (first, second):
            engine.send_weights(version=7)
        self.assertEqual(self.told(), ["1", "1", "2", "2", "7", "7"])
        self.assertEqual(self.sender.published, [1, 2, 7])

    def test_ranks_that_publish_nothing_take_part_in_the_gathering_of_each_version_once(self) -> None:
        gathered = mock.Mock(wraps=base.ModuleSource(self.module), spec=["metadata", "__iter__"])
        gathered.__iter__ = mock.Mock(side_effect=lambda: iter(()))
        first, second = self.engine(gathered, rank=1), self.engine(gathered, rank=1)
        for version in (1, 2):
            for engine in (first, second):
                engine.send_weights(version=version)
        self.assertEqual(gathered.__iter__.call_count, 2)
        self.assertEqual(self.client.mock_calls, [])

    def test_ranks_gather_together_as_rank_0_says(self) -> None:
        gathered = mock.Mock(wraps=base.ModuleSource(self.module), spec=["metadata", "__iter__"])
        gathered.__iter__ = mock.Mock(side_effect=lambda: iter(()))
        engine = self.engine(gathered, rank=1)

        def broadcast(said: list[Any], src: int) -> None:
            said[0] = told.pop(0)

        told = [(7, True), (7, False), (7, True)]  # the third: rank 0 has failed, and publishes it again
        distributed = mock.Mock(is_initialized=lambda: True, get_world_size=lambda: 2, broadcast_object_list=broadcast)
        with mock.patch.dict(sys.modules, {"torch.distributed": distributed}):
            for gathers in (1, 1, 2):
                engine.send_weights(version=7)
                self.assertEqual(gathered.__iter__.call_count, gathers)

    def test_a_source_that_does_not_yield_all_publishes_nothing(self) -> None:
        source = base.ModuleSource(self.module)
        some = mock.Mock(wraps=source, spec=["metadata", "__iter__"])
        some.__iter__ = mock.Mock(side_effect=[iter(source), iter(list(source)[:1])])
        engine = self.engine(some)
        engine.send_weights(version=1)
        with self.assertRaisesRegex(dws.StateError, "did not yield 1 of the tensors that it describes: bias"):
            engine.send_weights(version=2)
        self.assertEqual(self.sender.published, [1])

    def test_a_version_that_fails_is_gathered_to_its_end(self) -> None:
        source = base.ModuleSource(self.module)
        rest = iter([("weight", object()), *list(source)[1:]])
        failing = mock.Mock(wraps=source, spec=["metadata", "__iter__"])
        failing.__iter__ = mock.Mock(return_value=rest)
        engine = self.engine(failing)
        with self.assertRaises(AttributeError):
            engine.send_weights(version=1)
        self.assertEqual(list(rest), [])
        self.assertEqual(self.sender.published, [])

    def test_what_does_not_fit_is_refused_by_name(self) -> None:
        with self.assertRaisesRegex(dws.LayoutError, "other ranks than rank 0, which publishes: weight, bias"):
            self.engine(base.OwnedSource(self.module, owners=(1, 2)))
        self.engine(base.ModuleSource(self.module))
        with self.assertRaisesRegex(dws.StateError, "sources of other tensors"):
            self.engine(base.ModuleSource(torch.nn.Linear(2, 3)))
        with self.assertRaisesRegex(dws.StateError, "no trainer and no source"):
            self.engine(None, rank=1)
        self.trainer = None  # type: ignore[assignment]
        with self.assertRaisesRegex(dws.StateError, "rank 0 has no trainer"):
            self.engine(base.ModuleSource(self.module))


if __name__ == "__main__":
    unittest.main()
