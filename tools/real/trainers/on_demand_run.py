"""Training on demand by torchrun, beside plain FSDP2 over gloo, lock-step, and the true gradient in FP64."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from typing import Any, Callable, Optional, Sequence

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import dws
from tests.clients.python.on_demand.late_copies import late_copies
from tools.real.trainers import on_demand_model, on_demand_refusals
from tools.real.trainers.on_demand_model import Minibatch, Transformer

RATE = 1e-2
SAMPLES_EACH = 6  # of a rank in a minibatch
BF16 = torch.bfloat16


def plain(recompute: bool = False) -> Transformer:
    """The model cut by FSDP2 alone, which reduces in FP32."""
    model = on_demand_model.make(recompute)
    policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def adamw(model: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)


def whole(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The full weights. A collective call."""
    return {name: each.full_tensor() for name, each in model.state_dict().items()}


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> None:
    """A checkpoint. A collective call."""
    weights, state = get_state_dict(model, optimizer)
    checkpoints.save({"model": weights, "optimizer": state}, checkpoint_id=folder)


def load(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> None:
    weights, state = get_state_dict(model, optimizer)
    found = {"model": weights, "optimizer": state}
    checkpoints.load(found, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])


def summed(value: float) -> float:
    """Over all ranks."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32)


def require_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], what: str) -> None:
    for name, each in ours.items():
        assert torch.equal(bits(each), bits(theirs[name])), f"{what}: {name}"


class Staged(dws.on_demand.Training):
    """Parameters are on the host, and go the way of those of a device, with copies that end late."""

    def _copies_of(self, device: Any, unit_bytes: int) -> Any:
        return late_copies(device, unit_bytes)


class Run:
    """One run of training on demand."""

    def __init__(
        self,
        options: argparse.Namespace,
        recompute: bool = False,
        start: bool = True,
        staged: Optional[bool] = None,
        **settings: Any,
    ) -> None:
        """Args: staged: None: as in `options`; programs that do not have it there are not."""
        self.model = on_demand_model.make(recompute)
        self._staged = vars(options).get("staged", False) if staged is None else staged
        training = Staged if self._staged else dws.on_demand.Training
        self.od = training(options.sender, options.job_id, timeout=60, **settings)
        self.od.fully_shard(self.model, units=self.model.layers, param_dtype=BF16, start=start)
        self.optimizer = adamw(self.model)
        self.losses: list[float] = []

    def close(self) -> None:
        """A collective call: a rank that leaves early is lost to the others."""
        if self._staged:
            runtime = self.od._copies.runtime
            assert runtime.late or not runtime.afters, "no copy has ended late"
        dist.barrier()
        self.od.close()
        dist.barrier()

    def microbatch(self, minibatch: Minibatch, samples: Sequence[int]) -> float:
        loss = minibatch.loss(self.model, samples)
        loss.backward()
        return loss.item()

    def gradient(self, minibatch: Minibatch, plan: Any) -> Any:
        """Up to the decision, which it returns."""
        for attempt in self.od.minibatch(plan):
            with attempt:
                losses = [self.microbatch(minibatch, samples) for samples in attempt.microbatches]
                step = attempt.finish()
        self.losses.append(summed(math.fsum(losses)))
        return step

    def step(self) -> None:
        self.od.clip(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.od.publish()

    def steps(self, count: int, plan_of: Callable[[Minibatch], Any], first: int = 0) -> None:
        for number in range(first, first + count):
            minibatch = batch(number)
            self.gradient(minibatch, plan_of(minibatch))
            self.step()


def batch(number: int) -> Minibatch:
    return Minibatch(number, SAMPLES_EACH * dist.get_world_size())


def lb_micro(minibatch: Minibatch) -> dws.balance.Plan:
    """Several microbatches, equally many on each rank."""
    return dws.balance.lb_micro(minibatch.lengths, dist.get_world_size(), limit=40)


def lb_mini(minibatch: Minibatch) -> dws.balance.Plan:
    """Gives ranks as many samples as make the work equal."""
    cost = dws.balance.Cost(1.0, 1.0)
    return dws.balance.lb_mini(minibatch.lengths, dist.get_world_size(), cost=cost, limit=40)


def one_rank_idle(minibatch: Minibatch) -> list[list[tuple[int, ...]]]:
    """Rank 1 has no microbatch; the others one for each sample."""
    working = [rank for rank in range(dist.get_world_size()) if rank != 1]
    plan: list[list[tuple[int, ...]]] = [[] for _ in range(dist.get_world_size())]
    for i in range(len(minibatch.lengths)):
        plan[working[i % len(working)]].append((i,))
    return plan


def of_rank(plan: Any) -> Any:
    ranks = plan.ranks if isinstance(plan, dws.balance.Plan) else plan
    return ranks[dist.get_rank()]


def fsdp2_steps(model: Any, count: int, other_order: bool = False) -> list[float]:
    """Trains by plain FSDP2, with lb_micro's plans, and returns the losses.

    Args:
      other_order: of the same sums: ranks have each other's microbatches, and reduce once a minibatch.
    """
    optimizer, losses = adamw(model), []
    for number in range(count):
        minibatch, mine = batch(number), []
        ranks = lb_micro(minibatch).ranks
        microbatches = ranks[(dist.get_rank() + other_order) % len(ranks)]
        for i, samples in enumerate(microbatches):
            model.set_requires_gradient_sync(not other_order or i == len(microbatches) - 1)
            loss = minibatch.loss(model, samples)
            loss.backward()
            mine.append(loss.item())
        losses.append(summed(math.fsum(mine)))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def check_gradients(run: Run, plan_of: Callable[[Minibatch], Any], count: int, exact: bool, by_weight: bool = False) -> float:
    """Steps, and compares each gradient with the true one: n pieces added in FP32, in any order, are within
    (n - 1) 2^-24 times the sum of their magnitudes (to first order); dividing rounds once more. If no addition was
    rounded, sums in FP64 are rounded once.

    Returns:
      The largest part of the bound that was used.
    """
    used, ranks = 0.0, dist.get_world_size()
    for number in range(count):
        minibatch = batch(1000 + number)
        plan = plan_of(minibatch)
        true = on_demand_model.true_gradient(whole(run.model), minibatch, of_rank(plan))
        step = run.gradient(minibatch, plan)
        pieces = 1 if exact else int(summed(len(of_rank(plan))))
        assert step.finite and (step.exact or not exact), step
        squares = 0.0
        for name, parameter in run.model.named_parameters():
            if not parameter.requires_grad:
                assert parameter.grad is None, name
                continue
            found, (total, magnitude) = parameter.grad.full_tensor().double(), true[name]
            squares += float((found**2).sum())
            divisor = len(minibatch.lengths) if by_weight else ranks
            bound = (pieces + 1) * 2.0**-24 * magnitude / divisor
            apart = (found - total / divisor).abs()
            assert bool((apart <= bound).all()), f"{name}: {float((apart - bound).max())} above the bound"
            used = max(used, float((apart / bound.clamp(min=1e-300)).max()))
        assert abs(step.norm - math.sqrt(squares)) <= 1e-6 * step.norm, (step.norm, math.sqrt(squares))
        assert step.weight == len(minibatch.lengths), step
        run.step()
    return used


def beside_fsdp2(options: argparse.Namespace) -> str:
    """(a) Gradients within the bound of sums; and losses of a free run, whose distance from FSDP2's is compared with the
    distance between two runs of FSDP2 that add the same gradients in another order."""
    run = Run(options)
    run.model.layers[0].set_modules_to_forward_prefetch([run.model.layers[1]])
    used = check_gradients(run, lb_micro, 5, exact=False)
    run.close()
    run = Run(options, exact=True)  # so that it is the same each time
    run.steps(options.steps, lb_micro)
    reference = plain()
    wanted = fsdp2_steps(reference, options.steps)
    other = fsdp2_steps(plain(), options.steps, other_order=True)
    weights, theirs = whole(run.model), whole(reference)
    run.close()
    noise = max(abs(a - b) / a for a, b in zip(wanted, other))
    apart = max(abs(a - b) / a for a, b in zip(wanted, run.losses))
    far = max(float((weights[name] - theirs[name]).abs().max()) for name in weights)
    assert run.losses[0] == wanted[0], (run.losses[0], wanted[0])
    assert min(wanted[-3:]) < 0.8 * wanted[0], f"FSDP2 has learnt too little to compare: {wanted}"
    assert apart <= max(4 * noise, 1e-6), (apart, noise)
    return (
        f"gradients use {used:.2f} of their bound; {options.steps} steps: losses within {apart:.1e} of FSDP2's, whose own "
        f"noise is {noise:.1e}; weights within {far:.1e}"
    )


def bit_for_bit(options: argparse.Namespace) -> str:
    """(b), (c) Lock-step, the same run again, and recomputed activations. If copies are staged, also a run without."""
    runs = []
    every: list[dict[str, Any]] = [{}, {}, {"lockstep": True, "prefetch": 0}, *([{"staged": False}] if options.staged else [])]
    for settings in every:
        run = Run(options, recompute=len(runs) == 1, exact=True, **settings)
        run.steps(options.steps, lb_micro)
        runs.append((run.losses, whole(run.model)))
        run.close()
    for losses, weights in runs[1:]:
        assert losses == runs[0][0]
        require_same(runs[0][1], weights, "runs differ")
    return f"{len(runs)} runs of {options.steps} steps, one in lock-step, are the same to the bit"


def uneven(options: argparse.Namespace) -> str:
    """(d) Different numbers of microbatches, and a rank that has none."""
    run = Run(options, recompute=True, exact=True, prefetch=2)
    counts = {len(each) for each in lb_mini(batch(1000)).ranks}
    assert len(counts) > 1, counts
    used = max(check_gradients(run, lb_mini, 4, True), check_gradients(run, one_rank_idle, 3, True))
    with torch.no_grad():  # an idle rank uses the model outside of a minibatch
        before = summed(float(batch(3).loss(run.model, range(4))))
    run.steps(2, one_rank_idle)
    with torch.no_grad():
        after = summed(float(batch(3).loss(run.model, range(4))))
    assert after != before
    run.close()
    run = Run(options, exact=True, average="weight")
    used = max(used, check_gradients(run, one_rank_idle, 2, True, by_weight=True))
    run.close()
    return f"{min(counts)} to {max(counts)} and 0 microbatches, exact sums, {used:.2f} of the bound"


def round_trip(options: argparse.Namespace) -> str:
    """(e) Checkpoints from here to plain FSDP2 and back."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)

    here, there = (os.path.join(folder[0], name) for name in ("here", "there"))
    run = Run(options)
    run.steps(3, lb_micro)
    save(run.model, run.optimizer, here)
    model = plain()
    optimizer = adamw(model)
    load(model, optimizer, here)
    require_same(whole(run.model), whole(model), "FSDP2 has loaded other weights")
    run.steps(1, lb_micro, first=3)
    version = run.od.version
    run.close()
    minibatch = batch(3)
    losses = []
    for samples in of_rank(lb_micro(minibatch)):
        loss = minibatch.loss(model, samples)
        loss.backward()
        losses.append(loss.item())
    assert summed(math.fsum(losses)) == run.losses[-1]
    optimizer.step()
    optimizer.zero_grad()
    save(model, optimizer, there)
    back = Run(options, start=False)
    load(back.model, back.optimizer, there)
    back.od.start(version + 1)
    require_same(whole(back.model), whole(model), "loaded other weights than FSDP2's")
    used = check_gradients(back, lb_mini, 2, exact=False)
    assert back.od.version == version + 3
    back.close()
    return f"weights are the same to the bit both ways, and training goes on ({used:.2f} of the bound)"


def not_finite(options: argparse.Namespace) -> str:
    """(g) One rank's loss is no number in one microbatch."""
    run = Run(options)
    run.steps(2, lb_mini)
    before, version = whole(run.model), run.od.version
    minibatch = batch(2)
    for attempt in run.od.minibatch(lb_mini(minibatch)):
        with attempt:
            for i, samples in enumerate(attempt.microbatches):
                factor = math.nan if dist.get_rank() == 1 and i == 0 else 1.0
                (minibatch.loss(run.model, samples) * factor).backward()
            step = attempt.finish(weight=2.5)
    assert not step.finite and step.weight == 2.5 * dist.get_world_size(), step
    assert all(parameter.grad is None for parameter in run.model.parameters())
    for refused in (run.od.publish, lambda: run.od.clip(1.0)):
        try:
            refused()
            raise AssertionError("a gradient that is not finite was taken")
        except dws.StateError as error:
            assert "not finite" in str(error) and "skip" in str(error), error
    run.od.skip()
    require_same(whole(run.model), before, "a skipped step changed weights")
    assert run.od.version == version
    used = check_gradients(run, lb_mini, 2, exact=False)
    run.close()
    return f"skipped, and the next gradients are right ({used:.2f} of the bound)"


def given_up(options: argparse.Namespace) -> str:
    """An error in one rank's passes, in the forward and in the backward pass, abandons the attempt on all."""
    seen: list[dws.MinibatchAbandonedError] = []
    run = Run(options, exact=True, on_abandoned=seen.append)
    run.steps(1, lb_mini)
    minibatch = batch(7)
    plan = one_rank_idle(minibatch)
    raised = 0
    for where in ("forward", "backward"):
        done, first = False, True
        while not done:
            try:
                for attempt in run.od.minibatch(plan):
                    with attempt:
                        if first:
                            first = False
                            dist.barrier()  # all are in the attempt
                        for samples in attempt.microbatches:
                            loss = minibatch.loss(run.model, samples)
                            if dist.get_rank() == 0 and not raised and where == "backward":
                                loss.register_hook(_fail)
                            if dist.get_rank() == 0 and not raised and where == "forward":
                                _fail()
                            loss.backward()
                        attempt.finish()
                done = True
            except ArithmeticError:
                raised += 1
        raised = 0
        run.step()
    if dist.get_rank() != 0:
        assert [error.rank for error in seen if isinstance(error, dws.RankLostError)] == [0, 0], seen
        assert all("ArithmeticError: as the check wants" in error.reason for error in seen), seen
    used = check_gradients(run, lb_mini, 2, exact=True)
    run.close()
    return f"two attempts were abandoned and run again ({used:.2f} of the bound)"


def _fail(*_: Any) -> None:
    raise ArithmeticError("as the check wants")


PARTS = {
    "fsdp2": beside_fsdp2,
    "bits": bit_for_bit,
    "uneven": uneven,
    "checkpoint": round_trip,
    "nan": not_finite,
    "abandon": given_up,
    "refusals": lambda options: on_demand_refusals.check(Run(options)),
}


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser()
    for name in ("sender", "job-id"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("receiver", "seen", "dtype"):  # other cases need them
        parser.add_argument(f"--{name}")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--staged", action="store_true", help="the way of parameters on a device, without a device")
    parser.add_argument("--parts", default=",".join(PARTS))
    options = parser.parse_args(arguments)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for name in options.parts.split(","):
        line = PARTS[name](options)
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"{name}: {line}", flush=True)
    if dist.get_rank() == 0:
        print(f"ok: {dist.get_world_size()} ranks; {options.parts}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
