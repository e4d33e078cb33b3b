"""The manifests of deploy/kubernetes beside Kubernetes' own schemas, and as a real kustomize renders them where one is
installed: tools/real.sh kubernetes.

Objects of other projects (cert-manager, the Prometheus operator, LeaderWorkerSet) have no schema there: they are named as
skipped, and the pods in them are compared as Pods.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Optional

import yaml

from tests.deploy.kubernetes import kustomize, pods
from tools.real.environment import Interpreter
from tools.real.report import Report

_OVERLAYS = Path("deploy/kubernetes/overlays")


def run(options: argparse.Namespace, python: Interpreter) -> int:
    """The exit status."""
    report = Report("objects")
    for folder in sorted(path.parent for path in _OVERLAYS.glob("*/kustomization.yaml")):
        objects = kustomize.render(folder)
        _compare_renderers(report, folder, objects)
        things = {"/".join(kustomize.name_of(thing)): thing for thing in objects}
        for pod in pods.pods_of(objects):
            things[f"Pod/{pod.name}"] = {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod.name, "labels": dict(pod.labels)},
                "spec": pod.spec,
            }  # fmt: skip
        version, *verdicts = _validate(python, list(things.values()))
        for (name, thing), found in zip(things.items(), verdicts):
            what = f"{folder.name} {name}"
            if found is None:
                report.skipped(what, f"Kubernetes {version} has no schema for {thing['apiVersion']}")
            elif found:
                report.failed(what, found)
            else:
                report.ok(what, f"as Kubernetes {version} has it")
        _report_mistakes(report, folder.name, python, list(things.values()))
    return report.end()


def _compare_renderers(report: Report, folder: Path, objects: list[kustomize.Object]) -> None:
    """The tests' renderer gives the objects that kustomize gives."""
    program = shutil.which("kustomize")
    if program is None:
        report.skipped(f"{folder.name} kustomize", "there is no program kustomize on PATH")
        return
    source = (folder / "kustomization.yaml").resolve().parent  # kustomize follows no links, which runfiles are
    done = subprocess.run([program, "build", source], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        report.failed(f"{folder.name} kustomize", done.stderr)
        return
    real = {kustomize.name_of(thing): thing for thing in yaml.safe_load_all(done.stdout)}
    own = {kustomize.name_of(thing): thing for thing in objects}
    wrong = sorted(name for name in real.keys() | own.keys() if real.get(name) != own.get(name))
    if wrong:
        report.failed(f"{folder.name} kustomize", f"renders otherwise than the tests' renderer: {wrong}")
    else:
        report.ok(f"{folder.name} kustomize", f"renders the same {len(real)} objects as the tests' renderer")


def _report_mistakes(report: Report, overlay: str, python: Interpreter, things: list[dict[str, Any]]) -> None:
    """Checks the check: a field that does not exist is found, in each kind that has a schema."""
    wrong = [{**copy.deepcopy(thing), "spec": {**thing.get("spec", {}), "noSuchField": 1}} for thing in things if "spec" in thing]
    _, *verdicts = _validate(python, wrong)
    passed = [thing["kind"] for thing, found in zip(wrong, verdicts) if found == ""]
    if passed:
        report.failed(f"{overlay} noSuchField", f"not found in {passed}")
    else:
        report.ok(f"{overlay} noSuchField", "found in each kind that has a schema")


def _validate(python: Interpreter, things: list[dict[str, Any]]) -> list[Optional[str]]:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "validate.py")
    done = subprocess.run([python.path, program], input=json.dumps(things), capture_output=True, text=True,
                          env=python.variables([]), timeout=300, check=False)  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{python.path} {program} failed:\n{done.stderr}")
    found: list[Optional[str]] = json.loads(done.stdout)
    return found
