"""deploy/kubernetes and deploy/container agree with the daemons, the units, deploy/config and each other. Needs no schema:
tools/real.sh kubernetes compares with Kubernetes' own."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path
from typing import Any, Iterator
from unittest import mock

import yaml

from tests.deploy.kubernetes import dockerfile, kustomize, pods
from tests.deploy.kubernetes.kustomize import KustomizeError, Object
from tests.deploy.kubernetes.pods import Pod

MANIFESTS = Path("deploy/kubernetes")
CONTAINER = Path("deploy/container")
PROGRAMS = {"dws-sender": "sender_daemon/dws-sender", "dws-receiver": "receiver_daemon/dws-receiver"}
USER = 10077
# What the user brings: images, and the claim with the checkpoint.
OF_THE_USER = {("PersistentVolumeClaim", "models")}


def overlays() -> list[Path]:
    return sorted(path.parent for path in MANIFESTS.glob("overlays/*/kustomization.yaml"))


def effective(program: str, words: list[str], variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """What the daemon makes of its options. It opens nothing that they name."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DWS_")}
    return subprocess.run([PROGRAMS[program], *words, "--check-config"], env={**environment, **variables}, text=True,
                          capture_output=True, timeout=60, check=False)  # fmt: skip


def configured(key: str, program: str) -> set[str]:
    """The ports that the examples of deploy/config have for `key`."""
    found: set[str] = set()
    for path in Path("deploy/config").glob(f"*/{program}.toml"):
        found |= set(re.findall(rf'^(?:# )?{key} = "[^"]*:(\d+)"', path.read_text(), re.M))
    return found


def unit_seconds(unit: str, key: str) -> int:
    (found,) = re.findall(rf"^{key}=(\d+)$", Path(f"deploy/systemd/{unit}@.service").read_text(), re.M)
    return int(found)


class ManifestsCase(unittest.TestCase):
    rendered: dict[str, list[Object]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.rendered = {path.name: kustomize.render(path) for path in overlays()}
        assert len(cls.rendered) >= 3

    def each_pod(self) -> Iterator[tuple[list[Object], Pod]]:
        for name, objects in self.rendered.items():
            found = list(pods.pods_of(objects))
            self.assertGreaterEqual(len(found), 2, name)
            for pod in found:
                with self.subTest(overlay=name, pod=pod.name):
                    yield objects, pod

    def each_daemon(self) -> Iterator[tuple[list[Object], Pod, Object, str]]:
        """With the name of its program."""
        for objects, pod in self.each_pod():
            daemons = [one for one in pod.containers if one["name"] in ("sender", "receiver")]
            self.assertEqual(len(daemons), 1)
            yield objects, pod, daemons[0], daemons[0]["args"][0]


class DaemonsTest(ManifestsCase):
    def test_each_daemon_reads_its_options_without_a_mistake(self) -> None:
        for objects, pod, container, program in self.each_daemon():
            variables = pods.variables(pod, container, objects)
            words = pods.command(container, variables, [])
            self.assertNotIn("$(", " ".join(words))
            checked = effective(program, words[1:], variables)
            self.assertEqual((checked.returncode, checked.stderr), (0, ""))
            values = tomllib.loads(checked.stdout)
            self.assertEqual(values["job-id"], "my-job")
            self.assertFalse(values["insecure"])
            self.check_ports(values, container, program)
            self.check_folders(values, container)
            self.check_identity(values, pod, program)

    def test_an_option_that_does_not_exist_is_detected(self) -> None:
        self.assertEqual(effective("dws-sender", ["--retain-byets=1"], {}).returncode, 2)
        self.assertEqual(effective("dws-receiver", ["--receiver-id=r", "--job-id=j", "--group-index=1"], {}).returncode, 2)

    def check_ports(self, values: Object, container: Object, program: str) -> None:
        """What it listens on is what the container names, and what the examples have."""
        listening = {key: values[key].rsplit(":", 1)[1] for key in ("listen", "http") if values[key]}
        named = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
        self.assertEqual({f"dws-{key}": port for key, port in listening.items()}, named)
        for key, port in listening.items():
            self.assertEqual(configured(key, program.removeprefix("dws-")), {port})

    def check_folders(self, values: Object, container: Object) -> None:
        mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
        self.assertEqual(os.path.dirname(values["socket"]), "/run/dws")
        self.assertTrue(values["state-dir"].startswith("/var/lib/dws/"))
        for path in ("/run/dws", "/var/lib/dws"):
            self.assertFalse(mounts[path].get("readOnly", False))
        for key in ("ca", "cert", "key"):
            self.assertEqual(os.path.dirname(values[f"tls-{key}"] if f"tls-{key}" in values else values["tls"][key]), "/etc/dws/tls")
        self.assertTrue(mounts["/etc/dws/tls"]["readOnly"])

    def check_identity(self, values: Object, pod: Pod, program: str) -> None:
        """The certificate is of the role and the name that the daemon claims, and has its files' names."""
        asked = pod.volume("tls")["csi"]["volumeAttributes"]
        uri = asked["csi.cert-manager.io/uri-sans"].replace("${POD_NAME}", pod.name)
        who = f"publish/{values['trainer-rank']}" if program == "dws-sender" else f"receive/{values['receiver-id']}"
        self.assertEqual(uri, f"dws://my-job/{who}")
        names = asked["csi.cert-manager.io/dns-names"].replace("${POD_NAME}", pod.name).replace("${POD_NAMESPACE}", "my-job")
        if values["listen"]:
            self.assertIn(pod.address, names.split(","))
        for key, file in (("ca", "ca-file"), ("cert", "certificate-file"), ("key", "privatekey-file")):
            path = values[f"tls-{key}"] if f"tls-{key}" in values else values["tls"][key]
            self.assertEqual(os.path.basename(path), asked[f"csi.cert-manager.io/{file}"])
        self.assertEqual(asked["csi.cert-manager.io/fs-group"], str(pod.spec["securityContext"]["fsGroup"]))
        for usage in ("server auth", "client auth"):
            self.assertIn(usage, asked["csi.cert-manager.io/key-usages"])

    def test_receivers_dial_the_senders_that_there_are(self) -> None:
        for name, objects in self.rendered.items():
            found = list(pods.pods_of(objects))
            sender = next(pod for pod in found if pod.containers[0]["name"] == "sender")
            port = pods.flags(sender.container("sender")["args"])["listen"].rsplit(":", 1)[1]
            for pod in found:
                if pod is not sender:
                    dialled = pods.flags(pod.container("receiver")["args"])["sender"]
                    self.assertEqual(dialled, f"{sender.address}:{port}", name)

    def test_probes_agree_with_the_daemons_and_the_units(self) -> None:
        for _, _, container, program in self.each_daemon():
            alive = container["livenessProbe"]
            self.assertEqual(alive["exec"]["command"], ["sh", "-c", "dwsctl status --timeout=4 >/dev/null; test $? -le 1"])
            self.assertEqual(alive["exec"], container["startupProbe"]["exec"])
            self.assertEqual(container["readinessProbe"]["exec"]["command"], ["dwsctl", "status", "--timeout=4"])
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                self.assertGreater(container[kind]["timeoutSeconds"], 4)
            for kind, key in (("startupProbe", "TimeoutStartSec"), ("livenessProbe", "WatchdogSec")):
                seconds = container[kind]["periodSeconds"] * container[kind]["failureThreshold"]
                self.assertEqual(seconds, unit_seconds(program, key), kind)

    def test_a_pod_may_take_as_long_to_stop_as_its_daemon_and_its_client(self) -> None:
        for _, pod, _, program in self.each_daemon():
            self.assertGreaterEqual(pod.spec["terminationGracePeriodSeconds"], 2 * unit_seconds(program, "TimeoutStopSec"))


class PodsTest(ManifestsCase):
    def test_pods_have_no_privileges_and_share_no_namespace_of_the_host(self) -> None:
        for _, pod in self.each_pod():
            context = pod.spec["securityContext"]
            self.assertEqual(context, {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                                       "seccompProfile": {"type": "RuntimeDefault"}})  # fmt: skip
            self.assertEqual({key for key in pod.spec if key.startswith("host")}, set())
            self.assertFalse(pod.spec["automountServiceAccountToken"])
            self.assertFalse(pod.spec["enableServiceLinks"])
            for container in pod.containers:
                self.assertEqual(container["securityContext"], {
                    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
                })  # fmt: skip

    def test_the_daemon_is_a_native_sidecar_and_starts_first(self) -> None:
        for _, pod in self.each_pod():
            (daemon,) = pod.spec["initContainers"]
            self.assertEqual(daemon["restartPolicy"], "Always")
            self.assertEqual(len(pod.spec["containers"]), 1)

    def test_daemon_and_client_share_the_sockets_and_nothing_else(self) -> None:
        for _, pod in self.each_pod():
            daemon, client = pod.containers
            mounted = [{one["name"]: one for one in container["volumeMounts"]} for container in (daemon, client)]
            self.assertEqual(set(mounted[0]) & set(mounted[1]), {"dws-run"})
            self.assertEqual({one["dws-run"]["mountPath"] for one in mounted}, {"/run/dws"})
            self.assertTrue(mounted[1]["dws-run"]["readOnly"])
            self.assertEqual(pod.volume("dws-run")["emptyDir"]["medium"], "Memory")
            self.assertEqual(set(mounted[0]) | set(mounted[1]), {one["name"] for one in pod.spec["volumes"]})

    def test_gpus_are_those_of_the_client(self) -> None:
        for objects, pod in self.each_pod():
            daemon, client = pod.containers
            self.assertTrue(pod.spec["shareProcessNamespace"])
            if "resourceClaims" in pod.spec:
                self.assertEqual(daemon["resources"]["claims"], client["resources"]["claims"])
                continue
            # The device plugin would give the daemon another GPU.
            self.assertIn("nvidia.com/gpu", client["resources"]["limits"])
            self.assertNotIn("nvidia.com/gpu", daemon["resources"]["limits"])
            self.assertEqual(pods.variables(pod, daemon, objects)["NVIDIA_VISIBLE_DEVICES"], "all")

    def test_engines_attach_to_their_receivers(self) -> None:
        for objects, pod in self.each_pod():
            client = pod.containers[1]
            if client["name"] != "engine" or pod.name == "engine-0-1":  # a worker is attached by its leader
                continue
            values = pods.variables(pod, client, objects)
            socket = pods.variables(pod, pod.container("receiver"), objects)["DWS_SOCKET"]
            self.assertIn(socket, " ".join([*values.values(), *client["command"]]))

    def test_members_of_a_group_find_their_leader(self) -> None:
        leader, worker = [pod for pod in pods.pods_of(self.rendered["vllm-hosts-dra"]) if "LWS_GROUP_SIZE" in pod.given]
        values = [pods.flags(pods.command(pod.container("receiver"), pod.given, [])) for pod in (leader, worker)]
        for key in ("group-id", "group-members"):
            self.assertEqual(values[0][key], values[1][key])
        self.assertEqual([one["group-index"] for one in values], ["0", "1"])
        self.assertEqual(values[1]["group-leader"], f"{leader.address}:{values[0]['listen'].rsplit(':', 1)[1]}")


class ObjectsTest(ManifestsCase):
    def test_what_pods_name_is_there(self) -> None:
        for objects, pod in self.each_pod():
            there = {kustomize.name_of(thing) for thing in objects} | OF_THE_USER
            issuer = pod.volume("tls")["csi"]["volumeAttributes"]["csi.cert-manager.io/issuer-name"]
            named = {("Issuer", issuer)}
            named |= {("PersistentVolumeClaim", one["persistentVolumeClaim"]["claimName"])
                      for one in pod.spec["volumes"] if "persistentVolumeClaim" in one}  # fmt: skip
            named |= {("ResourceClaimTemplate", one["resourceClaimTemplateName"]) for one in pod.spec.get("resourceClaims", [])}
            named |= {("ConfigMap", source["configMapRef"]["name"])
                      for container in pod.containers for source in container.get("envFrom", [])}  # fmt: skip
            self.assertEqual(named - there, set())

    def test_certificates_and_secrets_lead_to_each_other(self) -> None:
        for name, objects in self.rendered.items():
            by_name = {kustomize.name_of(thing): thing for thing in objects}
            secrets = {thing["spec"]["secretName"] for thing in objects if thing["kind"] == "Certificate"}
            for thing in objects:
                if thing["kind"] == "Certificate":
                    self.assertIn(("Issuer", thing["spec"]["issuerRef"]["name"]), by_name, name)
                if thing["kind"] == "Issuer" and "ca" in thing["spec"]:
                    self.assertIn(thing["spec"]["ca"]["secretName"], secrets)
            (endpoint,) = by_name["PodMonitor", "dws"]["spec"]["podMetricsEndpoints"]
            tls = endpoint["tlsConfig"]
            self.assertEqual({tls["ca"]["secret"]["name"], tls["cert"]["secret"]["name"], tls["keySecret"]["name"]}, {"dws-prometheus"})
            self.assertEqual(by_name["Certificate", "dws-prometheus"]["spec"]["uris"], ["dws://my-job/operate/prometheus"])
            for pod in pods.pods_of(objects):
                asked = pod.volume("tls")["csi"]["volumeAttributes"]["csi.cert-manager.io/dns-names"]
                self.assertIn(tls["serverName"], asked.split(","))
                self.assertIn(endpoint["port"], [port["name"] for port in pod.containers[0]["ports"]])

    def test_selectors_select_the_pods_that_they_are_for(self) -> None:
        for name, objects in self.rendered.items():
            labels = [pod.labels for pod in pods.pods_of(objects)]
            for thing in objects:
                for selector in self.selectors(thing):
                    chosen = [one for one in labels if selector.items() <= one.items()]
                    self.assertTrue(chosen, f"{name}: {kustomize.name_of(thing)} selects no pod: {selector}")

    def selectors(self, thing: Object) -> Iterator[dict[str, str]]:
        spec = thing.get("spec", {})
        if thing["kind"] == "Service":
            yield spec["selector"]
        elif thing["kind"] in ("PodDisruptionBudget", "StatefulSet", "PodMonitor"):
            yield spec["selector"]["matchLabels"]
        elif thing["kind"] == "NetworkPolicy":
            yield spec["podSelector"]["matchLabels"]

    def test_ports_are_open_to_those_who_need_them(self) -> None:
        """And every pod has a policy, so that all other ports are closed."""
        for name, objects in self.rendered.items():
            by_name = {kustomize.name_of(thing): thing["spec"] for thing in objects if "spec" in thing}
            everyone = by_name["NetworkPolicy", "dws-nobody"]
            self.assertNotIn("ingress", everyone)
            for pod in pods.pods_of(objects):
                self.assertLessEqual(everyone["podSelector"]["matchLabels"].items(), pod.labels.items())
            (trainers, _) = by_name["NetworkPolicy", "dws-trainer"]["ingress"]
            self.assertEqual({str(one["port"]) for one in trainers["ports"]}, configured("listen", "sender"), name)
            (metrics,) = by_name["NetworkPolicy", "dws-metrics"]["ingress"]
            self.assertEqual({str(one["port"]) for one in metrics["ports"]}, configured("http", "sender") | configured("http", "receiver"))
            (service,) = by_name["Service", "trainer"]["ports"]
            self.assertEqual({str(service["port"])}, configured("listen", "sender"))

    def test_the_jobs_name_is_the_same_everywhere(self) -> None:
        for objects in self.rendered.values():
            text = yaml.safe_dump_all(objects)
            self.assertEqual(set(re.findall(r"dws://([^/]+)/", text)), {"my-job"})


class KustomizeTest(unittest.TestCase):
    """The renderer refuses what kustomize refuses."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name)
        self.write("thing.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: one}, data: {a: b, list: [1]}}\n")

    def write(self, name: str, text: str) -> None:
        (self.top / name).write_text(text)

    def render(self, **fields: Any) -> list[Object]:
        self.write("kustomization.yaml", yaml.safe_dump({"kind": "Kustomization", "resources": ["thing.yaml"], **fields}))
        return kustomize.render(self.top)

    def test_every_file_of_the_manifests_is_used(self) -> None:
        used: set[Path] = set()
        real = Path.read_text

        def noted(path: Path, *arguments: Any, **options: Any) -> str:
            used.add(path.resolve())
            return real(path, *arguments, **options)

        with mock.patch.object(Path, "read_text", noted):
            for path in overlays():
                kustomize.render(path)
        self.assertEqual({path.resolve() for path in MANIFESTS.rglob("*.yaml")} - used, set())

    def test_each_patch_of_a_component_changes_something(self) -> None:
        rendered = [set(map(kustomize.name_of, kustomize.render(path))) for path in overlays()]
        for component in sorted(MANIFESTS.glob("components/*/kustomization.yaml")):
            for patch in yaml.safe_load(component.read_text()).get("patches", []):
                wanted = (patch["target"]["kind"], patch["target"]["name"])
                self.assertTrue(any(wanted in names for names in rendered), f"{component}: {wanted}")

    def test_a_file_that_is_missing_is_refused(self) -> None:
        with self.assertRaisesRegex(KustomizeError, "there is no such file"):
            self.render(resources=["other.yaml"])

    def test_a_patch_of_an_object_that_is_missing_is_refused(self) -> None:
        self.write("patch.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: other}}\n")
        with self.assertRaisesRegex(KustomizeError, "other.*is not among the objects"):
            self.render(patches=[{"path": "patch.yaml"}])

    def test_a_patch_of_a_field_that_is_missing_is_refused(self) -> None:
        target = {"kind": "ConfigMap", "name": "one"}
        for step, why in (
            ("{op: replace, path: /data/c, value: 1}", "not there"),
            ("{op: add, path: /data/a, value: 1}", "which is there"),
            ("{op: add, path: /spec/a, value: 1}", "there is no spec"),
        ):
            with self.assertRaisesRegex(KustomizeError, why):
                self.render(patches=[{"target": target, "patch": f"[{step}]"}])

    def test_an_image_that_no_container_has_and_an_unknown_field_are_refused(self) -> None:
        with self.assertRaisesRegex(KustomizeError, "no container has the image"):
            self.render(images=[{"name": "dws", "newName": "x", "newTag": "1"}])
        with self.assertRaisesRegex(KustomizeError, "replicas"):
            self.render(replicas=[])

    def test_patches_are_applied(self) -> None:
        self.write("patch.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: one}, data: {c: d}}\n")
        target = {"kind": "ConfigMap", "name": "one"}
        (thing,) = self.render(patches=[{"path": "patch.yaml"}, {"target": target, "patch": "[{op: add, path: /data/list/-, value: 2}]"}])
        self.assertEqual(thing["data"], {"a": "b", "c": "d", "list": [1, 2]})


class ContainerTest(unittest.TestCase):
    """The images and compose.yaml."""

    def setUp(self) -> None:
        self.file = dockerfile.instructions(CONTAINER / "Dockerfile")
        self.compose = yaml.safe_load((CONTAINER / "compose.yaml").read_text())

    def test_images_run_as_the_user_that_the_package_makes(self) -> None:
        text = (CONTAINER / "Dockerfile").read_text()
        self.assertIn(f"ARG DWS_ID={USER}\n", text)
        self.assertEqual([rest for word, rest in self.file if word == "USER"], [f"{USER}:{USER}", "0:0", f"{USER}:{USER}"])
        # The package's own line for that user keeps one that is there already.
        self.assertRegex(Path("deploy/systemd/dws.sysusers.conf").read_text(), r"(?m)^u dws - \S.* /var/lib/dws$")
        self.assertIn("--home-dir /var/lib/dws", text)

    def test_the_daemons_run_in_compose_as_in_readme(self) -> None:
        example = dict(re.findall(r"^```(?:sh|python) (\S+)\n(.*?)^```$", Path("README.md").read_text(), re.M | re.S))
        for name in ("trainer.py", "engine.py"):
            _, described, text = (CONTAINER / name).read_text().partition("By hand\".\"\"\"\n\n")
            self.assertTrue(described)
            self.assertEqual(text, example[name].replace("/tmp/dws/", "/run/dws/"))
        for name in ("sender", "receiver"):
            service = self.compose["services"][name]
            program, *words = service["command"]
            checked = effective(program, words, service["environment"])
            self.assertEqual((checked.returncode, checked.stderr), (0, ""))
            values = tomllib.loads(checked.stdout)
            self.assertIn(f"--job-id={values['job-id']}", example["daemons"])
            self.assertIn(values["socket"].replace("/run/dws/", "/tmp/dws/"), example["daemons"])
            self.assertEqual((values["listen"], values["http"]), ("", ""))
            self.assertGreater(int(service["stop_grace_period"].removesuffix("s")), values["stop-timeout"] + 10
                               if "stop-timeout" in values else values["stop"]["timeout"] + 10)  # fmt: skip

    def test_containers_share_the_sockets_and_have_no_privileges(self) -> None:
        for name, service in self.compose["services"].items():
            self.assertTrue(service["read_only"], name)
            self.assertEqual(service["cap_drop"], ["ALL"])
            self.assertEqual(service["network_mode"], "none")
            self.assertEqual({key for key in service if key in ("privileged", "ipc", "pid", "userns_mode", "user")}, set())
            self.assertEqual([one for one in service["volumes"] if one.startswith("run:/run/dws")][1:], [])
        options = self.compose["volumes"]["run"]["driver_opts"]["o"]
        self.assertIn(f"uid={USER},gid={USER}", options)

    def test_health_is_what_dwsctl_answers(self) -> None:
        checks = [rest for word, rest in self.file if word == "HEALTHCHECK"]
        self.assertEqual(checks[1:], ["NONE"])
        self.assertIn('"dwsctl status --timeout=4 >/dev/null; test $? -le 1"', checks[0])


if __name__ == "__main__":
    unittest.main()
