"""A certificate authority for tests, made with the openssl command line in a folder of its own."""

from __future__ import annotations

import dataclasses
import datetime
import os
import subprocess
from typing import Optional, Sequence

LOOPBACK = ("IP:127.0.0.1", "DNS:localhost")
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
_CONFIG = """
[ca]
default_ca = test
[test]
dir = {folder}
database = $dir/index
new_certs_dir = $dir
rand_serial = yes
default_md = sha256
policy = anything
unique_subject = no
[anything]
commonName = supplied
"""


@dataclasses.dataclass(frozen=True)
class Files:
    """Paths of PEM files, for a daemon's flags."""

    ca: str
    cert: str
    key: str

    def flags(self) -> list[str]:
        return [f"--tls-ca={self.ca}", f"--tls-cert={self.cert}", f"--tls-key={self.key}"]


def _openssl(*arguments: str) -> None:
    result = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"openssl {' '.join(arguments)}: {result.stderr}")


def _write(path: str, text: str) -> str:
    with open(path, "w") as file:
        file.write(text)
    return path


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class Authority:
    """Signs certificates; `pem` is its own certificate."""

    def __init__(self, folder: str, name: str) -> None:
        self.folder = os.path.join(folder, name)
        os.makedirs(self.folder)
        self.pem = os.path.join(self.folder, "ca.pem")
        self._key = os.path.join(self.folder, "ca.key")
        _write(os.path.join(self.folder, "index"), "")
        self._config = _write(
            os.path.join(self.folder, "config"), _CONFIG.format(folder=self.folder)
        )
        _openssl("req", "-x509", *_KEY, "-keyout", self._key, "-out", self.pem, "-days", "30",
                 "-subj", f"/CN={name}")  # fmt: skip

    def issue(
        self,
        name: str,
        *uris: str,
        hosts: Sequence[str] = LOOPBACK,
        begins_in_days: int = -1,
        ends_in_days: int = 1,
        ca: Optional[str] = None,
    ) -> Files:
        """Args:
        name: base name of the files.
        uris: identities, "dws://job/role/name".
        ca: the CA that the owner trusts; this authority by default.
        """
        stem = os.path.join(self.folder, name)
        _openssl("req", "-new", *_KEY, "-keyout", f"{stem}.key", "-out", f"{stem}.csr",
                 "-subj", f"/CN={name}")  # fmt: skip
        names = ",".join([*hosts, *(f"URI:{uri}" for uri in uris)])
        extensions = _write(
            f"{stem}.ext",
            f"basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n"
            f"subjectAltName={names}\n",
        )
        now = datetime.datetime.now(datetime.timezone.utc)
        begin, end = (
            f"{now + datetime.timedelta(days=days):%Y%m%d%H%M%SZ}"
            for days in (begins_in_days, ends_in_days)
        )
        _openssl("ca", "-batch", "-notext", "-config", self._config, "-cert", self.pem,
                 "-keyfile", self._key, "-in", f"{stem}.csr", "-out", f"{stem}.pem",
                 "-extfile", extensions, "-startdate", begin, "-enddate", end)  # fmt: skip
        return Files(ca or self.pem, f"{stem}.pem", f"{stem}.key")
