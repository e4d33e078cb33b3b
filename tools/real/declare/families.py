"""Compares dws.declare and dws.trainers with transformers, which this Python has.

Small random models are saved by transformers itself. Each checkpoint must have the names that dws.declare.from_module gives for
the module, and the same bits; Publisher must declare the same names, types and shapes. A model of REFUSED must be refused by
name, and no other one. Families of dws.declare.experts must give the same by their table.

    python -m tools.real.declare.families [FILE]    FILE: where docs/checkpoint-names.md is written
"""

from __future__ import annotations

import datetime
import os
import sys
import tempfile
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

import dws
from dws.declare.experts import FAMILIES
from dws.trainers.module_weights import ModuleWeights
from tools.real.declare.models import CLASSES, DENSE, EXPERTS, TIED, VISION, random_model
from tools.real.report import Report

# Their checkpoints have tensors that transformers computes from several of the module's, by the operation of that name.
REFUSED = {"ernie4_5_vl_moe": "Concatenate", "kimi_k25": "Concatenate"}
KINDS = {"dense": DENSE, "experts": EXPERTS, "vision": VISION, "tied": tuple(TIED)}

PAGE = """# Names in checkpoints

The names and pieces that `dws.declare.from_module` and `dws.trainers` give models of transformers, beside what `save_pretrained` writes.
{equal} of {all} small models of random weights are equal by name and to the bit; {refused} are refused by name.
`tools/real.sh declare --table=docs/checkpoint-names.md` wrote this page, on {date} with transformers {transformers} and torch {torch}.

| kind | `model_type` | class | tensors of the module | of the checkpoint | outcome |
|---|---|---|---|---|---|
"""


def saved(model: Any) -> dict[str, torch.Tensor]:
    """The checkpoint that transformers writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(os.path.join(folder, "model.safetensors"))


def difference(declared: dws.declare.ModuleTensors, checkpoint: dict[str, torch.Tensor]) -> str:
    """Describes the first difference; empty if there is none."""
    names = sorted(set(declared) ^ set(checkpoint))
    if names:
        return f"{len(names)} names are on one side only, the first is '{names[0]}'"
    for name, tensor in declared.items():
        expected = checkpoint[name]
        if (tensor.dtype, tensor.shape) != (expected.dtype, expected.shape):
            return f"'{name}': {tensor.dtype} {list(tensor.shape)}, saved {expected.dtype} {list(expected.shape)}"
        if not torch.equal(tensor, expected):
            return f"'{name}' has other values"
    return ""


def published_difference(model: Any, checkpoint: dict[str, torch.Tensor]) -> str:
    """Describes the first difference of what Publisher declares; empty if there is none."""
    found = {
        name: (each.spec.dtype.torch, each.spec.shape) for name, each in ModuleWeights(model).declared.items()
    }
    expected = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in checkpoint.items()}
    wrong = sorted(name for name in {**found, **expected} if found.get(name) != expected.get(name))
    return f"Publisher declares '{wrong[0]}' as {found.get(wrong[0])}" if wrong else ""


def outcome(name: str, report: Report) -> tuple[int, int, str]:
    """Checks one model.

    Returns:
      the numbers of tensors of the module and of the checkpoint, and what the table says of it.
    """
    try:
        model = random_model(name)
        of_module, checkpoint = len(dws.named_tensors(model)), saved(model)
    except Exception as error:  # of transformers: it refuses the sizes of models.py
        report.failed(name, f"transformers makes no such model: {type(error).__name__}: {error}")
        return 0, 0, "not made"
    try:
        wrong = difference(dws.declare.from_module(model), checkpoint)
        wrong = wrong or published_difference(model, checkpoint)
        if not wrong and name in FAMILIES:
            wrong = difference(dws.declare.from_module(model, name), checkpoint)
            wrong = wrong and f"by the table of dws.declare.experts: {wrong}"
        said = wrong or "equal"
    except dws.LayoutError as error:
        wrong = "" if REFUSED.get(name, "\0") in str(error) else f"refused: {error}"
        said = f"refused: {REFUSED.get(name)}"
        try:
            ModuleWeights(model)
            wrong = "from_module refuses it, and Publisher does not"
        except dws.LayoutError:
            pass
    else:
        if name in REFUSED:
            wrong = wrong or "is not refused: take it out of REFUSED"
    if wrong:
        report.failed(name, wrong)
    else:
        report.ok(name, f"{said}, {of_module} tensors of the module, {len(checkpoint)} of the checkpoint")
    return of_module, len(checkpoint), said


def main() -> int:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    report = Report(f"transformers {transformers.__version__}, torch {torch.__version__}")
    rows = []
    for kind, names in KINDS.items():
        for name in names:
            of_module, saved_count, said = outcome(name, report)
            of = CLASSES[TIED.get(name, name)]
            rows.append((said, f"| {kind} | `{name}` | {of} | {of_module} | {saved_count} | {said} |\n"))
    status = report.end()
    if len(sys.argv) > 1 and status == 0:
        page = PAGE.format(
            all=len(rows),
            equal=sum(said == "equal" for said, _ in rows),
            refused=sum(said != "equal" for said, _ in rows),
            date=datetime.date.today(),
            transformers=transformers.__version__,
            torch=torch.__version__,
        )
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(page + "".join(row for _, row in rows))
    return status


if __name__ == "__main__":
    sys.exit(main())
