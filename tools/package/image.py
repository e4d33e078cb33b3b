"""Makes the images of deploy/container/Dockerfile in a clean Debian tree, without a container engine, and tries them:

    python3 -m tools.package.image TREE DIST

Run by tools/package_test.sh, as root, from the top of the tree, in namespaces of mounts and processes that end with it.
Each RUN of the Dockerfile is run by chroot in TREE, with the packages of DIST where its bind mount has them.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.deploy.kubernetes import dockerfile

_FILE = Path("deploy/container/Dockerfile")
_RUN_SECONDS = 900
_WAIT_SECONDS = 60
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check(truth: object, what: str) -> None:
    if not truth:
        raise SystemExit(f"image.py: FAILED: {what}")
    print(f"ok: {what}", flush=True)


class Image:
    """The tree, and what the Dockerfile has said so far."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.variables = {"PATH": _PATH, "HOME": "/root"}
        self.user = "0:0"
        self.entrypoint: list[str] = []
        self.health: list[str] = []

    def run(self, *words: str, user: str = "0:0") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["chroot", f"--userspec={user}", "--groups=", str(self.tree), *words], env=self.variables,
                              capture_output=True, text=True, timeout=_RUN_SECONDS, check=False)  # fmt: skip

    def obey(self, word: str, rest: str) -> None:
        if word == "ARG":
            name, _, value = rest.partition("=")
            self.variables[name] = value
        elif word == "USER":
            self.user = rest
        elif word == "ENTRYPOINT":
            self.entrypoint = json.loads(rest)
        elif word == "HEALTHCHECK":
            self.health = json.loads(rest.partition("CMD ")[2]) if "CMD " in rest else []
        elif word == "RUN":
            script = re.sub(r"^--mount=type=bind,target=/packages\s+", "", rest)
            done = self.run("/bin/sh", "-c", script)
            check(done.returncode == 0, f"RUN {script[:60]}...{'' if done.returncode == 0 else done.stdout[-2000:] + done.stderr}")
        else:
            raise SystemExit(f"image.py: {word}: an instruction that this program does not know")


def try_daemons(image: Image) -> None:
    user, _, group = image.user.partition(":")
    for path, mode in (("run/dws", 0o755), ("var/lib/dws", 0o750)):
        found = (image.tree / path).stat()
        check((found.st_uid, found.st_gid, found.st_mode & 0o7777) == (int(user), int(group), mode), f"/{path} is of {image.user}, {mode:o}")
    check(image.run("getent", "passwd", "dws").stdout.startswith(f"dws:x:{user}:{group}:"), f"dws is {image.user}")
    check(not (image.tree / "usr/lib/systemd/systemd").exists(), "the image has no systemd")
    keys = image.run("sh", "-c", "grep -rlE 'PRIVATE KEY' /etc/dws /var/lib/dws /run/dws").stdout
    check(not keys, f"the image has no key of DWS {keys}")
    command = ["dws-receiver", "--job-id=first", "--receiver-id=r", "--sender=unix:/run/dws/s.sock", "--state-dir=/var/lib/dws/r"]
    with subprocess.Popen(["chroot", f"--userspec={image.user}", "--groups=", str(image.tree), *image.entrypoint, *command],
                          env=image.variables, stderr=subprocess.PIPE, text=True) as daemon:  # fmt: skip
        deadline = time.monotonic() + _WAIT_SECONDS
        while (healthy := image.run(*image.health, user=image.user).returncode) != 0 and time.monotonic() < deadline:
            time.sleep(0.2)
        check(healthy == 0, "a receiver without an engine is healthy")
        core = re.search(r"Max core file size +(\S+)", Path(f"/proc/{daemon.pid}/limits").read_text())
        check(core is not None and core[1] == "0", "it dumps no core")
        check(image.run("dwsctl", "status", user=image.user).returncode == 1, "dwsctl finds it, and says that it is not ready")
        daemon.send_signal(signal.SIGTERM)
        daemon.communicate(timeout=_WAIT_SECONDS)
        check(daemon.returncode == 0, "it ends in order")
    check(image.run(*image.health, user=image.user).returncode != 0, "a container without its daemon is not healthy")


def try_client(image: Image) -> None:
    done = image.run("python3", "-c", "import dws; print(dws.Trainer, dws.Engine)", user=image.user)
    check(done.returncode == 0, f"Python imports the client {done.stderr}")


def main() -> None:
    tree, dist = Path(sys.argv[1]), Path(sys.argv[2])
    (tree / "packages").mkdir(exist_ok=True)
    for words in (["--bind", str(dist), str(tree / "packages")], ["-t", "proc", "proc", str(tree / "proc")]):
        subprocess.run(["mount", *words], check=True)
    # A build has the network of its machine, and what makes a container's /dev.
    (tree / "etc/resolv.conf").write_text(Path("/etc/resolv.conf").read_text() if os.path.exists("/etc/resolv.conf") else "")
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))  # the entry point has work
    image = Image(tree)
    stages = {"daemons": try_daemons, "client": try_client}
    stage = ""
    for word, rest in [*dockerfile.instructions(_FILE), ("FROM", "")]:
        if word != "FROM":
            image.obey(word, rest)
            continue
        if stage:
            print(f"-- {stage}: as user {image.user}", flush=True)
            stages.pop(stage)(image)
        stage = rest.partition(" AS ")[2]  # each stage is made of the one before
    check(not stages, "every stage was tried")


if __name__ == "__main__":
    main()
