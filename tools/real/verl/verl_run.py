"""Run by check.py with verl's Python: verl_run.py FOLDER DWS_SENDER DWS_RECEIVER. Prints a line of JSON for each case.

verl's parts are its own: CheckpointEngineManager, the worker groups, CheckpointEngineWorker and
ActorRolloutRefWorker.update_weights. verl knows no CPU, so the weights are gathered here as its FSDPEngine does. In the place of
the inference engine's adapter is one that keeps what it is given.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any, Callable

import ray
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineManager, CheckpointEngineRegistry
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig
from verl_workers import Rollout, Trainer

STEPS = 3
TRAINERS = ROLLOUTS = 2
BACKEND = "dws"


class Replica:
    """What CheckpointEngineManager uses of a RolloutReplica."""

    def __init__(self, workers: list[Any]) -> None:
        self.workers = workers

    async def nothing(self, **unused: Any) -> None: ...

    abort_all_requests = resume_generation = release_kv_cache = resume_kv_cache = nothing


def say(name: str, case: Callable[[], str]) -> None:
    try:
        text, ok = case(), True
    except Exception as error:  # reported with its case
        text, ok = f"{type(error).__name__}: {error}", False
    print(json.dumps({"name": name, "ok": ok, "text": text}), flush=True)


def registered() -> str:
    """The engine is in verl's registry, and can be called as verl's abstract class says."""
    import_external_libs("dws.verl")
    kind = CheckpointEngineRegistry.get(BACKEND)
    assert issubclass(kind, CheckpointEngine) and not inspect.isabstract(kind), kind
    checked = []
    for name in sorted(CheckpointEngine.__abstractmethods__):
        base = [p for p in inspect.signature(getattr(CheckpointEngine, name)).parameters.values() if p.kind != p.VAR_KEYWORD]
        ours = list(inspect.signature(getattr(kind, name)).parameters.values())
        assert [p.name for p in ours[: len(base)]] == [p.name for p in base], (name, base, ours)
        for theirs, our in zip(base, ours):
            assert theirs.default is inspect.Parameter.empty or our.default == theirs.default, (name, theirs, our)
        if name != "init_process_group":  # which takes what build_topology gives
            assert all(p.default is not inspect.Parameter.empty for p in ours[len(base) :]), (name, ours)
        checked.append(name)
    given = kind.build_topology(2, 3, [{"version": 1}, {}, {}, {}, {}])
    taken = list(inspect.signature(kind.init_process_group).parameters)[1:]
    assert [sorted(each) for each in given] == [sorted(taken)] * 2, (given, taken)
    return f"{kind.__module__}.{kind.__name__}: {', '.join(checked)}"


class Job:
    def __init__(self, folder: str, sender: str, receiver: str) -> None:
        options = {"timeout": 120.0, "sender_options": {"program": sender, "run_dir": folder},
                   "receiver_options": {"program": receiver, "run_dir": folder, "scrub_rate": 0}}  # fmt: skip
        config = CheckpointEngineConfig(backend=BACKEND, custom_backend_module="dws.verl", engine_kwargs={BACKEND: options})
        rollout_config = RolloutConfig(name="vllm", checkpoint_engine=config)
        self.trainers = self._group(TRAINERS, Trainer, config=config)
        self.rollouts = self._group(ROLLOUTS, Rollout, rollout_config=rollout_config)
        replicas = [Replica([worker]) for worker in self.rollouts.workers]
        self.manager = CheckpointEngineManager(config=config, actor_wg=self.trainers, replicas=replicas)

    @staticmethod
    def _group(count: int, kind: Any, **arguments: Any) -> Any:
        pool = RayResourcePool(process_on_nodes=[count], use_gpu=False, max_colocate_count=1)
        return RayWorkerGroup(
            resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(kind), **arguments), device_name="cpu"
        )

    def steps(self) -> str:
        for number in range(STEPS):
            wanted = self.trainers.step(number)[0]
            told = self.manager.update_weights(global_steps=10 * number)
            assert told == {"dws/version": number + 1}, told
            for loaded in self.rollouts.loaded():
                assert loaded == wanted, f"step {number}: {[n for n in wanted if loaded.get(n) != wanted[n]]} differ"
        return f"{STEPS} steps, {TRAINERS} workers with fully_shard, {ROLLOUTS} rollout workers, {len(wanted)} tensors bit for bit"

    def refused(self) -> str:
        before = self.trainers.send_another(True)
        try:
            self.manager.update_weights(global_steps=99)
        except Exception as error:
            assert "'other.weight' was not among the weights of the first version" in str(error), error
        else:
            raise AssertionError("other weights were not refused")
        after = self.trainers.send_another(False)
        assert len({b - a for a, b in zip(before, after)}) == 1 and after[0] > before[0], (before, after)
        return "other weights are refused by name, and every worker has gathered to the end"


def main() -> None:
    folder, sender, receiver = sys.argv[1:]
    say("registered", registered)
    ray.init(num_cpus=TRAINERS + ROLLOUTS, include_dashboard=False, _temp_dir=folder + "/ray", log_to_driver=True)
    try:
        job = Job(folder, sender, receiver)
        say("steps", job.steps)
        say("refused", job.refused)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
