"""Becomes a container's process: enter.py SPEC.json, as root, in namespaces of the container's own.

Makes the container's root, mounts its volumes there, gives up every privilege, and runs its command.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any

# From this machine's system, read-only: an image's libraries and programs.
_SYSTEM = ("usr", "etc/ssl", "etc/ld.so.cache", "etc/alternatives")
_LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
_DEVICES = ("null", "zero", "full", "random", "urandom")


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def bind(source: str, target: str, read_only: bool) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "a").close()
    mount("--bind", source, target)
    if read_only:
        mount("-o", "remount,bind,ro", target)


def make_root(spec: dict[str, Any]) -> None:
    root = spec["root"]
    mount("-t", "tmpfs", "-o", "mode=0755,size=4m", "tmpfs", root)
    for name in _SYSTEM:
        bind(f"/{name}", f"{root}/{name}", True)
    for name, leads_to in _LINKS.items():
        os.symlink(leads_to, f"{root}/{name}")
    for name, text in spec["files"].items():
        with open(f"{root}/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    # A kubelet gives every container a /tmp that is part of its root.
    for folder in ("proc", "tmp", "dev/shm"):
        os.makedirs(f"{root}/{folder}")
    mount("-t", "proc", "proc", f"{root}/proc")
    for name in _DEVICES:
        bind(f"/dev/{name}", f"{root}/dev/{name}", False)
    for source, target, read_only in spec["mounts"]:
        bind(source, root + target, read_only)
    if spec["read_only"]:
        mount("-o", "remount,ro", root)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    make_root(spec)
    os.chroot(spec["root"])
    os.chdir("/")
    # What container runtimes leave, so that the image's entry point has to take it away.
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    # A change of user takes the signal of --kill-child away, so it is set again.
    os.execve("/usr/bin/setpriv", ["setpriv", "--pdeathsig=KILL", *spec["privileges"], *spec["command"]], spec["variables"])


if __name__ == "__main__":
    main()
