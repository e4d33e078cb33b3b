"""The alerts of deploy/prometheus: promtool accepts them, their unit tests pass and can fail, and each
links to its section of the operator's guide."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import unittest
from pathlib import Path

from tests.deploy.prometheus.promtool import needs_promtool, promtool

FOLDER = "deploy/prometheus"
RUNBOOK = "runbook.md"
RULES = f"{FOLDER}/dws.rules.yml"
RULE_TESTS = f"{FOLDER}/dws.rules.test.yml"
# The alerts that must exist.
EXPECTED = frozenset({
    "DwsCertificateExpiring",
    "DwsDaemonDown",
    "DwsDaemonNotReady",
    "DwsDensityJump",
    "DwsEnginePausedTooLong",
    "DwsFolderFailing",
    "DwsInsecure",
    "DwsReceiverAbsent",
    "DwsReceiverDigestMismatch",
    "DwsReceiverHeld",
    "DwsReceiverLeftOut",
    "DwsReceiverOldVersion",
    "DwsReceiverStale",
    "DwsReceiverWithoutSender",
    "DwsRetentionNearCap",
    "DwsScrubLate",
    "DwsSenderDigestMismatch",
    "DwsStoreFailing",
    "DwsTrainAbandons",
    "DwsTrainStalled",
    "DwsTrainerStallHigh",
})


def source_root() -> Path:
    """The real top of the tree; the runfiles hold links to it."""
    return Path(os.path.realpath("docs/metrics.md")).parent.parent


def alerts() -> dict[str, str]:
    """The text of each alert's rule, by its name."""
    parts = re.split(r"^ +- alert: (\w+)$", Path(RULES).read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


class RulesTest(unittest.TestCase):
    @needs_promtool
    def test_promtool_accepts_the_rules_and_the_example(self) -> None:
        self.assertIn(f"{len(EXPECTED)} rules found", promtool("check", "rules", RULES))
        promtool("check", "config", f"{FOLDER}/prometheus.example.yml")

    @needs_promtool
    def test_the_unit_tests_pass(self) -> None:
        promtool("test", "rules", RULE_TESTS)

    @needs_promtool
    def test_the_unit_tests_fail_for_each_broken_rule(self) -> None:
        rules = Path(RULES).read_text()
        for name, text in alerts().items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                shutil.copy(RULE_TESTS, folder)
                # The same rule, but it never fires.
                never = re.sub(r"expr: (\|\n(?: {10,}.*\n)+|.*\n)", "expr: vector(0) > 1\n", text, count=1)
                self.assertNotEqual(never, text)
                Path(folder, "dws.rules.yml").write_text(rules.replace(text, never))
                with self.assertRaises(AssertionError):
                    promtool("test", "rules", os.path.join(folder, "dws.rules.test.yml"))

    def test_each_alert_has_a_severity_a_description_and_a_runbook(self) -> None:
        self.assertEqual(set(alerts()), EXPECTED)
        for name, text in alerts().items():
            with self.subTest(name):
                self.assertRegex(text, r"severity: (warning|critical)\n")
                self.assertRegex(text, r"summary: \".+\"\n")
                self.assertRegex(text, r"description: \".{60,}\"\n")
                link = f'"{{{{ $externalLabels.dws_docs }}}}/{RUNBOOK}#{name.lower()}"'
                self.assertIn(f"runbook_url: {link}\n", text)
        example = Path(FOLDER, "prometheus.example.yml").read_text()
        self.assertRegex(example, r"external_labels:\n +dws_docs: https://[a-z./]+[a-z] ")

    def test_each_alert_has_a_unit_test(self) -> None:
        tests = Path(RULE_TESTS).read_text()
        for name in EXPECTED:
            with self.subTest(name):
                self.assertRegex(tests, rf"alertname: {name}\n +exp_alerts:")

    def test_the_runbook_has_a_section_for_each_alert(self) -> None:
        page = (source_root() / "docs" / RUNBOOK).read_text()
        headings = set(re.findall(r"^#+ (\w+)$", page, re.M))
        self.assertEqual(EXPECTED - headings, set())


if __name__ == "__main__":
    unittest.main()
