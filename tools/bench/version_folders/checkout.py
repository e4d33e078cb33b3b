"""slime's own writer and reader, loaded from a checkout of slime. Nothing of slime is installed or kept: what its
files import and the bench does not need is replaced by stand-ins, and its reader is taken from the patch of
SGLang that the checkout has.

The stand-ins: one process instead of a process group, tensors that are gathered already, and the Python
package safetensors.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import logging
import os
import struct
import sys
import tempfile
import types
from typing import Any

_PATCHES = "docker/patch/latest/*pull_weights*.patch"
_READER = "local_checkpoint.py"
_PACKAGE = "slime.backends.megatron_utils.update_weight"
_HELPERS = "slime.utils.disk_delta"


class CheckoutUnusable(RuntimeError):
    """The checkout does not have what the bench runs."""


def _added_file(patch: str, name: str) -> str:
    """The text of a file that `patch` adds."""
    lines = []
    inside = False
    with open(patch, encoding="utf-8") as file:
        for line in file:
            if line.startswith("diff --git "):
                inside = line.rstrip().endswith("/" + name)
            elif inside and line.startswith("+") and not line.startswith("+++"):
                lines.append(line[1:])
    return "".join(lines)


def _load(name: str, path: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _stand_in(name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    module.__path__ = []
    sys.modules[name] = module
    if "." in name:
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, module)


def _save(tensors: dict[str, Any], metadata: dict[str, str]) -> bytes:
    """As safetensors.numpy.save, for lists of bytes."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": "U8",
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.size],
        }
        end += tensor.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *tensors.values()])


def _one_process() -> dict[str, Any]:
    def all_gather_object(out: list[Any], value: Any, **unused: Any) -> None:
        out[0] = value

    return {
        "barrier": lambda **unused: None,
        "get_world_size": lambda: 1,
        "get_rank": lambda: 0,
        "all_gather_object": all_gather_object,
    }


def _module(checkout: str, name: str) -> str:
    path = os.path.join(checkout, *name.split(".")) + ".py"
    if not os.path.isfile(path):
        raise CheckoutUnusable(f"{checkout}: has no {os.path.relpath(path, checkout)}")
    return path


class CheckoutReader:
    """slime's reader of the versions in `folder`, on the local checkpoint in `local`."""

    def __init__(self, checkout: str, folder: str, local: str) -> None:
        patches = sorted(glob.glob(os.path.join(checkout, _PATCHES)))
        text = _added_file(patches[0], _READER) if patches else ""
        if "def _apply_delta(" not in text:
            raise CheckoutUnusable(f"{checkout}: no {_PATCHES} adds a {_READER} that applies deltas")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, _READER)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            self._module = _load("slime_local_checkpoint", path)
        self._folder = folder
        self._local = local

    def apply(self, version: int) -> None:
        self._module._apply_delta(self._local, os.path.join(self._folder, f"weight_v{version:06d}"))


class CheckoutWriter:
    """slime's writer of versions 1, 2, ... into `folder`."""

    def __init__(self, checkout: str, folder: str, base: dict[str, Any], encoding: str) -> None:
        import torch
        import torch.distributed

        self._torch = torch
        _stand_in("ray")
        _stand_in("ray.actor", ActorHandle=object)
        _stand_in("megatron")
        _stand_in("megatron.core", mpu=None)
        _stand_in("safetensors")
        _stand_in("safetensors.numpy", save=_save)
        _stand_in("slime")
        _stand_in("slime.utils", accelerator=None)
        _stand_in("slime.utils.distributed_utils", get_gloo_group=lambda: None)
        parent = ""
        for part in _PACKAGE.split(".")[1:]:
            parent = f"{parent or 'slime'}.{part}"
            _stand_in(parent)
        _stand_in(
            f"{_PACKAGE}.update_weight_from_distributed", UpdateWeightFromDistributed=object
        )
        _load(_HELPERS, _module(checkout, _HELPERS))
        name = f"{_PACKAGE}.update_weight_from_disk_delta"
        module = _load(name, _module(checkout, name))
        module.dist = types.SimpleNamespace(**_one_process())
        logging.getLogger(name).setLevel(logging.ERROR)
        self._writer = object.__new__(module.UpdateWeightFromDiskDelta)
        self._writer.__dict__.update(
            delta_dir=folder,
            delta_encoding=encoding,
            checksum_algorithm="xxh3-128",
            weight_version=0,
            _snapshot=base,
            _is_pp_src_rank=True,
        )

    def publish(self, version: int, tensors: dict[str, Any]) -> None:
        """`tensors`: bytes by name, which the writer keeps."""
        torch = self._torch
        self._writer.weight_version = version
        gathered = [(name, torch.from_numpy(tensor)) for name, tensor in tensors.items()]
        self._writer._iter_hf_tensors = lambda: iter(gathered)
        self._writer._publish()

    def close(self) -> None:
        pass
