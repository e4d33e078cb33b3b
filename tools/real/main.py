"""tools/real.sh: says what is missing, builds what runs beside it, and runs one check.

It runs twice: first from the source tree, where it looks for the environments and builds, then, with REAL_CHECK_INSIDE, from
the runfiles of //tools/real, with the daemons and the wheel.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import shutil
import subprocess
import sys
from typing import Callable, Dict, NoReturn, Union

from tools.real import record
from tools.real.environment import ENGINES, Environment, Interpreter
from tools.real.page import browser


Found = Union[Interpreter, Dict[str, Environment], str]  # what a check runs with


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a check needs of its Python, in words, and a program that fails without it."""

    what: str
    test: str


# What the checks that run with one Python need. The other checks use all engines that are installed.
NEEDS = {
    "trainers": Needs(
        "torch with fully_shard (2.6 or newer)", "from torch.distributed.fsdp import fully_shard"
    ),
    "quickstart": Needs(
        "torch with fully_shard (2.6 or newer)", "from torch.distributed.fsdp import fully_shard"
    ),
    "declare": Needs(
        "transformers 5 or newer",
        "from importlib.metadata import version as v; assert int(v('transformers').split('.')[0]) >= 5",
    ),
    "store": Needs("moto with its server, and boto3", "import boto3, moto.server"),
    "chains": Needs(
        "modelexpress 0.7 with torch, safetensors, boto3 and moto",
        "import boto3, moto.server, modelexpress_rl.train.methods.canonical_delta",
    ),
    "slime": Needs("numpy, zstandard and xxhash", "import numpy, xxhash, zstandard"),
    "verl": Needs("verl 0.9.1 with torch 2.6 or newer and Ray", "import ray, verl.checkpoint_engine"),
    "kubernetes": Needs("kubernetes-validate", "import kubernetes_validate"),
    "ray": Needs("Ray", "import ray.cluster_utils, grpc, numpy, google.protobuf"),
    "quantise": Needs("torch with float8_e4m3fn", "import numpy, torch; torch.float8_e4m3fn"),
    "demo": Needs(
        "vLLM and transformers",
        "import importlib.util as u; lacks = [n for n in ('vllm', 'transformers') if not u.find_spec(n)]; "
        "assert not lacks, lacks",
    ),
}
CHECKS = (
    "engines", "adapters", "trainers", "verl", "capture", "declare", "quantise", "quickstart", "store",
    "chains", "slime", "kubernetes", "ray", "demo", "page",
)  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/real.sh", allow_abbrev=False)
    commands = parser.add_subparsers(dest="check", required=True, metavar="COMMAND")
    install = commands.add_parser("install", allow_abbrev=False)
    install.add_argument("folder")
    install.add_argument("engine", nargs="?", choices=ENGINES)
    install.add_argument("release", nargs="?")
    of = {name: commands.add_parser(name, allow_abbrev=False) for name in CHECKS}
    of["page"].add_argument("--shots", type=_path)
    for name, check in of.items():
        check.add_argument("--record", type=_path)
        if name == "page":
            continue
        check.add_argument("--engines", default=os.environ.get("DWS_ENGINES", ""))
        if name in NEEDS:
            check.add_argument("--python", default="")
        if name in ("engines", "adapters", "trainers", "capture", "quickstart", "ray"):
            check.add_argument("--only", type=lambda text: text.split(","))
        if name in ("engines", "trainers", "quickstart"):
            check.add_argument("--logs", type=_path)
    of["declare"].add_argument("--table", type=_path)
    of["slime"].add_argument("--source", type=_path, default="")
    of["engines"].add_argument("--all", action="store_true")
    of["engines"].add_argument("--list", action="store_true")
    of["engines"].add_argument("--compare", action="store_true")
    for name in ("engines", "adapters"):
        of[name].add_argument("--seconds", type=float, default=20.0)
    of["engines"].add_argument("--minutes", type=float, default=60.0)
    of["ray"].add_argument("--without-watch", action="store_true")
    of["quantise"].add_argument("--verbose", action="store_true")
    of["demo"].add_argument("--steps", type=_at_least(4), default=50)
    of["demo"].add_argument("--warm-up", type=_at_least(1), default=100)
    of["demo"].add_argument("--seed", type=int, default=1)
    of["demo"].add_argument("--limit", type=_at_least(1), default=900)
    of["demo"].add_argument("--stale-checkpoint", action="store_true")
    return parser.parse_args()


def _path(text: str) -> str:
    """The path `text`, taken relative to the caller's folder, which this process has left."""
    return os.path.abspath(os.path.join(os.environ.get("REAL_CHECK_FOLDER", ""), text))


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: expected at least {least}")
        return int(text)

    return number


def skip(check: str, why: str) -> NoReturn:
    print(f"skipped {check}: {why}")
    sys.exit(0)


def find_interpreter(options: argparse.Namespace) -> Interpreter:
    """The Python of a check that runs with one.

    Raises:
      SystemExit: there is none.
    """
    what = NEEDS[options.check].what
    if not options.python:
        environment = Environment(_path(options.engines), "vllm") if options.engines else None
        if environment is None or environment.version() is None:
            why = f"no Python with {what} is named (--python), and --engines (or DWS_ENGINES) has no vLLM"
            skip(options.check, f"{why}; tools/real.sh install makes one")
        return environment.interpreter()
    # A symbolic link is not resolved: its folder tells Python which environment it belongs to.
    named = shutil.which(_path(options.python) if os.sep in options.python else options.python)
    if named is None:
        sys.exit(f"{options.python} (--python): there is no such Python; expected one with {what}")
    libraries, modules = (os.environ.get(f"REAL_CHECK_{name}", "") for name in ("LIBRARIES", "MODULES"))
    return Interpreter(os.path.abspath(named), libraries, modules)


def require(python: Interpreter, needs: Needs) -> None:
    """Raises SystemExit: the Python does not have what the check needs."""
    tried = subprocess.run([python.path, "-c", needs.test], env=python.variables([]), check=False)
    if tried.returncode != 0:
        sys.exit(f"{python.path} has no {needs.what} that works: see the error above")


def find_browser(options: argparse.Namespace) -> str:
    """The browser's program.

    Raises:
      SystemExit: there is none.
    """
    program = browser.find()
    if program is None:
        skip(options.check, f"none of {', '.join(browser.NAMES)} is installed; apt-get install chromium installs one")
    return program


def find_engines(options: argparse.Namespace) -> dict[str, Environment]:
    """The engines that are installed, by name.

    Raises:
      SystemExit: there is none.
    """
    if not options.engines:
        skip(options.check, "no folder with engines is named (--engines or DWS_ENGINES); tools/real.sh install makes one")
    found = {name: Environment(_path(options.engines), name) for name in ENGINES}
    there = {name: one for name, one in found.items() if one.version() is not None}
    if not there:
        skip(options.check, f"{_path(options.engines)} has neither vLLM nor SGLang; tools/real.sh install makes them")
    return there


def run_inside(options: argparse.Namespace, found: Found) -> NoReturn:
    """Continues in the runfiles of what it builds."""
    quietly = ["--ui_event_filters=-info,-stdout,-stderr", "--noshow_progress"]
    subprocess.run(["tools/bazel.sh", "build", *quietly, "//tools/real"], check=True)
    asked = ["tools/bazel.sh", "info", "--noshow_progress", "bazel-bin"]
    binaries = subprocess.run(asked, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    program = f"{binaries.stdout.strip()}/tools/real/real"
    if options.record:
        sys.exit(record.run(options.record, options.check, [program, *sys.argv[1:]], found))
    os.execv(program, [program, *sys.argv[1:]])


def _find(options: argparse.Namespace) -> Found:
    """What the check runs with, which is passed to it."""
    if options.check == "page":
        return find_browser(options)
    return find_interpreter(options) if options.check in NEEDS else find_engines(options)


def main() -> int:
    options = parse()
    if options.check == "install":
        from tools.real.install.install import install_all, install_beside

        if options.release:
            return install_beside(_path(options.folder), options.engine, options.release)
        return install_all(_path(options.folder), [options.engine] if options.engine else list(ENGINES))
    found = _find(options)
    if options.check == "slime" and not options.source:
        skip(options.check, "no checkout of THUDM/slime is named (--source)")
    if "REAL_CHECK_INSIDE" not in os.environ:
        if isinstance(found, Interpreter):
            require(found, NEEDS[options.check])
        run_inside(options, found)
    # The paths of the wheel and of the runfiles.
    options.modules = os.environ["PYTHONPATH"].split(os.pathsep)
    check = importlib.import_module(f"tools.real.{options.check}.check")
    status: int = check.run(options, found)
    return status


if __name__ == "__main__":
    sys.exit(main())
