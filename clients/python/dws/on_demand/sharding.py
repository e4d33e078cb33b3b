"""How a model is cut by torch's FSDP2, what of that training on demand refuses, and the state that has to be reset when a
forward or backward pass ended with an error. Needs torch 2.9; all that is not public in torch is used in this file only.
"""

from __future__ import annotations

import importlib
from typing import Any, Iterable, Iterator, Optional, Sequence

import torch
import torch.distributed as dist
from torch import nn

from dws.errors import DTypeError, InvalidArgumentError, LayoutError
from dws.on_demand.units import Unit, UnitParameter
from dws.torch_module import canonical_name

RANKS_MAX = 256
_REFUSED = {
    "shard_placement_fn": "units have one group of parameters, cut by rows",
    "ignored_params": "freeze them with requires_grad_(False)",
    "mp_policy": "pass param_dtype= and reduce_dtype=",
    "dp_mesh_dims": "ranks are on a mesh of one dimension",
}


def _fsdp() -> Any:
    """torch.distributed.fsdp, which not every older torch can import."""
    return importlib.import_module("torch.distributed.fsdp")


def cut(
    model: nn.Module, units: Sequence[nn.Module], param_dtype: Any, reduce_dtype: Any, options: dict[str, Any]
) -> list[tuple[nn.Module, Unit]]:
    """Calls torch's fully_shard for each unit, and for the model with what is left.

    Args:
      options: more arguments of torch's fully_shard.

    Returns:
      The units with parameters, in their order, that of the model last.

    Raises:
      InvalidArgumentError, LayoutError, DTypeError, StateError: something is not supported; nothing was cut.
    """
    units = [unit for unit in units if unit is not model]
    _check_options(options)
    _check_modules(model, units)
    names = _parameter_names(model)
    found = [(module, _unit(model, module, set(units), names)) for module in [*units, model]]
    _require_once(found)
    fsdp = _fsdp()
    policy = fsdp.MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
    for module in [*units, model]:
        fsdp.fully_shard(module, mp_policy=policy, **options)
    return [(module, unit) for module, unit in found if unit.parameters]


def _check_options(options: dict[str, Any]) -> None:
    for name, instead in _REFUSED.items():
        if options.get(name) is not None:
            raise InvalidArgumentError(f"fully_shard({name}=...) is not supported: {instead}")
    offload = options.get("offload_policy")
    if offload is not None and "CPUOffload" in type(offload).__name__:
        raise InvalidArgumentError("CPU offload is not supported: leave offload_policy= out")
    ranks = dist.get_world_size()
    if not 2 <= ranks <= RANKS_MAX:
        raise InvalidArgumentError(f"{ranks} ranks: expected 2 to {RANKS_MAX}")
    mesh = options.get("mesh")
    if mesh is None:
        return
    if mesh.ndim != 1:
        raise InvalidArgumentError(f"a mesh of {mesh.ndim} dimensions: expected one, of all ranks")
    if mesh.mesh.flatten().tolist() != list(range(ranks)):
        raise InvalidArgumentError(f"the mesh {mesh}: expected ranks 0 to {ranks - 1} in order")


def _check_modules(model: nn.Module, units: Sequence[nn.Module]) -> None:
    inside = {id(module) for module in model.modules()}
    for unit in units:
        if id(unit) not in inside:
            raise LayoutError(f"units= has a {type(unit).__name__} that is not a part of the model")
    for name, module in model.named_modules():
        what = f"module '{name}', a {type(module).__name__},"
        if isinstance(module, _fsdp().FSDPModule):
            raise LayoutError(f"{what} is cut already: pass the model as it was before torch's fully_shard")
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise LayoutError(f"{what} is compiled, which is not supported with training on demand: pass it as it was")
        if type(module).__name__ in ("FullyShardedDataParallel", "DistributedDataParallel"):
            raise LayoutError(f"{what} is a wrapper: pass the model inside")
    _check_devices(model.named_parameters())
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "placements"):
            raise LayoutError(f"parameter '{name}' is a DTensor: a model that is cut otherwise too is not supported")
        if parameter.dtype != torch.float32:
            raise DTypeError(f"parameter '{name}' is {parameter.dtype}: expected float32, which param_dtype= casts for the passes")
        if not parameter.dim():
            raise LayoutError(f"parameter '{name}' has no dimension: FSDP2 cuts rows; make it a vector of one element")


def _check_devices(parameters: Iterable[tuple[str, Any]]) -> None:
    """Args: parameters: and their names."""
    first: Optional[tuple[str, Any]] = None
    for name, parameter in parameters:
        device = parameter.device
        if device.type not in ("cpu", "cuda"):
            remedy = ": call model.to_empty(device=...) and load it first" if device.type == "meta" else ""
            raise LayoutError(f"parameter '{name}' is on {device}, expected the host or a CUDA device{remedy}")
        first = first or (name, device)
        if device != first[1]:
            raise LayoutError(
                f"parameter '{first[0]}' is on {first[1]}, '{name}' on {device}: expected all of a rank on one device"
            )


def device_of(model: nn.Module) -> Any:
    """The device that the parameters of a model are on that was cut: FSDP2 moves them to that of the mesh."""
    return next(model.parameters()).device


def _parameter_names(model: nn.Module) -> dict[nn.Parameter, str]:
    """The name under which each parameter is published; of a shared one the first."""
    return {parameter: canonical_name(name) for name, parameter in model.named_parameters()}


def _unit(
    model: nn.Module, module: nn.Module, units: set[nn.Module], names: dict[nn.Parameter, str]
) -> Unit:
    module_name = next(name for name, each in model.named_modules() if each is module)
    parameters = tuple(
        UnitParameter(names[each], tuple(each.shape), each.requires_grad)
        for each in _managed(module, units)
    )
    return Unit(canonical_name(module_name) or "(the model)", parameters)


def _managed(root: nn.Module, units: set[nn.Module]) -> list[nn.Parameter]:
    """The parameters that fully_shard(root) takes, in its order: modules after those that they contain, without other
    units; each parameter once."""
    seen: set[nn.Module] = set()
    found: dict[nn.Parameter, None] = {}

    def visit(module: nn.Module) -> None:
        if module is not root and module in units:
            return
        seen.add(module)
        for child in module.children():
            if child not in seen:
                visit(child)
        for parameter in module.parameters(recurse=False):
            found.setdefault(parameter)

    visit(root)
    return list(found)


def _require_once(found: Sequence[tuple[nn.Module, Unit]]) -> None:
    """Raises LayoutError if units share a parameter."""
    first: dict[str, str] = {}
    for _, unit in found:
        for parameter in unit.parameters:
            other = first.setdefault(parameter.name, unit.name)
            if other != unit.name:
                raise LayoutError(
                    f"parameter '{parameter.name}' is in the units '{other}' and '{unit.name}': leave one of the modules that "
                    "share it out of units=, so that both are in one unit"
                )


def barrier() -> None:
    """Waits for all ranks."""
    group: Any = dist
    group.barrier()


def reset(model: Any) -> None:
    """Makes FSDP2 ready for another forward pass after one that ended with an error; gradients are discarded.

    Args:
      model: that was cut.
    """
    state = model._get_fsdp_state()
    if hasattr(model, "reset_iter_state"):  # torch 2.13
        if state._is_root is not None:  # else it was never called
            model.reset_iter_state()
    else:
        _reset_older(state)
    for group in _groups(model):
        for each in group.fsdp_params:
            each.unsharded_accumulated_grad = None
            if getattr(each, "_unsharded_param", None) is not None:
                each._unsharded_param.grad = None
    for parameter in model.parameters():
        parameter.grad = None


def _groups(model: nn.Module) -> Iterator[Any]:
    """FSDP2's groups of parameters."""
    module: Any
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            state = module._get_fsdp_state()
            many: Optional[Sequence[Any]] = getattr(state, "_fsdp_param_groups", None)
            one = getattr(state, "_fsdp_param_group", None) if many is None else None
            yield from many if many is not None else [one] if one is not None else []


def _reset_older(state: Any) -> None:
    """What reset_iter_state does, for torch 2.9 to 2.12."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

    context = state._comm_ctx
    if not hasattr(context, "post_forward_order"):
        return
    context.all_gather_state = None
    if hasattr(context, "reduce_scatter_state"):
        context.reduce_scatter_state = None
    if hasattr(context, "reduce_scatter_states"):
        context.reduce_scatter_states.clear()
    context.post_forward_order.clear()
    for each in state._state_ctx.all_states:
        each._training_state = TrainingState.IDLE
        if hasattr(each, "_modules_to_run_forward"):
            each._modules_to_run_forward.clear()
        many = getattr(each, "_fsdp_param_groups", None)
        for group in many if many is not None else [each._fsdp_param_group]:
            if group is None:
                continue
            result, group._all_gather_result = group._all_gather_result, None
            if result is not None and isinstance(result.all_gather_work, dist.Work):
                result.all_gather_work.wait()
            group._post_reduce_event = None
            group._reshard_after_forward_event = None
            group._partial_reduce_output = None
            group._post_forward_indices.clear()
            group._training_state = TrainingState.IDLE
            group._to_sharded()
    state._state_ctx.iter_forward_root = None
    state._state_ctx.post_backward_final_callback_queued = False
