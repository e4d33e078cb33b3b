"""The metrics and status of two real daemons over HTTP after real commits. Documents, alerts and the
dashboard use exactly these metrics."""

from __future__ import annotations

import json
import re
import unittest
from pathlib import Path
from typing import Iterator

import grpc
import numpy as np

import dws
from dws._proto import admin_pb2, admin_pb2_grpc
from tests.deploy.prometheus.exposition import Exposition, get
from tests.deploy.prometheus.expressions import problems
from tests.deploy.prometheus.promtool import needs_promtool, promtool
from tests.integration.cluster import Cluster, Daemon
from tests.integration.integration_case import eventually

VERSIONS = 4
ELEMENTS = 300_000
DASHBOARD = "deploy/grafana/dws.json"
# Shown under a condition that these daemons do not meet.
CONDITIONAL = {
    "dws_tls_certificate_expiry_timestamp_seconds": frozenset({"dws_job"}),
    # Only of daemons with a store; tests/integration/transfer/store_test.py reads them.
    "dws_store_bytes_total": frozenset({"dws_job", "direction"}),
    "dws_store_requests_total": frozenset({"dws_job", "outcome"}),
    "dws_store_retries_total": frozenset({"dws_job"}),
    "dws_store_seconds_since_failure": frozenset({"dws_job"}),
    # Only of receivers in a commit group; tests/integration/group_test.py reads them.
    "dws_receiver_group_leader_connected": frozenset({"dws_job", "receiver_id"}),
    "dws_receiver_group_members": frozenset({"dws_job", "receiver_id", "state"}),
    # Only of a receiver that follows a folder; tests/integration/follow_test.py reads them.
    **{
        f"dws_follower_{name}": frozenset({"dws_job", "receiver_id"})
        for name in (
            "applied_tensors_total",
            "applied_total",
            "apply_seconds",
            "failing",
            "incomplete",
            "loaded_version",
            "loads_total",
            "newest_version",
            "pause_seconds",
            "seconds_failing",
            "seconds_since_version",
            "unproved",
            "version",
            "version_lag",
        )
    },
}
# On every sample of a daemon.
OWN_LABELS = {
    "sender": frozenset({"dws_job", "trainer_rank"}),
    "receiver": frozenset({"dws_job", "receiver_id"}),
}


def alert_expressions() -> Iterator[tuple[str, str]]:
    """Name and expression of each alert."""
    text = Path("deploy/prometheus/dws.rules.yml").read_text()
    for name, expression in re.findall(
        r"- alert: (\w+)\n +expr: (?:\|\n)?((?: {10,}.*\n)+|.*\n)", text
    ):
        yield name, expression


def panel_expressions() -> Iterator[tuple[str, str]]:
    """Title and expression of each query of the dashboard, its variables filled in."""
    for panel in json.loads(Path(DASHBOARD).read_text())["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "5m").replace("$dws_job", ".*")
            yield panel["title"], expression


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and own labels of each metric in docs/metrics.md."""
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| [^|]+ \|([^|]*)\| [^|]+ \|$",
        Path("docs/metrics.md").read_text(),
        re.M,
    )
    found = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(found) == len(rows), "a metric has two rows"
    return found


class MetricsTest(unittest.TestCase):
    cluster: Cluster
    pages: dict[str, Exposition] = {}

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = Cluster("test")
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start_sender(0)
        cls.cluster.start_receiver("r-0")
        cls.before = get(cls.cluster.senders[0].ports["http"], "/readyz")
        weights = {"a": np.zeros(ELEMENTS, np.float32)}
        cls.trainer = dws.Trainer(cls.cluster.senders[0].socket, "test")
        cls.addClassCleanup(cls.trainer.close)
        views = cls.trainer.register(weights)
        engine = dws.Engine(cls.cluster.receivers[0].socket)
        cls.addClassCleanup(engine.close)
        engine.attach({"a": np.zeros(ELEMENTS, np.float32)})
        cls.wire_bytes = []
        for version in range(1, VERSIONS + 1):
            views["a"][version :: 100 if version < VERSIONS else 2] += 1.5
            cls.trainer.publish(version)
            cls.wire_bytes.append(cls.trainer.wait(version, timeout=60).wire_bytes)
        # A commit is counted only after it was acknowledged.
        receiver = cls.cluster.receivers[0]
        eventually(
            lambda: receiver.metric("dws_receiver_commits_total") == VERSIONS,
            lambda: "the last commit is counted",
        )
        cls.pages = {
            "sender": cls.scrape(cls.cluster.senders[0]),
            "receiver": cls.scrape(cls.cluster.receivers[0]),
        }

    before: tuple[int, str, str]
    trainer: dws.Trainer
    wire_bytes: list[int]

    @classmethod
    def scrape(cls, daemon: Daemon) -> Exposition:
        status, kind, text = get(daemon.ports["http"], "/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8"), (status, kind)
        return Exposition(text)

    def all_labels(self) -> dict[str, frozenset[str]]:
        """The label names of each sample of both daemons."""
        found: dict[str, frozenset[str]] = dict(CONDITIONAL)
        for page in self.pages.values():
            for name, labels in page.labels().items():
                found[name] = found.get(name, frozenset()) | labels
        return found

    @needs_promtool
    def test_promtool_accepts_the_metrics(self) -> None:
        for daemon, page in self.pages.items():
            with self.subTest(daemon):
                self.assertEqual(promtool("check", "metrics", stdin=page.text), "")

    def test_docs_list_each_metric_and_nothing_else(self) -> None:
        docs = documented()
        shown: dict[str, str] = {}
        own: dict[str, frozenset[str]] = {}
        for daemon, page in self.pages.items():
            shown |= page.types
            for sample, labels in page.labels().items():
                metric = page.metric_of(sample)
                own[metric] = own.get(metric, frozenset()) | (labels - OWN_LABELS[daemon] - {"le"})
        for name, labels in own.items():
            if name.startswith("dws_sender_receiver_"):
                own[name] = labels | {"receiver_id"}
        self.assertEqual(set(shown) - set(docs), set(), "not in docs/metrics.md")
        self.assertEqual(set(docs) - set(shown) - set(CONDITIONAL), set(), "not shown by a daemon")
        for name, kind in shown.items():
            self.assertEqual(docs[name], (kind, own[name]), name)

    def test_alerts_read_metrics_that_exist(self) -> None:
        found = 0
        for name, expression in alert_expressions():
            found += 1
            self.assertEqual(list(problems(expression, self.all_labels())), [], name)
        self.assertGreaterEqual(found, 11)

    def test_the_dashboard_reads_metrics_that_exist(self) -> None:
        found = 0
        for title, expression in panel_expressions():
            found += 1
            self.assertEqual(
                list(problems(expression, self.all_labels())), [], f"{title}: {expression}"
            )
        self.assertGreater(found, 40)

    @needs_promtool
    def test_the_queries_of_the_dashboard_parse(self) -> None:
        rules = [
            {"record": f"dws:query_{number}", "expr": expression}
            for number, (_, expression) in enumerate(panel_expressions())
        ]
        # JSON is YAML.
        path = Path(self.cluster.folder, "queries.yml")
        path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
        self.assertIn(f"{len(rules)} rules found", promtool("check", "rules", str(path)))

    def test_a_wrong_query_is_detected(self) -> None:
        labels = self.all_labels()
        self.assertTrue(list(problems("dws_sender_no_such_thing", labels)))
        self.assertTrue(list(problems('dws_ready{receiver_name="a"}', labels)))
        self.assertTrue(list(problems("sum by (color) (dws_ready)", labels)))
        self.assertTrue(list(problems("1 + 1", labels)))

    def test_the_metrics_of_the_sender_match_the_published_versions(self) -> None:
        page = self.pages["sender"]
        self.assertEqual(page.value("dws_sender_published_versions_total"), VERSIONS)
        self.assertEqual(page.value("dws_sender_publish_seconds_count"), VERSIONS)
        self.assertEqual(page.value("dws_sender_capture_seconds_count"), VERSIONS)
        self.assertEqual(page.value("dws_sender_newest_version"), VERSIONS)
        changed = [len(range(v, ELEMENTS, 100)) for v in range(2, VERSIONS)]
        changed.append(len(range(VERSIONS, ELEMENTS, 2)))
        self.assertEqual(page.value("dws_sender_changed_elements_total"), sum(changed))
        density = page.value("dws_sender_density_ratio")
        self.assertAlmostEqual(density or 0, changed[-1] / ELEMENTS, places=6)
        wire = sum(v for n, _, v in page.samples if n == "dws_sender_wire_bytes_total")
        self.assertEqual(wire, sum(self.wire_bytes[1:]))
        self.assertEqual(self.wire_bytes[0], 4 * ELEMENTS)  # in full
        served = page.value("dws_sender_served_bytes_total", kind="delta")
        self.assertEqual(served, sum(self.wire_bytes[1:]))
        self.assertEqual(page.value("dws_sender_receivers", state="present"), 1)
        self.assertEqual(page.value("dws_sender_receiver_lag_versions", receiver_id="r-0"), 0)

    def test_the_metrics_of_the_receiver_match_its_commits(self) -> None:
        page = self.pages["receiver"]
        self.assertEqual(page.value("dws_receiver_commits_total"), VERSIONS)
        # The engine may not have been generating at the first version.
        self.assertIn(page.value("dws_receiver_pause_seconds_count"), (VERSIONS - 1, VERSIONS))
        self.assertEqual(page.value("dws_receiver_committed_version"), VERSIONS)
        self.assertEqual(page.value("dws_receiver_version_lag"), 0)
        self.assertEqual(
            page.value("dws_receiver_fetched_bytes_total", kind="delta"), sum(self.wire_bytes[1:])
        )
        self.assertEqual(page.value("dws_receiver_engine_ranks", state="attached"), 1)

    def test_status_is_the_status_reply_as_json(self) -> None:
        for daemon in (self.cluster.senders[0], self.cluster.receivers[0]):
            code, kind, text = get(daemon.ports["http"], "/status")
            self.assertEqual((code, kind), (200, "application/json"))
            status = json.loads(text)
            self.assertEqual((status["job_id"], status["ready"]), ("test", True))
            self.assertEqual(status["drain"], "DRAIN_STATE_NONE")  # a default value
        self.assertEqual(status["daemon"], "dws-receiver")
        self.assertEqual(status["receiver"]["committed_version"], str(VERSIONS))

    def test_readyz_has_a_code_and_a_reason(self) -> None:
        self.assertEqual(self.before[0], 503)
        self.assertIn("waiting for trainer rank 0 of job 'test' to register", self.before[2])
        for daemon in (self.cluster.senders[0], self.cluster.receivers[0]):
            self.assertEqual(get(daemon.ports["http"], "/readyz")[0], 200)
            self.assertEqual(get(daemon.ports["http"], "/healthz")[0], 200)

    def test_a_drained_sender_is_not_serving_and_refuses_versions_until_undone(self) -> None:
        sender = self.cluster.senders[0]
        http = sender.ports["http"]
        with grpc.insecure_channel(f"unix:{sender.socket}") as channel:
            self.assertEqual(health(channel, "dws.v1.TrainerService"), SERVING)
            drain(channel, undo=False)
            try:
                for service in ("", "dws.v1.TrainerService", "dws.v1.AdminService"):
                    eventually(lambda: health(channel, service) == NOT_SERVING, lambda: service)
                self.assertEqual(get(http, "/readyz")[0], 503)
                self.assertIn("drained by the operator", get(http, "/readyz")[2])
                self.assertEqual(get(http, "/healthz")[0], 200)
                self.assertEqual(self.scrape(sender).value("dws_draining"), 1)
                status = json.loads(get(http, "/status")[2])
                self.assertEqual(status["drain"], "DRAIN_STATE_DRAINED")
                with self.assertRaisesRegex(dws.DwsError, "drained by its operator"):
                    self.trainer.publish(VERSIONS + 1)
            finally:
                drain(channel, undo=True)
            eventually(lambda: health(channel, "") == SERVING, lambda: "serving again")
        self.assertEqual(get(http, "/readyz")[0], 200)


SERVING, NOT_SERVING = 1, 2


def health(channel: grpc.Channel, service: str) -> int:
    """The status in a HealthCheckResponse, decoded by hand: field 1, a varint."""
    request = bytes([0x0A, len(service)]) + service.encode() if service else b""
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    reply: bytes = check(request, timeout=30)
    return reply[1] if reply else 0


def drain(channel: grpc.Channel, undo: bool) -> None:
    """Returns when the daemon has finished."""
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    told = list(stub.Drain(admin_pb2.DrainRequest(undo=undo), timeout=30))
    assert told[-1].finished, told


if __name__ == "__main__":
    unittest.main()
