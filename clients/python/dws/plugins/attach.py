"""One rank of an engine, attached: its parameters mapped, its forward passes held by the lease.

For dws.vllm and dws.sglang, which find model and ranks in their engine.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Any, Callable, Mapping, Optional, Protocol, Sequence, Type, TypeVar

from dws.arrays import require_plain
from dws.dtypes import DType
from dws.engine import Engine
from dws.errors import DwsError, InvalidArgumentError, LayoutError, StateError
from dws.held.watch import CopyWatch, explained
from dws.mapping import Mapped, source_of
from dws.plugins.agreed_mapping import Agreed, Weights, agreed_mapping, folder_of
from dws.plugins.canonical import Parallel
from dws.plugins.cast_parameters import CastParameters, turned_types, within_limit
from dws.plugins.checkpoint import CheckpointFiles, require_as_loaded
from dws.plugins.draft import (
    FIXED,
    FOLLOW,
    Checkpoints,
    Draft,
    hook_of,
    lacks_hook,
    owner_of,
    require_draft_as_loaded,
    whole_engine,
    with_draft,
    without_draft,
)
from dws.plugins.layers import Hooks, resolve
from dws.plugins.padding import with_zeros
from dws.plugins.processed import EngineProcessing, ProcessedLayers
from dws.plugins.refreshed import Refreshed
from dws.plugins.step_gate import Minimum, StepGate
from dws.receiver_link import ATTACH_TIMEOUT_SECONDS
from dws.torch_module import named_tensors

_LOG = logging.getLogger(__name__)
# Attribute of a model whose weights commits may have changed since it was loaded; not in the
# module's own tables, so that no code of the model sees it.
_ATTACHED_BEFORE = "_dws_attached_before"
_Result = TypeVar("_Result")

# How long a forward pass waits for the lease. Less than engines allow for a pass (vLLM: 300 s).
STEP_TIMEOUT_SECONDS = 240.0


_Options = TypeVar("_Options")


def known_options(kind: Type[_Options], options: dict[str, Any]) -> _Options:
    """Makes a dataclass of options.

    Raises:
      InvalidArgumentError: an unknown option, by name.
    """
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise InvalidArgumentError(f"unknown options {unknown}, expected some of {sorted(known)}")
    return kind(**options)


@dataclasses.dataclass(frozen=True)
class AttachOptions:
    """What a user can set; all of it fits into JSON.

    Attributes:
      ranks_on_host: of the engine, all by default. The ranks of an engine over several hosts attach
        to their host's receiver with their numbers on that host. Needed for replicas (data
        parallelism) of a model without experts: those of all replicas on the host.
      own: parameters that belong to the engine and are left alone.
      given: "package.module:function", called with the model: the mapping= of some parameters.
      excluded: canonical tensors that the engine does not hold.
      checkpoint: folder of the checkpoint that the engine was started with: live parameters are
        compared with it before anything is written. Reads all of it once. Its headers also say what
        load_weights is asked about, in place of those of the engine's own checkpoint. With a release of
        the engine that was never run with the plugin, the engine's own checkpoint is compared without it.
      hooks: class of the model -> "package.module:function" (dws.plugins.layers).
      kept: names of tensors of the model, with the wildcards of fnmatch, that may be copies of weights
        although nothing brings them up to date after a commit. A name that nothing has is refused.
      draft: what becomes of the draft model of an engine that speculates, "follow" or "fixed" (dws.plugins.draft). None:
        such an engine is refused.
      draft_prefix: of the names that the tensors of a draft's own checkpoint have in the stream.
      step_timeout: seconds that a forward pass waits for the lease before it fails.
      timeout: seconds for the attach itself.
    """

    ranks_on_host: Optional[int] = None
    own: Sequence[str] = ()
    given: Optional[str] = None
    excluded: Sequence[str] = ()
    checkpoint: Optional[str] = None
    hooks: Optional[Hooks] = None
    kept: Sequence[str] = ()
    draft: Optional[str] = None
    draft_prefix: str = ""
    step_timeout: float = STEP_TIMEOUT_SECONDS
    timeout: float = ATTACH_TIMEOUT_SECONDS

    def __post_init__(self) -> None:
        if self.draft not in (None, FOLLOW, FIXED):
            raise InvalidArgumentError(f"the option draft is {self.draft!r}, expected '{FOLLOW}' or '{FIXED}'")
        if self.draft_prefix and self.draft != FOLLOW:
            raise InvalidArgumentError(f"the option draft_prefix is '{self.draft_prefix}', expected draft='{FOLLOW}' with it")

    @classmethod
    def of(cls, options: dict[str, Any]) -> "AttachOptions":
        """Raises:
        InvalidArgumentError: an unknown option, or another value than it may have, by name.
        """
        return known_options(cls, options)


@dataclasses.dataclass(frozen=True)
class EngineRank:
    """One rank of an engine.

    Attributes:
      number: its number among all ranks that a commit changes together, including replicas.
      together: how many ranks' passes wait for each other.
      part: the part of the model that it has, as tables describe it.
    """

    number: int
    together: int
    part: Parallel


class AttachedRank:
    """Lifecycle: it is attached when it is made; close ends it. Threads: `gate` like the engine's
    `running`; otherwise one.

    Attributes:
      gate: run forward passes inside its steps.
      engine: the dws.Engine.
      mapping_by: in words, the source of the mapping.
    """

    def __init__(
        self,
        socket: str,
        model: Any,
        config: Any,
        rank: EngineRank,
        minimum: Optional[Minimum],
        options: AttachOptions,
        weights: Optional[Weights],
        commits_on_request: bool = False,
        processing: Optional[EngineProcessing] = None,
        compared: bool = True,
        draft: Optional[Draft] = None,
    ) -> None:
        """Args:
          model: a torch module, as the engine runs it.
          config: its Hugging Face text config.
          minimum: None for an engine of one rank.
          weights: what the engine has loaded; None if it does not say.
          commits_on_request: as for Engine.attach.
          processing: the engine's processing of layers after loading; None: it cannot be repeated.
          compared: false for a release of the engine whose weights were never compared with a fresh engine's: the first
            attach of a model compares them with its checkpoint.
          draft: the draft model that follows with it; None: it has none, or a fixed one.

        Raises:
          As Engine.attach, require_plain, agreed_mapping, with_draft and ProcessedLayers; the model is not changed then.
        """
        if minimum is None and rank.together > 1:
            raise StateError(f"{rank.together} ranks need a way to agree on their forward passes")
        if options.ranks_on_host is None and rank.number >= rank.together:
            raise LayoutError(
                f"rank {rank.number} is of a replica of the engine, of {rank.together} ranks: say how "
                "many ranks of all replicas attach to this host's receiver, in the option ranks_on_host"
            )
        on_host = options.ranks_on_host or rank.together
        whole, given = whole_engine(model, draft), _given(model, draft, options)
        post_commit = hook_of(model, draft, options.hooks)
        weights, draft = _loaded(options, weights, draft)
        holders = CopyWatch(whole, lambda: named_tensors(whole), options.kept).holders()
        processed = ProcessedLayers(whole, processing, post_commit is not None, holders)
        with processed.as_loaded():
            target = agreed_mapping(model, config, rank.part, without_draft(given, draft), weights)
            agreed = with_draft(target, draft, model, rank.part, given)
        processed.keep(agreed.mapping)
        kept_padding = with_zeros(processed.target, whole, agreed.mapping, agreed.padded)
        files = _files(options, weights, compared and not kept_padding, model)
        _require_files_for(kept_padding, files, model, draft)
        _require_as_loaded(processed, agreed.mapping, files, draft)
        self.rank = rank
        self.mapping_by = agreed.how + processed.how()
        self._processed = processed
        self._casts: Optional[CastParameters] = None
        weights_now = functools.partial(_weights, processed, agreed.mapping)
        refuses = lacks_hook(model, draft, options.hooks)
        watch = CopyWatch(whole, weights_now, options.kept, processed.updated(), refuses)
        self._refreshed = _refreshed(watch, processing, derives=processed.derives)
        self.engine = Engine(socket, rank.number % on_host, on_host)
        how = {"timeout": options.timeout, "commits_on_request": commits_on_request, "watch": watch}
        excluded = [*options.excluded, *agreed.excluded]
        try:
            self._attach(agreed, excluded=excluded, post_commit=post_commit, **how)
        except BaseException:
            self.engine.close()
            raise
        for attached in (model, draft and draft.model):
            if attached is not None:
                object.__setattr__(attached, _ATTACHED_BEFORE, True)
        self.gate = StepGate(self.engine, minimum, options.step_timeout)

    def _attach(self, agreed: Agreed, **how: Any) -> None:
        """Attaches what the mapping says. What the loader casts is cast after commits, if the trainer publishes the types of the
        checkpoint, and else has to be published in the engine's.

        Args:
          how: further arguments of Engine.attach.
        """
        turned = turned_types(self._processed.target, agreed.mapping)
        types = within_limit(self._processed.target, agreed.casts)
        refused: Optional[InvalidArgumentError] = None
        if types:
            try:
                return self._attach_with({**turned, **types}, agreed, how)
            except LayoutError:
                raise
            except InvalidArgumentError as error:  # of the receiver
                refused = error
        try:
            self._attach_with(turned, agreed, how)
        except InvalidArgumentError as error:
            if refused is None or isinstance(error, LayoutError):
                raise
            raise InvalidArgumentError(
                f"{error}; and with {len(types)} parameters as the engine's checkpoint has them, such as "
                f"'{next(iter(types))}': {refused}. Publish each weight in the type of that checkpoint (dtypes= of Publisher)"
            ) from refused

    def _attach_with(self, twins: Mapping[str, DType], agreed: Agreed, how: dict[str, Any]) -> None:
        """Args:
        twins: parameters that are written by way of a twin, with the types of these.
        """
        target, mapping = self._processed.target, agreed.mapping
        casts = self._casts = CastParameters(target, mapping, twins) if twins else None
        if casts is not None:
            target, mapping = casts.target, casts.mapping
        rebuilds = casts is not None or self._processed.count or self._refreshed
        self.engine.attach(target, mapping, rebuild=self._rebuild if rebuilds else None, **how)
        if casts is not None:
            self.mapping_by += casts.how()
            how["watch"].updates(casts.twins())

    @property
    def described(self) -> str:
        """In words, for the log."""
        return f"rank {self.rank.number} is attached: {self.mapping_by}"

    def _rebuild(self, changed: Optional[frozenset[str]]) -> None:
        if self._casts is not None:
            self._casts.write(changed)
        if self._processed.count:
            self._processed.rebuild(changed)
        if self._refreshed is not None:
            self._refreshed.run()

    def status(self) -> dict[str, Any]:
        """The state of this rank, for JSON. `version` is None while it is paused; `step_open` is
        whether a step of the calling thread makes commits wait."""
        grant, stats = self.engine.grant, self.engine.stats()
        return {
            "rank": self.rank.number,
            "mapping": self.mapping_by,
            "version": None if grant is None else grant.version,
            "stream": None if grant is None else str(grant.stream),
            "state_token": None if grant is None else grant.state_token,
            "passes": self.gate.passes,
            "step_open": self.gate.held is not None,
            "connected": stats.connected,
            "last_error": stats.last_error,
            "grants": stats.lease.grants,
            "paused_seconds": stats.lease.paused_seconds,
            "longest_pause_seconds": stats.lease.longest_pause_seconds,
            **self._processed.status(),
        }

    def close(self) -> None:
        """Detaches: forward passes in the gate fail from now on. Idempotent."""
        self.engine.close()


def _require_as_loaded(
    processed: ProcessedLayers, mapping: Mapped, files: Optional[CheckpointFiles], draft: Optional[Draft]
) -> None:
    """Compares the engine with `files`; a draft is compared with its own checkpoint in any case, once.

    Raises:
      LayoutError: they differ.
    """
    if files is None:
        if draft is not None and not hasattr(draft.model, _ATTACHED_BEFORE):
            require_draft_as_loaded(draft, processed.target, mapping)
        return
    if draft is not None:
        files = Checkpoints(files, draft)
    if processed.count:
        processed.require_as_loaded(mapping, files)
    require_as_loaded(named_tensors(processed.target), mapping, files)


def _require_files_for(
    kept_padding: Sequence[str], files: Optional[CheckpointFiles], model: Any, draft: Optional[Draft]
) -> None:
    """Raises LayoutError: there is no checkpoint to prove the padding of these parameters with."""
    unproved = [name for name in kept_padding if not hasattr(owner_of(name, model, draft), _ATTACHED_BEFORE)]
    if unproved and files is None:
        raise LayoutError(
            f"{len(unproved)} parameters have padding or constants in layers that are processed after loading, such as "
            f"'{unproved[0]}': expected the checkpoint that the engine has loaded, to compare with, and found none. Name "
            "its folder in the option checkpoint"
        )


def _files(options: AttachOptions, weights: Optional[Weights], compared: bool, model: Any) -> Optional[CheckpointFiles]:
    """The checkpoint to compare with: that of the options, or what a release that was never compared has loaded. None: none,
    which is logged of such a release."""
    if options.checkpoint is not None:
        return CheckpointFiles(options.checkpoint)
    if compared or hasattr(model, _ATTACHED_BEFORE):
        return None
    try:
        folder = folder_of(weights)
        if weights is not None and weights.loaded:
            return CheckpointFiles(folder)
        why = "the engine has loaded none"
    except DwsError as error:
        why = str(error)
    _LOG.warning("dws: weights were not compared with a checkpoint, in a release where they never were: %s", why)
    return None


def _loaded(
    options: AttachOptions, weights: Optional[Weights], draft: Optional[Draft]
) -> tuple[Optional[Weights], Optional[Draft]]:
    """What the model has loaded according to the options, if these say it, and the draft with that if its checkpoint is the
    same."""
    if options.checkpoint is None:
        return weights, draft
    weights = Weights(options.checkpoint)
    same = draft is not None and not draft.has_checkpoint
    return weights, dataclasses.replace(draft, weights=weights) if draft is not None and same else draft


def _given(model: Any, draft: Optional[Draft], options: AttachOptions) -> dict[str, Any]:
    """Returns the sources of parameters that the options give.

    Raises:
      As require_plain, of a parameter that does not belong to the engine.
    """
    given: dict[str, Any] = {name: None for name in options.own}
    if options.given is not None:
        extra: Mapped = resolve(options.given)(model)
        given.update(extra)
    for name, tensor in named_tensors(whole_engine(model, draft)).items():
        if given.get(name, name) is not None:
            require_plain(name, tensor)
    return given


def _weights(processed: ProcessedLayers, mapping: Mapped) -> dict[str, Any]:
    """What commits write, as it is now."""
    held = named_tensors(processed.target)
    return {name: tensor for name, tensor in held.items() if source_of(name, mapping) is not None}


def _refreshed(
    watch: CopyWatch, processing: Optional[EngineProcessing], derives: bool
) -> Optional[Refreshed]:
    """Returns the call by which the engine updates the tensors that the model makes from its
    weights; None: it has no such call.

    Args:
      derives: true if the call is the processing of layers, which was tried already.

    Raises:
      LayoutError: no call updates one of them; the message names it.
    """
    copies = watch.before_attach()
    beside, watch.beside = watch.beside, []
    call = None if processing is None else processing.refresh()
    refreshed = None
    if call is not None:
        refreshed = Refreshed(call)
        if not derives:
            refreshed.adopt_made(beside, copies)
            watch.updates(held.tensor for held in refreshed.adopted.values())
            copies = {name: each for name, each in copies.items() if name not in refreshed.adopted}
        watch.adopt = refreshed.adopt
        copies = watch.not_adopted(copies)
    if copies:
        raise LayoutError(explained(copies))
    return refreshed


class Attachable(Protocol):
    """What ranks attach together: an AttachedRank, or an adapter."""

    @property
    def described(self) -> str:
        """In words, for the log."""

    def close(self) -> None:
        """Detaches."""


_Attached = TypeVar("_Attached", bound=Attachable)


def attach_together(
    make: Callable[[], _Attached], minimum: Optional[Minimum], log: logging.Logger = _LOG
) -> _Attached:
    """Calls make() so that it succeeds on all ranks or on none: otherwise attached ranks would wait
    for the others for ever.

    Args:
      log: told who says what the parameters are made of.

    Raises:
      StateError: another rank failed; see that rank's error.
      The errors of `make`.
    """
    try:
        attached = make()
    except BaseException:
        if minimum is not None:
            minimum([0])
        raise
    if minimum is not None and not minimum([1])[0]:
        attached.close()
        raise StateError("another rank of the engine could not be attached: see its error")
    log.info("dws: %s", attached.described)
    return attached


def reply_together(
    call: Callable[[], _Result], is_last: bool, minimum: Callable[[], Optional[Minimum]]
) -> Optional[_Result]:
    """Runs call(), which answers an RPC of the engine's executor to all ranks. vLLM's executor
    reads the ranks' replies in order, stops at the first error, and takes the replies that it left
    for those of its next RPC. So only the last rank raises an error; the other ranks log theirs and
    return None.

    Args:
      is_last: true on the rank whose reply is read last.
      minimum: returns the minimum over the ranks; called after `call`. None: the ranks cannot tell
        each other, which is for one rank, and for errors that all ranks find alike.

    Raises:
      StateError: another rank failed: its log has the error.
      The errors of `call`.
    """
    error: Optional[Exception] = None
    result: Optional[_Result] = None
    try:
        result = call()
    except Exception as raised:  # pylint: disable=broad-except
        error = raised
    agree = minimum()
    all_fine = error is None if agree is None else agree([int(error is None)])[0]
    if all_fine:
        return result
    if is_last:
        raise error or StateError("another rank of the engine failed: its log has the error")
    if error is not None:
        _LOG.error("dws: the last rank raises for this one: %s: %s", type(error).__name__, error)
    return None
