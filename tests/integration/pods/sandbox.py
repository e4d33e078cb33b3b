"""Pods as a kubelet runs them, without one: a network, IPC and host name for each pod, a root, mounts and processes for each
container, users and commands as the manifests say. Needs root and namespaces."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence

from tests.deploy.kubernetes import pods
from tests.deploy.kubernetes.kustomize import Object
from tests.deploy.kubernetes.pods import Pod

# In containers.
PATH = "/opt/dws/bin:/usr/bin:/bin"
CLIENT = "/opt/dws/client"
_PROGRAMS = ("sender_daemon/dws-sender", "receiver_daemon/dws-receiver", "tools/dwsctl/dwsctl")
_NAMESPACES = ("net", "ipc", "uts")
# Before a command: it ends when this process does, and --kill-child of unshare ends what is in it.
_BOUND = ["setpriv", "--pdeathsig=KILL"]
_PASSWD = "root:x:0:0::/root:/bin/sh\ndws:x:10077:10077::/var/lib/dws:/usr/sbin/nologin\n"
_GROUP = "root:x:0:\ndws:x:10077:\n"


Mount = tuple[str, str, bool]  # source, target, read-only


def make_image(folder: Path, *scripts: str) -> list[Mount]:
    """What the images add to the system: programs, and the client with `scripts` beside it."""
    (folder / "bin").mkdir(parents=True)
    for program in _PROGRAMS:
        shutil.copy(program, folder / "bin")
    shutil.copytree("clients/python/dws", folder / "client/dws")
    for script in scripts:
        shutil.copy(script, folder / "client")
    return [(str(folder / "bin"), os.path.dirname(CLIENT) + "/bin", True), (str(folder / "client"), CLIENT, True)]


@dataclasses.dataclass(frozen=True)
class Spec:
    """A container: what its process is, sees and may do."""

    name: str
    command: Sequence[str]
    variables: Mapping[str, str]
    mounts: Sequence[Mount]
    user: int
    group: int
    read_only: bool
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)


def privileges(user: int, group: int) -> list[str]:
    """The options of setpriv for a user without any capability."""
    return [f"--reuid={user}", f"--regid={group}", f"--groups={group}", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]


class Container:
    """A running container; `pid` is its process 1 as this machine numbers it."""

    def __init__(self, spec: Spec, around: Sequence[str], processes: bool, folder: Path) -> None:
        """Args:
        around: a command that runs another in the pod's namespaces.
        processes: whether it has a namespace of processes of its own.
        folder: for its root, its specification and its log.
        """
        self.spec = spec
        self._log_path = folder / "log"
        root = folder / "root"
        root.mkdir(parents=True, exist_ok=True)
        files = {"etc/passwd": _PASSWD, "etc/group": _GROUP, **spec.files}
        told = {**dataclasses.asdict(spec), "files": files, "root": str(root), "privileges": privileges(spec.user, spec.group)}
        (folder / "spec.json").write_text(json.dumps(told))
        own = ["unshare", "--mount", *(["--pid"] if processes else []), "--fork", "--kill-child"]
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "enter.py")
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*_BOUND, *around, *own, sys.executable, "-B", program, str(folder / "spec.json")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        self.pid = self._child()

    def _child(self) -> int:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            if children := path.read_text().split():
                return int(children[0])
            time.sleep(0.01)
        raise RuntimeError(f"{self.spec.name} has not started: {self.log()}")

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def exec(self, command: Sequence[str], timeout: float) -> int:
        """Runs a command in the container, like a kubelet's exec, and returns its exit status; -1: not in time."""
        inside = ["nsenter", f"--target={self.pid}", *(f"--{n}" for n in ("mount", "pid", *_NAMESPACES)), "--root", "--wdns=/"]
        variables = [f"{name}={value}" for name, value in self.spec.variables.items()]
        words = [*inside, "setpriv", *privileges(self.spec.user, self.spec.group), "env", "-i", *variables, *command]
        try:
            return subprocess.run(words, capture_output=True, timeout=timeout, check=False).returncode
        except subprocess.TimeoutExpired:
            return -1

    def namespace(self, kind: str) -> str:
        return os.readlink(f"/proc/{self.pid}/ns/{kind}")

    def status(self, field: str) -> str:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{field}:"))

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        """The exit status. Raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout)

    def kill(self) -> None:
        """Its process 1, and, where that has a namespace of processes, with it all others."""
        if self.process.poll() is None:  # so the process still has its number
            self.signal(signal.SIGKILL)
            self.process.wait(20)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def pause(around: Sequence[str], processes: bool) -> tuple[subprocess.Popen[bytes], int]:
    """A process that keeps a pod's namespaces: itself, and the one that is in them."""
    own = ["unshare", "--ipc", "--uts", *(["--pid"] if processes else []), "--fork", "--kill-child", "sleep", "infinity"]
    process = subprocess.Popen([*_BOUND, *around, *own], start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.exists() or not children.read_text().split():
        if process.poll() is not None:
            raise RuntimeError("no namespaces for a pod: see the error above")
        time.sleep(0.01)
    return process, int(children.read_text().split()[0])


class RunningPod:
    """A pod on a host of NetworkHosts. Containers start one by one, in the manifest's order."""

    def __init__(self, pod: Pod, objects: list[Object], around: Sequence[str], folder: Path, entrypoint: list[str]) -> None:
        self.pod = pod
        self.containers: dict[str, Container] = {}
        self._objects = objects
        self._folder = folder
        self._entrypoint = entrypoint
        self.shares_processes = bool(pod.spec.get("shareProcessNamespace"))
        self._pause, self._kept = pause(around, self.shares_processes)
        kinds = (*_NAMESPACES, "pid") if self.shares_processes else _NAMESPACES
        self._inside = ["nsenter", f"--target={self._kept}", *(f"--{kind}" for kind in kinds)]
        self._inside += ["--no-fork"] if self.shares_processes else []
        # Names of DNS, and what an image brings: by make_volumes and start.
        self.hosts: dict[str, str] = {}
        self.image: list[Mount] = []

    def make_volumes(self, csi: Callable[[Path, Object], None]) -> None:
        """Args:
        csi: fills the folder of a csi volume.
        """
        group = self.pod.spec["securityContext"]["fsGroup"]
        for volume in self.pod.spec["volumes"]:
            folder = self.volume_folder(volume["name"])
            folder.mkdir(parents=True)
            os.chown(folder, 0, group)
            os.chmod(folder, 0o2777)  # an emptyDir with fsGroup
            if "csi" in volume:
                os.chmod(folder, 0o755)
                csi(folder, volume["csi"])

    def volume_folder(self, name: str) -> Path:
        return self._folder / "volumes" / name

    def start(self, name: str, instead: Optional[Sequence[str]] = None) -> Container:
        """Starts a container, again if it has ended. `instead`: of the manifest's command."""
        found = self.pod.container(name)
        values = pods.variables(self.pod, found, self._objects)
        context = {**self.pod.spec["securityContext"], **found["securityContext"]}
        if context["capabilities"] != {"drop": ["ALL"]} or context["allowPrivilegeEscalation"]:
            raise ValueError(f"{name}: expected no capabilities and no escalation, found {context}")
        mounts = [
            (str(self.volume_folder(one["name"])), one["mountPath"], bool(one.get("readOnly")))
            for one in found["volumeMounts"]
        ]
        hosts = "127.0.0.1 localhost\n" + "".join(f"{address} {host}\n" for host, address in self.hosts.items())
        spec = Spec(
            name=f"{self.pod.name}/{name}",
            command=instead or pods.command(found, values, self._entrypoint),
            variables={"PATH": PATH, **values},
            mounts=[*self.image, *mounts],
            user=context["runAsUser"], group=context["runAsGroup"], read_only=context["readOnlyRootFilesystem"],
            files={"etc/hosts": hosts},
        )  # fmt: skip
        container = Container(spec, self._inside, not self.shares_processes, self._folder / name)
        self.containers[name] = container
        return container

    def probe(self, name: str, kind: str) -> int:
        """The exit status of a probe that the manifest has."""
        probe = self.pod.container(name)[kind]
        return self.containers[name].exec(probe["exec"]["command"], probe["timeoutSeconds"])

    def until_started(self, name: str) -> None:
        """Waits for the startup probe, like a kubelet, which starts the next container only then."""
        probe = self.pod.container(name)["startupProbe"]
        for _ in range(probe["failureThreshold"]):
            if self.probe(name, "startupProbe") == 0:
                return
            if self.containers[name].process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"{name} of {self.pod.name} has not started: {self.containers[name].log()[-3000:]}")

    def kill(self) -> None:
        for container in self.containers.values():
            container.kill()
        os.kill(self._kept, signal.SIGKILL)
        self._pause.wait(20)


def run_until(condition: Callable[[], Any], seconds: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what()}")
        time.sleep(0.05)
