"""The pods that rendered objects make, as a kubelet would start them: their containers' commands, variables and mounts."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Iterator, Mapping, Optional

from tests.deploy.kubernetes.kustomize import Object

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclasses.dataclass(frozen=True)
class Pod:
    """One pod of a workload.

    Attributes:
      name: as the controller names it, but for the random part of a Job's pods.
      address: by which others of the namespace dial it.
      given: variables that the controller gives to every container.
    """

    name: str
    address: str
    spec: Object
    labels: Mapping[str, str]
    given: Mapping[str, str]

    @property
    def containers(self) -> list[Object]:
        """In the order in which they start."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    def container(self, name: str) -> Object:
        (found,) = (one for one in self.containers if one["name"] == name)
        return found

    def volume(self, name: str) -> Object:
        (found,) = (one for one in self.spec["volumes"] if one["name"] == name)
        return dict(found)


def pods_of(objects: list[Object], namespace: str = "my-job") -> Iterator[Pod]:
    """The first pod of each workload, and the first worker of a LeaderWorkerSet."""
    for thing in objects:
        name, spec = thing["metadata"]["name"], thing["spec"] if "spec" in thing else {}
        if thing["kind"] == "StatefulSet":
            yield _pod(spec["template"], f"{name}-0", f"{name}-0.{spec['serviceName']}", {})
        elif thing["kind"] == "Job":
            subdomain = spec["template"]["spec"]["subdomain"]
            yield _pod(spec["template"], f"{name}-0", f"{name}-0.{subdomain}", {"JOB_COMPLETION_INDEX": "0"})
        elif thing["kind"] == "LeaderWorkerSet":
            template = spec["leaderWorkerTemplate"]
            leader = f"{name}-0.{name}.{namespace}"
            given = {"LWS_LEADER_ADDRESS": leader, "LWS_GROUP_SIZE": str(template["size"]), "LWS_WORKER_INDEX": "0"}
            yield _pod(template["leaderTemplate"], f"{name}-0", leader, given)
            worker = {**given, "LWS_WORKER_INDEX": "1"}
            yield _pod(template["workerTemplate"], f"{name}-0-1", f"{name}-0-1.{name}.{namespace}", worker)


def _pod(template: Object, name: str, address: str, given: Mapping[str, str]) -> Pod:
    labels = dict(template["metadata"]["labels"])
    if "LWS_WORKER_INDEX" in given:
        labels["leaderworkerset.sigs.k8s.io/worker-index"] = given["LWS_WORKER_INDEX"]
    return Pod(name, address, template["spec"], labels, given)


def variables(pod: Pod, container: Object, objects: list[Object]) -> dict[str, str]:
    """The variables of a container, references in them expanded."""
    found = dict(pod.given)
    for source in container.get("envFrom", []):
        found.update(_config_map(objects, source["configMapRef"]["name"]))
    for entry in container.get("env", []):
        if "value" in entry:
            found[entry["name"]] = expand(entry["value"], found)
        else:
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            if path != "metadata.name":
                raise ValueError(f"{pod.name}: {entry['name']} is of the field {path}, expected metadata.name")
            found[entry["name"]] = pod.name
    return found


def _config_map(objects: list[Object], name: str) -> dict[str, str]:
    (found,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", name))
    return dict(found["data"])


def expand(text: str, values: Mapping[str, str]) -> str:
    """As Kubernetes: $(NAME) is replaced, $$ is a $, and what is not known stays."""

    def replaced(match: "re.Match[str]") -> str:
        name: Optional[str] = match[1]
        return "$" if name is None else values.get(name, match[0])

    return _REFERENCE.sub(replaced, text)


def command(container: Object, values: Mapping[str, str], entrypoint: list[str]) -> list[str]:
    """The words of its process. `entrypoint`: the image's, which `command` replaces."""
    words = container.get("command", entrypoint) + container.get("args", [])
    return [expand(word, values) for word in words]


def flags(words: list[Any]) -> dict[str, str]:
    """The options --NAME=VALUE among the words."""
    return dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
