"""What cert-manager and its csi-driver do for the manifests: an authority for the job, and for each pod a certificate of what
its volume asks for, in files that are replaced all at once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Mapping

_PREFIX = "csi.cert-manager.io/"
# The names of cert-manager's usages, and openssl's for them.
_USAGES = {"digital signature": "digitalSignature", "key encipherment": "keyEncipherment"}
_EXTENDED = {"server auth": "serverAuth", "client auth": "clientAuth"}


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {' '.join(words)}: {done.stderr}")


class Issuer:
    def __init__(self, folder: Path, common_name: str) -> None:
        self._folder = folder
        self.ca = folder / "ca.crt"
        self._key = folder / "ca.key"
        self._count = 0
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                 "-subj", f"/CN={common_name}", "-keyout", str(self._key), "-out", str(self.ca))  # fmt: skip

    def issue(self, uris: str, names: str, usages: str) -> tuple[Path, Path]:
        """Certificate and key, as cert-manager makes them: RSA, no subject. Arguments are lists with commas."""
        self._count += 1
        stem = self._folder / f"issued-{self._count}"
        key, asked, cert = (stem.with_suffix(end) for end in (".key", ".csr", ".crt"))
        wanted = [usage.strip() for usage in usages.split(",")]
        subject = [f"URI:{uri}" for uri in uris.split(",")] + [f"DNS:{name}" for name in filter(None, names.split(","))]
        stem.with_suffix(".ext").write_text(
            f"basicConstraints=critical,CA:FALSE\nkeyUsage=critical,{','.join(_USAGES[u] for u in wanted if u in _USAGES)}\n"
            f"extendedKeyUsage={','.join(_EXTENDED[u] for u in wanted if u in _EXTENDED)}\n"
            f"subjectAltName=critical,{','.join(subject)}\n"
        )
        _openssl("genrsa", "-traditional", "-out", str(key), "2048")
        _openssl("req", "-new", "-key", str(key), "-subj", "/", "-out", str(asked))
        _openssl("x509", "-req", "-in", str(asked), "-CA", str(self.ca), "-CAkey", str(self._key), "-CAcreateserial",
                 "-days", "1", "-extfile", str(stem.with_suffix(".ext")), "-out", str(cert))  # fmt: skip
        return cert, key

    def write_volume(self, folder: Path, attributes: Mapping[str, str], pod_name: str, namespace: str) -> None:
        """Fills or renews the volume: files are links into a folder that another one replaces."""
        asked = {key.removeprefix(_PREFIX): value for key, value in attributes.items()}
        for name, value in (("POD_NAME", pod_name), ("POD_NAMESPACE", namespace)):
            asked = {key: text.replace("${" + name + "}", value) for key, text in asked.items()}
        cert, key = self.issue(asked["uri-sans"], asked["dns-names"], asked["key-usages"])
        data = folder / f"..{cert.stem}"
        data.mkdir(mode=0o750)
        files = {asked["ca-file"]: self.ca, asked["certificate-file"]: cert, asked["privatekey-file"]: key}
        group = int(asked["fs-group"])
        os.chown(data, 0, group)
        for name, source in files.items():
            shutil.copy(source, data / name)
            os.chown(data / name, 0, group)
            os.chmod(data / name, 0o440)
        fresh = folder / "..data_new"
        fresh.symlink_to(data.name)
        fresh.replace(folder / "..data")
        for name in files:
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(f"..data/{name}")
