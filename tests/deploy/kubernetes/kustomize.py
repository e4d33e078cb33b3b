"""Renders the kustomizations of deploy/kubernetes as `kustomize build` does: the part of kustomize that they use, and an
error for everything else. Whatever a reference names has to exist, and every patch has to change something."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Callable

import yaml

Object = dict[str, Any]
_FIELDS = {"apiVersion", "kind", "resources", "components", "patches", "images", "namespace"}
# How a strategic merge matches the entries of a list, by the list's name.
_MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name",
    "volumeMounts": "mountPath", "ports": "containerPort",
}  # fmt: skip
_CLUSTER_KINDS = {"Namespace", "ClusterRole", "ClusterRoleBinding", "DeviceClass"}


class KustomizeError(ValueError):
    """A kustomization that kustomize would refuse, or that this renderer cannot read; says which and why."""


def render(folder: Path) -> list[Object]:
    """The objects of the kustomization in `folder`, in its order."""
    objects: list[Object] = []
    _accumulate(folder, objects, {"Kustomization"})
    return objects


def name_of(thing: Object) -> tuple[str, str]:
    return thing["kind"], thing["metadata"]["name"]


def _accumulate(folder: Path, objects: list[Object], kinds: set[str]) -> None:
    path = folder / "kustomization.yaml"
    if not path.is_file():
        raise KustomizeError(f"{folder}: expected a kustomization.yaml there")
    text = yaml.safe_load(path.read_text())
    if unknown := set(text) - _FIELDS:
        raise KustomizeError(f"{path}: fields that this renderer does not know: {sorted(unknown)}")
    if text["kind"] not in kinds:
        raise KustomizeError(f"{path}: kind {text['kind']}, expected {sorted(kinds)}")
    own: list[Object] = []
    for name in text.get("resources", []):
        there = folder / name
        if there.is_dir():
            _accumulate(there, own, {"Kustomization"})
        else:
            own += [thing for thing in yaml.safe_load_all(_read(there)) if thing is not None]
    # A component changes what its kustomization has; a resource only what is its own.
    scope = objects + own if text["kind"] == "Component" else own
    _refuse_twice(path, scope)
    for name in text.get("components", []):
        _accumulate(folder / name, scope, {"Component"})
    for patch in text.get("patches", []):
        _patch(folder, patch, scope)
    for image in text.get("images", []):
        _set_image(path, image, scope)
    if "namespace" in text:
        for thing in scope:
            if thing["kind"] not in _CLUSTER_KINDS:
                thing["metadata"]["namespace"] = text["namespace"]
    objects[:] = scope if text["kind"] == "Component" else objects + scope


def _read(path: Path) -> str:
    if not path.is_file():
        raise KustomizeError(f"{path}: there is no such file")
    return path.read_text()


def _refuse_twice(path: Path, objects: list[Object]) -> None:
    names = [name_of(thing) for thing in objects]
    if twice := {name for name in names if names.count(name) > 1}:
        raise KustomizeError(f"{path}: objects that are there twice: {sorted(twice)}")


def _patch(folder: Path, patch: Object, objects: list[Object]) -> None:
    text = _read(folder / patch["path"]) if "path" in patch else patch["patch"]
    for change in yaml.safe_load_all(text):
        if isinstance(change, list):
            # A component's patch is for kinds that not every kustomization has.
            for thing in objects:
                if name_of(thing) == (patch["target"]["kind"], patch["target"]["name"]):
                    for step in change:
                        _json_patch(thing, step, f"{folder}: {patch.get('path', 'patch')}")
            continue
        found = [thing for thing in objects if name_of(thing) == name_of(change)]
        if len(found) != 1 or found[0]["apiVersion"] != change["apiVersion"]:
            raise KustomizeError(f"{folder}/{patch['path']}: {name_of(change)} is not among the objects")
        _merge(found[0], change)


def _merge(into: Object, change: Object) -> None:
    """A strategic merge."""
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif isinstance(value, list) and key in _MERGE_KEYS and key in into:
            by, fresh = _MERGE_KEYS[key], []
            for entry in value:
                same = [one for one in into[key] if one[by] == entry[by]]
                if same:
                    _merge(same[0], entry)
                else:
                    fresh.append(copy.deepcopy(entry))
            into[key] = fresh + into[key]  # kustomize puts new entries first
        else:
            into[key] = copy.deepcopy(value)


def _json_patch(thing: Any, step: Object, where: str) -> None:
    """One operation of RFC 6902."""
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
    for part in parents:
        try:
            thing = thing[int(part)] if isinstance(thing, list) else thing[part]
        except (KeyError, IndexError) as error:
            raise KustomizeError(f"{where}: {step['path']}: there is no {part}") from error
    if step["op"] not in ("add", "replace"):
        raise KustomizeError(f"{where}: operation {step['op']}, expected add or replace")
    value = copy.deepcopy(step["value"])
    if isinstance(thing, list):
        if step["op"] != "add" or last != "-":
            raise KustomizeError(f"{where}: {step['path']}: in a list this renderer only appends")
        thing.append(value)
        return
    if (step["op"] == "replace") != (last in thing):
        raise KustomizeError(f"{where}: {step['op']} of {step['path']}, which is {'' if last in thing else 'not '}there")
    thing[last] = value


def _set_image(path: Path, image: Object, objects: list[Object]) -> None:
    used: list[str] = []

    def visit(container: Object) -> None:
        if container["image"] == image["name"]:
            container["image"] = f"{image['newName']}:{image['newTag']}"
            used.append(container["name"])

    for thing in objects:
        each_container(thing, visit)
    if not used:
        raise KustomizeError(f"{path}: no container has the image {image['name']}")


def each_container(thing: Any, visit: Callable[[Object], None]) -> None:
    if isinstance(thing, list):
        for one in thing:
            each_container(one, visit)
    elif isinstance(thing, dict):
        for key, value in thing.items():
            if key in ("containers", "initContainers"):
                for container in value:
                    visit(container)
            else:
                each_container(value, visit)
