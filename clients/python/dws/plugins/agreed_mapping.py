"""What the parameters of an engine's rank are made of: by the tables (dws.plugins.mapping) and by the
engine's own load_weights (dws.plugins.capture), each a check on the other.

    a parameter is known to        its source is
    both                           the table's, if they agree on every element; else refused
    load_weights alone             load_weights'
    the table alone                refused: load_weights computes it, or leaves it as it is
    neither                        refused, by name

A table knows a parameter if its name and shape fit, and the checkpoint has the tensors that it names.
Where load_weights cannot be captured at all, the tables alone decide; `how` says so, and why. Names,
shapes and types come from the headers of the checkpoint that the engine was started with.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import time
from typing import Any, Iterable, Mapping, NamedTuple, Optional

from dws.dtypes import DType
from dws.errors import DwsError, InvalidArgumentError, LayoutError
from dws.mapping import Mapped, Source
from dws.plugins.canonical import Canonical, ModelShape, Parallel
from dws.plugins.capture import Captured, capture
from dws.plugins.cast_parameters import casts_of
from dws.plugins.checkpoint import CheckpointFiles
from dws.plugins.layers import is_constant
from dws.plugins.mapping import is_engines_own, parameter_source
from dws.plugins.pieces import difference, pieces_of_source, source_of_pieces
from dws.torch_module import named_tensors

# How many names of parameters a message has.
_NAMES = 3


class Weights(NamedTuple):
    """Where an engine has loaded its weights from.

    Attributes:
      path: a folder, or a name on Hugging Face's hub.
      revision: of a name on the hub.
      loaded: false if the engine has made its weights up, and has taken only names and shapes from there.
    """

    path: str
    revision: Optional[str] = None
    loaded: bool = True


@dataclasses.dataclass(frozen=True)
class Agreed:
    """Attributes:
    mapping: a Source for every parameter and persistent buffer.
    excluded: canonical tensors that no parameter is made of, because no version changes them.
    how: in words, who says so.
    casts: parameters that load_weights casts, each with the type of the checkpoint.
    padded: parameters of which load_weights leaves elements as they are, with the number of these.
    """

    mapping: dict[str, Source]
    how: str
    excluded: tuple[str, ...] = ()
    casts: Mapping[str, DType] = dataclasses.field(default_factory=dict)
    padded: Mapping[str, int] = dataclasses.field(default_factory=dict)


def agreed_mapping(
    model: Any, config: Any, rank: Parallel, given: Mapped, weights: Optional[Weights]
) -> Agreed:
    """The mapping= of dws.Engine.attach for one rank.

    Args:
      model: a torch module, as the engine runs it; not changed.
      config: the Hugging Face text config, for the table; None: there is none, and load_weights alone is asked.
      given: the sources of parameters about which neither table nor load_weights is asked.
      weights: None if the engine does not say.

    Raises:
      LayoutError: a parameter is refused; the message has its name, and what the table and
        load_weights say.
    """
    tensors = named_tensors(model)
    given = {**dict.fromkeys(filter(is_constant, tensors)), **given}
    shapes = {
        name: tuple(int(extent) for extent in tensor.shape)
        for name, tensor in tensors.items()
        if name not in given
    }
    table, unknown = _by_table(shapes, config, rank)
    begin = time.monotonic()
    try:
        canonical = _canonical(weights)
        captured = capture(model, canonical)
    except DwsError as error:
        for name in unknown:
            raise LayoutError(
                f"{unknown[name]}; and load_weights cannot be asked instead: {error}"
            ) from None
        how = f"the table alone says what {len(table)} parameters are made of: {error}"
        return Agreed({**given, **table}, how)
    loaded = _Loaded(captured, {name: entry.shape for name, entry in canonical.items()})
    mapping: dict[str, Source] = dict(given)
    alone = []
    for name, shape in shapes.items():
        why = unknown.get(name)
        if why is None:
            why = loaded.differs_from(name, shape, table[name])
        if why is None:
            mapping[name] = table[name]
        else:
            mapping[name] = loaded.source(name, shape, why)
            alone.append(name)
    agreed = f"load_weights and the table agree on {len(shapes) - len(alone)} parameters"
    how = (
        f"{agreed if config is not None else 'no table is asked'}"
        f"{f', load_weights alone says it of {len(alone)}: {_some(alone)}' if alone else ''} "
        f"({len(canonical)} tensors, {time.monotonic() - begin:.1f} s)"
    )
    casts = casts_of(tensors, mapping, canonical, given)
    padded = {name: count for name, count in captured.padded.items() if name in shapes}
    return Agreed(mapping, how, tuple(filter(is_constant, canonical)), casts, padded)


def _by_table(
    shapes: Mapping[str, tuple[int, ...]], config: Any, rank: Parallel
) -> tuple[dict[str, Source], dict[str, str]]:
    """Sources by name, and for the other names why there is none."""
    table: dict[str, Source] = {name: None for name in shapes if is_engines_own(name)}
    unknown: dict[str, str] = {}
    others = {name: shape for name, shape in shapes.items() if name not in table}
    if config is None:
        return table, dict.fromkeys(others, "they are not for this model")
    try:
        model = ModelShape.from_config(config)
    except LayoutError as error:
        return table, dict.fromkeys(others, str(error))
    for name, shape in others.items():
        try:
            table[name] = parameter_source(name, shape, model, rank)
        except LayoutError as error:
            unknown[name] = str(error)
    return table, unknown


def _canonical(weights: Optional[Weights]) -> dict[str, Canonical]:
    """Raises as folder_of, and InvalidArgumentError: the checkpoint is no safetensors."""
    return CheckpointFiles(folder_of(weights)).canonical()


def folder_of(weights: Optional[Weights]) -> str:
    """The folder of a checkpoint on this host.

    Raises:
      InvalidArgumentError: it cannot be found.
    """
    if weights is None:
        raise InvalidArgumentError(
            "the engine does not say where its checkpoint is: name its folder in the option checkpoint"
        )
    folder: str = weights.path
    if not os.path.isdir(folder):
        try:
            hub: Any = importlib.import_module("huggingface_hub")
            folder = hub.snapshot_download(
                weights.path, revision=weights.revision, local_files_only=True
            )
        except Exception as error:  # of the hub's own kinds
            raise InvalidArgumentError(
                f"'{weights.path}' is no folder, and the hub's cache does not have it "
                f"({type(error).__name__}): name the folder in the option checkpoint"
            ) from error
    return folder


class _Loaded:
    """What load_weights does, of one parameter at a time."""

    def __init__(self, captured: Captured, canonical: Mapping[str, tuple[int, ...]]) -> None:
        self._captured = captured
        self._canonical = canonical

    def differs_from(self, name: str, shape: tuple[int, ...], said: Source) -> Optional[str]:
        """Returns None if load_weights does what the table says. If the table is for another
        checkpoint, returns why.

        Raises:
          LayoutError: the table is for this checkpoint, and load_weights does something else.
        """
        try:
            table = pieces_of_source(shape, said, self._canonical)
        except LayoutError as error:
            return str(error)
        why = self._no_pieces(name)
        if why is None:
            differs = difference(table, self._captured.pieces[name])
        else:
            differs = f"table says {table[0]}, {why}" if table else None
        if differs is None:
            return None
        raise LayoutError(
            f"parameter '{name}' {list(shape)}: the table and the engine differ, {differs}. One of "
            "them is wrong: name the right source in the option given, and report this"
        )

    def source(self, name: str, shape: tuple[int, ...], unknown: str) -> Source:
        """Returns the source that load_weights alone gives.

        Args:
          unknown: why the table does not know it.

        Raises:
          LayoutError: it says nothing that can be attached.
        """
        why = self._no_pieces(name)
        if why is None:
            try:
                return source_of_pieces(shape, self._captured.pieces[name], self._canonical)
            except LayoutError as error:
                why = str(error)
        raise LayoutError(
            f"parameter '{name}' {list(shape)}: {why}; and the tables do not know it: {unknown}. Name "
            "its source in the option given, or the parameter in own if only the engine uses it"
        )

    def _no_pieces(self, name: str) -> Optional[str]:
        if name in self._captured.untouched:
            return "load_weights copies nothing into it"
        return self._captured.refused.get(name)


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:_NAMES]) + (" ..." if len(found) > _NAMES else "")
