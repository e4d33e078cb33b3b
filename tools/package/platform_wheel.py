"""Makes the wheel with the programs of the wheel of the Python client: platform_wheel.py CLIENT_WHEEL TAG PROGRAMS LICENSES OUT

TAG is that of the platform, as manylinux_2_35_x86_64. PROGRAMS is a folder: its files become programs on the PATH of the
environment that the wheel is installed in. LICENSES is a folder of what they are linked with. OUT is the folder of the
wheel, whose path is printed. Same files: same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
import zipfile
from pathlib import Path
from typing import Sequence

# ZIP knows no earlier time.
_TIME = (1980, 1, 1, 0, 0, 0)
_PROGRAM_MODE = 0o100755
_FILE_MODE = 0o100644


def main(arguments: Sequence[str]) -> int:
    client, tag, programs, licenses, out = arguments
    with zipfile.ZipFile(client) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/RECORD")}
    (about,) = (name for name in files if name.endswith(".dist-info/WHEEL"))
    info = about.rpartition("/")[0]
    project = info.removesuffix(".dist-info")
    files[about] = _with_tag(files[about].decode(), tag).encode()
    modes = dict.fromkeys(files, _FILE_MODE)
    for folder, to, mode in (
        (programs, f"{project}.data/scripts", _PROGRAM_MODE),
        (licenses, f"{info}/licenses", _FILE_MODE),
    ):
        for path in sorted(Path(folder).iterdir()):
            files[f"{to}/{path.name}"], modes[f"{to}/{path.name}"] = path.read_bytes(), mode
    record = f"{info}/RECORD"
    files[record], modes[record] = _record(files, record).encode(), _FILE_MODE
    path = os.path.join(out, f"{project}-py3-none-{tag}.whl")
    _write(path, files, modes)
    print(path)
    return 0


def _with_tag(text: str, tag: str) -> str:
    """The file WHEEL for a wheel of that platform, which pip installs where platform-dependent packages go."""
    text, tags = re.subn(r"^Tag: .*$", f"Tag: py3-none-{tag}", text, flags=re.M)
    text, roots = re.subn(r"^Root-Is-Purelib: true$", "Root-Is-Purelib: false", text, flags=re.M)
    if (tags, roots) != (1, 1):
        raise SystemExit(f"platform_wheel.py: expected one Tag and 'Root-Is-Purelib: true' in WHEEL, found:\n{text}")
    return text


def _record(files: dict[str, bytes], record: str) -> str:
    lines = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(files[name])}")
    return "\n".join([*lines, f"{record},,", ""])


def _write(path: str, files: dict[str, bytes], modes: dict[str, int]) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        for name in sorted(files, key=lambda each: (".dist-info/" in each, each)):  # pip reads the end first
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = modes[name] << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, files[name], compresslevel=9)


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
