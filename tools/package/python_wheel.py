"""Makes the wheel of the Python client: python_wheel.py OUT BUILD_VERSION_H PYPROJECT PREFIX FILE...

FILE is below PREFIX or below a folder of that name in another root (generated files). Same files: same bytes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile

from setuptools import build_meta

# Times of files in the archive; ZIP knows none before 1980.
_EPOCH = "315532800"


def main(arguments: list[str]) -> int:
    out, version_header, project, prefix, *files = arguments
    out = os.path.abspath(out)
    with open(version_header) as file:
        version = re.search(r'kBuildVersion = "(.*)"', file.read())
    if version is None:
        raise ValueError(f"{version_header}: expected a line with kBuildVersion, found none")
    os.environ["SOURCE_DATE_EPOCH"] = _EPOCH
    with tempfile.TemporaryDirectory() as work:
        os.chmod(work, 0o755)
        for path in files:
            _put(path, os.path.join(work, path[path.index(prefix) + len(prefix) :]))
        _put(project, os.path.join(work, "pyproject.toml"))
        with open(os.path.join(work, "VERSION"), "w") as file:
            file.write(version[1])
        os.chdir(work)
        os.mkdir("dist")
        with contextlib.redirect_stdout(sys.stderr):
            name = build_meta.build_wheel("dist")
        shutil.copyfile(os.path.join("dist", name), out)
        os.chdir("/")
    return 0


def _put(source: str, to: str) -> None:
    os.makedirs(os.path.dirname(to), mode=0o755, exist_ok=True)
    shutil.copyfile(source, to)
    os.chmod(to, 0o644)


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
