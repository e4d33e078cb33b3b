"""The draft model of an engine that speculates, attached with its target as one engine: a commit changes both.

A draft proposes tokens, and the target verifies them. With old weights it proposes other tokens, and fewer are accepted;
outputs stay the target's. So there are two right ways, and a user has to choose one (AttachOptions.draft):

    "follow"   the draft's weights are the trainer's too: of a separate checkpoint (EAGLE, a small model) under the names
               that it has, with a prefix in the stream; of layers that the target's checkpoint has (MTP) under those names
    "fixed"    it keeps the weights that it has; those that it shares with the target are the target's

A draft that follows has its parameters under "draft." among the engine's. Tensors that it shares with the target, such as
the embedding, are attached once, as the target's. What a parameter is made of is known by the draft's own load_weights
alone: tables would take the layers of a draft for the target's. So its parameters are compared with its checkpoint before
anything is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
from typing import Any, Callable, Optional

from dws.errors import DwsError, LayoutError
from dws.mapping import CanonicalPart, Fused, Mapped, Parts, Source, Viewed, tensors_of
from dws.plugins.agreed_mapping import Agreed, Weights, agreed_mapping, folder_of
from dws.plugins.canonical import Parallel
from dws.plugins.checkpoint import CheckpointFiles, require_as_loaded
from dws.plugins.layers import Hooks, post_commit_hook, refuse, what_needs_a_hook
from dws.lease_stream import PostCommitHook
from dws.torch_module import named_tensors

FOLLOW, FIXED = "follow", "fixed"
_CHILD = "draft"
_PREFIX = f"{_CHILD}."
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Draft:
    """A draft that follows.

    Attributes:
      model: a torch module, as the engine runs it.
      weights: what it has loaded; None if the engine does not say.
      has_checkpoint: it has a checkpoint of its own, not the target's.
      prefix: of the names of that checkpoint in the stream.
    """

    model: Any
    weights: Optional[Weights]
    has_checkpoint: bool
    prefix: str = ""

    def __post_init__(self) -> None:
        if self.prefix and not self.has_checkpoint:
            raise LayoutError(
                f"draft_prefix is '{self.prefix}', and the draft's weights are in the target's checkpoint, under names of "
                "their own: leave draft_prefix out"
            )


def whole_engine(target: Any, draft: Optional[Draft]) -> Any:
    """A module with the names of the target's, and those of the draft under "draft."; without a draft the target itself.

    Raises:
      LayoutError: the target has a part of that name.
    """
    if draft is None:
        return target
    if hasattr(target, _CHILD):
        raise LayoutError(f"{type(target).__name__} has a part '{_CHILD}' of its own: a draft model cannot follow beside it")
    torch: Any = importlib.import_module("torch")
    # Messages name the class of the target.
    whole = type(type(target).__name__, (torch.nn.Module,), {})()
    # A child without a name adds nothing to the names of its parts. Tensors of both have the target's name.
    whole._modules.update({"": target, _CHILD: draft.model})
    return whole


def with_draft(target: Agreed, draft: Optional[Draft], model: Any, part: Parallel, given: Mapped) -> Agreed:
    """The mapping of the whole engine.

    Args:
      model: the target.
      part: of the draft too.
      given: sources of parameters of the whole engine.

    Raises:
      LayoutError: a parameter of the draft of which load_weights does not say what it is made of; or a tensor of its
        checkpoint has the name of one that the target is made of.
    """
    if draft is None:
        return target
    live = {id(tensor) for tensor in named_tensors(model).values()}
    shared = [name for name, tensor in named_tensors(draft.model).items() if id(tensor) in live]
    own = {name[len(_PREFIX) :]: source for name, source in given.items() if name.startswith(_PREFIX)}
    try:
        found = agreed_mapping(draft.model, None, part, {**own, **dict.fromkeys(shared)}, draft.weights)
    except LayoutError as error:
        raise LayoutError(f"draft model {type(draft.model).__name__}: {error}") from error
    mapping = {
        f"{_PREFIX}{name}": source if name in own else _prefixed(source, draft.prefix)
        for name, source in found.mapping.items()
        if name not in shared
    }
    if draft.has_checkpoint:
        taken = {tensor for source in target.mapping.values() for tensor in tensors_of(source)}
        twice = sorted(taken.intersection(tensor for source in mapping.values() for tensor in tensors_of(source)))
        if twice:
            raise LayoutError(
                f"the draft's checkpoint has '{twice[0]}' as the target's has ({len(twice)} such names in all): say under "
                "which names the trainer publishes the draft's, in the option draft_prefix, for example 'draft.'"
            )
    excluded = [f"{draft.prefix}{name}" for name in found.excluded]
    how = f"{target.how}; of the draft model {type(draft.model).__name__}, with {len(shared)} shared tensors: {found.how}"
    casts = {f"{_PREFIX}{name}": dtype for name, dtype in found.casts.items() if name not in shared}
    padded = {f"{_PREFIX}{name}": count for name, count in found.padded.items() if name not in shared}
    return Agreed(
        {**target.mapping, **mapping},
        how,
        (*target.excluded, *excluded),
        {**target.casts, **casts},
        {**target.padded, **padded},
    )


def without_draft(given: Mapped, draft: Optional[Draft]) -> dict[str, Source]:
    """Those of `given` that are of the target."""
    return {name: source for name, source in given.items() if draft is None or not name.startswith(_PREFIX)}


def require_draft_as_loaded(draft: Optional[Draft], attached: Any, mapping: Mapped) -> None:
    """Compares the draft's parameters with its checkpoint, but for those of layers that are processed after loading. A
    draft that has loaded none is not compared, which is logged.

    Args:
      attached: the module that is attached, of the whole engine.

    Raises:
      LayoutError: they differ.
    """
    if draft is None:
        return
    try:
        if draft.weights is None or not draft.weights.loaded:
            raise LayoutError("it has loaded none")
        files = Checkpoints(None, draft)
    except DwsError as error:
        _LOG.warning("dws: the weights of the draft model were not compared with its checkpoint: %s", error)
        return
    live = {id(tensor) for tensor in named_tensors(draft.model).values()}
    own = {n: t for n, t in named_tensors(attached).items() if n.startswith(_PREFIX) and id(t) in live}
    require_as_loaded(own, mapping, files)


class Checkpoints(CheckpointFiles):
    """The target's checkpoint and the draft's, under the names that their tensors have in the stream. One that the target's
    has is the target's."""

    def __init__(self, target: Optional[CheckpointFiles], draft: Draft) -> None:
        """Args:
        target: None: only the draft's is read.

        Raises:
          As folder_of and CheckpointFiles.
        """
        super().__init__(folder_of(draft.weights))
        self._target = target
        self._prefix = draft.prefix

    def _entry(self, name: str) -> Any:
        if self._target is not None:
            with contextlib.suppress(LayoutError):
                return self._target._entry(name)
        return super()._entry(name[len(self._prefix) :] if name.startswith(self._prefix) else name)


def hook_of(target: Any, draft: Optional[Draft], hooks: Optional[Hooks]) -> Optional[PostCommitHook]:
    """As post_commit_hook, of both models.

    Raises:
      As post_commit_hook.
      LayoutError: one of them has a hook, and the other has none and needs one, by layer.
    """
    models = [target] if draft is None else [target, draft.model]
    found = [post_commit_hook(model, hooks) for model in models]
    given = [hook for hook in found if hook is not None]
    if not given:
        return None
    for model, hook in zip(models, found):
        if hook is None:
            refuse(model, what_needs_a_hook(model))

    def after_commit(version: int) -> None:
        for hook in given:
            hook(version)

    return after_commit


def owner_of(name: str, target: Any, draft: Optional[Draft]) -> Any:
    """The one of both models to which a name in the whole engine belongs."""
    return draft.model if draft is not None and name.startswith(_PREFIX) else target


def lacks_hook(target: Any, draft: Optional[Draft], hooks: Optional[Hooks]) -> Callable[[str], bool]:
    """Returns whether the one of both models to which a name in the whole engine belongs has no hook."""
    return lambda name: post_commit_hook(owner_of(name, target, draft), hooks) is None


def _prefixed(source: Source, prefix: str) -> Source:
    """The source with each canonical name prefixed."""
    if not prefix or source is None:
        return source
    if isinstance(source, Viewed):
        inner: Any = _prefixed(source.source, prefix)
        return dataclasses.replace(source, source=inner)
    if isinstance(source, Fused):
        return dataclasses.replace(source, parts=[_prefixed_part(part, prefix) for part in source.parts])
    if isinstance(source, Parts):
        return Parts([dataclasses.replace(box, source=_prefixed_part(box.source, prefix)) for box in source.parts])
    return _prefixed_part(source, prefix)


def _prefixed_part(part: CanonicalPart, prefix: str) -> CanonicalPart:
    return f"{prefix}{part}" if isinstance(part, str) else dataclasses.replace(part, tensor=f"{prefix}{part.tensor}")
