"""A Python for programs that train on demand: with torch 2.9 or newer."""

from __future__ import annotations

import os
import subprocess
from typing import Optional

import dws
from dws.on_demand.units import require_torch
from tools.real.environment import Environment, Interpreter

NEEDED = "torch 2.9 or newer, numpy, grpcio and protobuf"
VARIABLE = "DWS_ENGINES"
_TEST = "import google.protobuf, grpc, numpy, torch; print(torch.__version__)"


class NoTorch(RuntimeError):
    """There is no such Python; the message says what was looked at, what is needed, and how to name one."""


def training_python(named: str, folder: Optional[str] = None) -> Interpreter:
    """Finds it, and checks that it has what is needed.

    Args:
      named: its path. Empty: that of the environment of vLLM in `folder`.
      folder: made by tools/real.sh install; None: $DWS_ENGINES.

    Raises:
      NoTorch: none is named, or it lacks something.
    """
    if named:
        python = Interpreter(named, os.environ.get("LD_LIBRARY_PATH", ""))
    else:
        folder = os.environ.get(VARIABLE, "") if folder is None else folder
        environment = Environment(folder, "vllm")
        if not folder or not os.path.exists(environment.python):
            where = f"{VARIABLE}={folder} has no vllm/bin/python" if folder else f"{VARIABLE} is not set"
            raise NoTorch(f"needs a Python with {NEEDED}: {where}; name one with --python, or see tools/real.sh install")
        python = environment.interpreter()
    expected = f"{python.path}: expected a Python with {NEEDED}, found"
    try:
        asked = subprocess.run(
            [python.path, "-c", _TEST], env=python.variables([]), check=True, capture_output=True, text=True
        )
        require_torch(asked.stdout.strip())
    except OSError as error:
        raise NoTorch(f"{expected} {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        found = error.stderr.strip().rpartition("\n")[2] or f"a program that ends with status {error.returncode}"
        raise NoTorch(f"{expected} {found}") from error
    except dws.StateError as error:
        raise NoTorch(f"{python.path}: {error}") from error
    return python
