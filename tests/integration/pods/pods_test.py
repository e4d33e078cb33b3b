"""The pods of deploy/kubernetes, run as a kubelet would run them but for the container engine: their commands, variables,
users, mounts and probes are the manifests'. A trainer publishes, an engine follows, bit for bit."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import tempfile
import unittest
from pathlib import Path
from typing import Any, Optional

from tests.deploy.kubernetes import dockerfile, kustomize, pods
from tests.deploy.kubernetes.kustomize import Object
from tests.integration.network_hosts import NetworkHosts
from tests.integration.pods.issuer import Issuer
from tests.integration.pods.sandbox import CLIENT, Container, RunningPod, make_image, run_until

MANIFESTS = Path("deploy/kubernetes")
NAMESPACE = "my-job"
MEBIBYTES = 4
WAIT_SECONDS = 60.0


class Worker:
    """worker.py in a container of a trainer or an engine, which obeys lines."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._answer()

    def ask(self, order: str, argument: object = "") -> dict[str, Any]:
        process = self._container.process
        assert process.stdin is not None
        process.stdin.write(f"{order} {argument}\n")
        process.stdin.flush()
        answer = self._answer()
        assert "error" not in answer, answer
        return answer

    def _answer(self) -> dict[str, Any]:
        process = self._container.process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, self._container.log()
        return dict(json.loads(line))


@unittest.skipIf(os.geteuid() != 0, "only root makes namespaces and runs as other users")
class PodsTest(unittest.TestCase):
    def setUp(self) -> None:
        # In memory, as the volumes of sockets are; and a short path, which is part of the paths of sockets.
        folder = tempfile.TemporaryDirectory(prefix="dws-pods-", dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        os.chmod(self.folder, 0o755)
        self.entrypoint = dockerfile.entrypoint(Path("deploy/container/Dockerfile"))
        self.image = make_image(self.folder / "image", "tools/package/systemd/worker.py")
        (self.folder / "issuer").mkdir()
        self.issuer = Issuer(self.folder / "issuer", "DWS my-job")
        self.running: list[RunningPod] = []

    def _end(self) -> None:
        outcome = self._outcome  # type: ignore[attr-defined]  # as IntegrationCase
        for pod in self.running:
            for name, container in pod.containers.items():
                if not outcome.success:
                    print(f"--- {pod.pod.name}/{name}\n{container.log()[-4000:]}", flush=True)
            pod.kill()

    def make_pods(self, *folders: str, hosts: int = 2) -> list[RunningPod]:
        """A pod on each host, with volumes and no container yet."""
        self.objects: list[Object] = []
        for folder in folders:
            self.objects += kustomize.render(MANIFESTS / folder)
        self.hosts = NetworkHosts.of_test(self, hosts)
        self.addCleanup(self._end)  # before the hosts are removed
        made = list(pods.pods_of(self.objects, NAMESPACE))
        self.assertEqual(len(made), hosts)
        names = {pod.address: self.hosts.address(host) for host, pod in enumerate(made)}
        for host, pod in enumerate(made):
            running = RunningPod(
                pod, self.objects, self.hosts.command(host), self.folder / pod.name, self.entrypoint
            )
            self.running.append(running)
            running.hosts = names
            running.image = self.image
            running.make_volumes(lambda folder, csi, name=pod.name: self.write_certificates(folder, csi, name))
        return self.running

    def write_certificates(self, folder: Path, csi: Object, pod_name: str) -> None:
        self.issuer.write_volume(folder, csi["volumeAttributes"], pod_name, NAMESPACE)

    def start_daemon(self, pod: RunningPod, name: str) -> Container:
        container = pod.start(name)
        pod.until_started(name)
        return container

    def start_worker(self, pod: RunningPod, name: str, kind: str, socket: str) -> Worker:
        settings = next(thing for thing in self.objects if thing["kind"] == "ConfigMap")
        job = [f"--job={settings['data']['DWS_JOB_ID']}"] if kind == "trainer" else []
        words = ["env", f"PYTHONPATH={CLIENT}", "python3", "-B", f"{CLIENT}/worker.py", kind,
                 f"--socket={socket}", f"--mebibytes={MEBIBYTES}", *job]  # fmt: skip
        return Worker(pod.start(name, words))

    def start_pair(self, *folders: str) -> tuple[RunningPod, RunningPod, Worker, Worker]:
        trainer_pod, engine_pod = self.make_pods(*folders)
        self.start_daemon(trainer_pod, "sender")
        self.start_daemon(engine_pod, "receiver")
        # A sender or receiver without its client lives, and is not ready.
        for pod, name in ((trainer_pod, "sender"), (engine_pod, "receiver")):
            self.assertEqual((pod.probe(name, "livenessProbe"), pod.probe(name, "readinessProbe")), (0, 1), name)
        trainer = self.start_worker(trainer_pod, "trainer", "trainer", "/run/dws/sender.sock")
        engine = self.start_worker(engine_pod, "engine", "engine", "/run/dws/receiver.sock")
        return trainer_pod, engine_pod, trainer, engine

    def sync(self, trainer: Worker, engines: list[Worker], *versions: int) -> None:
        for version in versions:
            published = trainer.ask("publish", version)
            for engine in engines:
                run_until(lambda: engine.ask("state")["version"] == version, WAIT_SECONDS, lambda: str(engine.ask("state")))
                self.assertEqual(engine.ask("digest"), published)

    def test_a_trainer_publishes_and_an_engine_follows(self) -> None:
        trainer_pod, engine_pod, trainer, engine = self.start_pair("job", "vllm")
        self.assertFalse(engine_pod.shares_processes)
        self.check_confinement(trainer_pod, engine_pod)
        self.sync(trainer, [engine], 1, 2, 3)
        for pod, name in ((trainer_pod, "sender"), (engine_pod, "receiver")):
            run_until(lambda: pod.probe(name, "readinessProbe") == 0, WAIT_SECONDS, lambda: f"{name} is not ready")
        self.check_metrics()
        self.check_renewal(trainer_pod, "sender")
        self.check_renewal(engine_pod, "receiver")
        self.sync(trainer, [engine], 4)
        self.check_liveness(engine_pod, "receiver")
        self.check_restart(engine_pod, trainer, engine)
        self.check_end(engine_pod, "engine", "receiver")
        self.check_end(trainer_pod, "trainer", "sender")

    def check_confinement(self, trainer_pod: RunningPod, engine_pod: RunningPod) -> None:
        """The test runs what it says: otherwise it would show nothing about pods."""
        sender, receiver = trainer_pod.containers["sender"], engine_pod.containers["receiver"]
        engine = engine_pod.containers["engine"]
        for kind in ("net", "ipc", "uts"):
            self.assertEqual(receiver.namespace(kind), engine.namespace(kind))
            self.assertNotEqual(receiver.namespace(kind), sender.namespace(kind))
            self.assertNotEqual(receiver.namespace(kind), os.readlink(f"/proc/self/ns/{kind}"))
        for kind in ("mnt", "pid"):
            self.assertNotEqual(receiver.namespace(kind), engine.namespace(kind))
        for container in (sender, receiver, engine):
            self.assertEqual(container.status("Uid").split(), ["10077"] * 4)
            self.assertEqual(container.status("CapEff") + container.status("CapBnd"), "0" * 32)
            self.assertEqual(container.status("NoNewPrivs"), "1")
            self.assertNotEqual(container.exec(["sh", "-c", "echo > /etc/new"], 10), 0, "the root is not read-only")
        for daemon in (sender, receiver):
            self.assertEqual(daemon.exec(["sh", "-c", "test -z \"$(ls /tmp)\" && ls /var/lib/dws/*/*.ledger"], 10), 0)
            limits = Path(f"/proc/{daemon.pid}/limits").read_text()
            self.assertRegex(limits, r"Max core file size +0 +0 ")
            self.assertEqual(Path(f"/proc/{daemon.pid}/comm").read_text().strip(), daemon.spec.command[4][:15])
        # The engine cannot replace its receiver's socket.
        self.assertNotEqual(engine.exec(["rm", "/run/dws/receiver.sock"], 10), 0)

    def scrape(self, host: int, port: int, certificate: Optional[tuple[Path, Path]], name: str) -> str:
        context = ssl.create_default_context(cafile=str(self.issuer.ca))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        with self.hosts.inside(host):
            plain = socket.create_connection((self.hosts.address(host), port), 20)
        connection = http.client.HTTPConnection("pod")
        with plain, context.wrap_socket(plain, server_hostname=name) as connection.sock:
            connection.request("GET", "/metrics")
            reply = connection.getresponse()
            self.assertEqual(reply.status, 200)
            return reply.read().decode()

    def check_metrics(self) -> None:
        """Prometheus reads them, by what the component `metrics` says; nobody does without a certificate."""
        rendered = kustomize.render(MANIFESTS / "overlays/vllm-dra")
        both = {kustomize.name_of(thing): thing for thing in rendered}
        asked = both["Certificate", "dws-prometheus"]["spec"]
        (endpoint,) = both["PodMonitor", "dws"]["spec"]["podMetricsEndpoints"]
        certificate = self.issuer.issue(",".join(asked["uris"]), "", ",".join(asked["usages"]))
        name = endpoint["tlsConfig"]["serverName"]
        for host, container in ((0, "sender"), (1, "receiver")):
            ports = {p["name"]: p["containerPort"] for p in self.running[host].pod.container(container)["ports"]}
            port = ports[endpoint["port"]]
            self.assertIn("dws_build_info{", self.scrape(host, port, certificate, name))
            with self.assertRaises(OSError):
                self.scrape(host, port, None, name)

    def check_renewal(self, pod: RunningPod, name: str) -> None:
        """A renewed certificate is used, and a daemon whose certificate is renewed goes on."""
        before = pod.containers[name].log().count('"tls_reloaded"')
        self.write_certificates(pod.volume_folder("tls"), pod.pod.volume("tls")["csi"], pod.pod.name)
        run_until(
            lambda: pod.containers[name].log().count('"tls_reloaded"') > before, WAIT_SECONDS,
            lambda: f"{name} has not used its new certificate:\n{pod.containers[name].log()[-2000:]}",
        )  # fmt: skip

    def check_liveness(self, pod: RunningPod, name: str) -> None:
        """The liveness probe fails for a daemon that hangs, and for no other."""
        pod.containers[name].signal(signal.SIGSTOP)
        self.assertNotEqual(pod.probe(name, "livenessProbe"), 0)
        pod.containers[name].signal(signal.SIGCONT)
        self.assertEqual(pod.probe(name, "livenessProbe"), 0)

    def check_restart(self, pod: RunningPod, trainer: Worker, engine: Worker) -> None:
        """A receiver that is killed starts again in its pod, and its engine goes on with it."""
        version = engine.ask("state")["version"]
        pod.containers["receiver"].signal(signal.SIGKILL)
        pod.containers["receiver"].wait(20)
        pod.containers["receiver"].kill()
        self.start_daemon(pod, "receiver")
        run_until(lambda: engine.ask("state")["reattachments"] > 0, WAIT_SECONDS, lambda: str(engine.ask("state")))
        self.sync(trainer, [engine], version + 1)

    def check_end(self, pod: RunningPod, client: str, daemon: str) -> None:
        """As a kubelet ends a pod: its containers, then its sidecars, each by SIGTERM, within the grace period."""
        grace = pod.pod.spec["terminationGracePeriodSeconds"]
        pod.containers[client].kill()
        pod.containers[daemon].signal(signal.SIGTERM)
        self.assertEqual(pod.containers[daemon].wait(grace), 0)

    def test_a_pod_that_shares_its_processes_follows_too(self) -> None:
        """With the component of GPUs, for memory of cudaMalloc."""
        trainer_pod, engine_pod, trainer, engine = self.start_pair("overlays/vllm-dra")
        for pod in (trainer_pod, engine_pod):
            self.assertTrue(pod.shares_processes)
        self.assertEqual(engine_pod.containers["receiver"].namespace("pid"), engine_pod.containers["engine"].namespace("pid"))
        self.sync(trainer, [engine], 1, 2)
        self.check_end(engine_pod, "engine", "receiver")
        self.check_end(trainer_pod, "trainer", "sender")

    def test_the_hosts_of_an_engine_change_versions_together(self) -> None:
        trainer_pod, leader, member = self.make_pods("job", "hosts", hosts=3)
        self.start_daemon(trainer_pod, "sender")
        for pod in (leader, member):
            self.start_daemon(pod, "receiver")
        trainer = self.start_worker(trainer_pod, "trainer", "trainer", "/run/dws/sender.sock")
        engines = [self.start_worker(pod, "engine", "engine", "/run/dws/receiver.sock") for pod in (leader, member)]
        self.sync(trainer, engines, 1, 2, 3)
        for pod in (leader, member):
            run_until(lambda: pod.probe("receiver", "readinessProbe") == 0, WAIT_SECONDS, lambda: pod.pod.name)
        # Without the other host's receiver no version is committed, on either.
        member.containers["receiver"].signal(signal.SIGKILL)
        member.containers["receiver"].wait(20)
        trainer.ask("publish", 4)
        offered = ["sh", "-c", """dwsctl versions --json | grep -q '"newest_version": *"4"'"""]
        run_until(lambda: leader.containers["receiver"].exec(offered, 10) == 0, WAIT_SECONDS, lambda: "version 4 is not offered")
        self.assertEqual([engine.ask("state")["version"] for engine in engines], [3, 3])
        member.containers["receiver"].kill()
        self.start_daemon(member, "receiver")
        self.sync(trainer, engines, 5)


if __name__ == "__main__":
    unittest.main()
