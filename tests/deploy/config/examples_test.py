"""Every example in deploy/config is read by its daemon without a mistake; --check-config finds mistakes and
makes no files; and a daemon with a mistake in its configuration does not start."""

import os
import re
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path

EXAMPLES = Path("deploy/config")
PROGRAMS = {
    "sender.toml": "sender_daemon/dws-sender",
    "receiver.toml": "receiver_daemon/dws-receiver",
}
ABOUT_ONE_RUN = {"help", "version", "config", "check-config", "owner-pid"}


def run(program: str, *flags: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DWS_")}
    return subprocess.run(
        [program, *flags], env={**environment, **variables}, text=True, capture_output=True, timeout=60
    )


def options_of(program: str) -> set[str]:
    return set(re.findall(r"^  (?:-h,)?--([a-z-]+)", run(program, "--help").stdout, re.M)) - ABOUT_ONE_RUN


def keys_of(path: Path) -> set[str]:
    """The keys of an example in the form of options, with those that are commented out."""
    keys, table = set(), ""
    for line in path.read_text().splitlines():
        if head := re.match(r"\[([a-z-]+)\]$", line):
            table = head[1] + "-"
        for key in re.findall(r"^(?:# (?:[^=]*: )?)?([a-z-]+) = \S", line):
            keys.add(table + key)
    return keys


class ExamplesTest(unittest.TestCase):
    def examples(self) -> list[Path]:
        found = sorted(EXAMPLES.glob("*/*.toml"))
        self.assertGreaterEqual(len(found), 6)
        return found

    def test_each_example_is_read_without_a_mistake(self) -> None:
        for path in self.examples():
            with self.subTest(path=path):
                checked = run(PROGRAMS[path.name], "--config", str(path), "--check-config")
                self.assertEqual((checked.returncode, checked.stderr), (0, ""))
                # The file's values took effect, and the file is named as their source.
                effective = tomllib.loads(checked.stdout)
                self.assertEqual(effective["job-id"], "my-job")
                self.assertRegex(checked.stdout, rf'job-id = "my-job" +# {re.escape(str(path))}:\d+')
                self.assertEqual(set(effective), options_of(PROGRAMS[path.name]))

    def test_the_effective_configuration_can_be_loaded_and_is_the_same(self) -> None:
        for path in self.examples():
            with self.subTest(path=path), tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
                first = run(PROGRAMS[path.name], "--config", str(path), "--check-config").stdout
                file.write(first)
                file.flush()
                again = run(PROGRAMS[path.name], "--config", file.name, "--check-config")
                self.assertEqual((again.returncode, again.stderr), (0, ""))
                self.assertEqual(tomllib.loads(again.stdout), tomllib.loads(first))

    def test_the_hardened_example_names_every_option(self) -> None:
        for name, program in PROGRAMS.items():
            missing = options_of(program) - keys_of(EXAMPLES / "hardened" / name)
            self.assertEqual(missing, set(), name)


class PortsTest(unittest.TestCase):
    """One set of ports: what daemons serve is what senders, Prometheus and probes are pointed at."""

    def ports(self, key: str, program: str) -> set[str]:
        found = set()
        for path in EXAMPLES.glob(f"*/{program}.toml"):
            found |= set(re.findall(rf'^(?:# )?{key} = "[^"]*:(\d+)"', path.read_text(), re.M))
        return found

    def test_all_examples_of_a_daemon_serve_the_same_ports(self) -> None:
        for program in ("sender", "receiver"):
            for key in ("listen", "http"):
                self.assertEqual(len(self.ports(key, program)), 1, (program, key))

    def test_receivers_are_pointed_at_the_port_of_senders(self) -> None:
        for path in EXAMPLES.glob("*/receiver.toml"):
            senders = tomllib.loads(path.read_text())["sender"]
            ports = {each.rsplit(":", 1)[1] for each in senders if not each.startswith("unix:")}
            self.assertLessEqual(ports, self.ports("listen", "sender"), path)

    def test_prometheus_scrapes_what_daemons_serve(self) -> None:
        text = Path("deploy/prometheus/prometheus.example.yml").read_text()
        jobs = re.split(r"job_name: dws-", text)[1:]
        self.assertEqual([job.split("\n")[0] for job in jobs], ["sender", "receiver", "sender"])
        for job in jobs:
            targets = re.findall(r"targets: \[(.*)\]", job)
            self.assertEqual(len(targets), 1)
            scraped = set(re.findall(r":(\d+)", targets[0]))
            self.assertEqual(scraped, self.ports("http", job.split("\n")[0]))


class CheckTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.file = self.folder / "mine.toml"

    def test_every_mistake_has_its_line(self) -> None:
        self.file.write_text('job-id = 7\nretain-byets = 1\nthreads = 0\nx = = 1\n[retain]\nbytes = "4GiB"\nbytes = 1\n')
        checked = run(PROGRAMS["sender.toml"], f"--config={self.file}", "--check-config", DWS_HTTP="nowhere")
        self.assertEqual(checked.returncode, 2)
        lines = checked.stderr.splitlines()
        self.assertEqual(
            [line.split(": ")[0] for line in lines],
            [f"{self.file}:{number}" for number in (1, 2, 3, 4, 7)] + ["environment DWS_HTTP"],
        )
        self.assertIn("did you mean retain-bytes?", lines[1])
        self.assertIn("retain-bytes = 4294967296", checked.stdout)

    def test_a_check_makes_no_files(self) -> None:
        state, socket = self.folder / "state", self.folder / "s.sock"
        flags = (f"--state-dir={state}", f"--socket={socket}", f"--ports-file={self.folder / 'ports'}")
        self.assertEqual(run(PROGRAMS["sender.toml"], "--check-config", *flags).returncode, 0)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_daemon_does_not_start_with_a_mistake(self) -> None:
        for line, flag in (("retain-byets = 1", ""), ("", "--retain-byets=1"), ("threads = 0", "")):
            self.file.write_text(line + "\n")
            started = run(
                PROGRAMS["sender.toml"], f"--config={self.file}", f"--state-dir={self.folder / 'state'}",
                f"--socket={self.folder / 's.sock'}", *([flag] if flag else []),
            )
            self.assertEqual(started.returncode, 2, started.stderr)
            self.assertIn(" config_mistake ", started.stderr)
            self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["mine.toml"])

    def test_a_daemon_does_not_start_with_an_unprintable_id(self) -> None:
        receiver = ("--sender=unix:/run/s.sock", f"--state-dir={self.folder / 'state'}")
        for name, option, more in (
            ("sender.toml", "job-id", ()),
            ("receiver.toml", "job-id", ("--receiver-id=r", *receiver)),
            ("receiver.toml", "receiver-id", ("--job-id=j", *receiver)),
            ("receiver.toml", "group-id", ("--job-id=j", "--receiver-id=r", *receiver)),
        ):
            for check in ((), ("--check-config",)):
                with self.subTest(name=name, option=option, check=check):
                    started = run(PROGRAMS[name], f"--{option}=x\nE forged\x1b[31m", *more, *check)
                    self.assertEqual(started.returncode, 2, started.stderr)
                    shown = started.stderr.replace("\\\\", "\\")  # the log quotes and escapes it
                    self.assertIn(r"x\x0aE forged\x1b[31m", shown)
                    self.assertIn("characters that cannot be printed", started.stderr)
                    self.assertNotIn("\x1b", started.stderr)
                    self.assertNotIn("\nE forged", started.stderr)

    def test_a_sender_given_twice_is_a_mistake(self) -> None:
        flags = ("--job-id=j", "--receiver-id=r", "--sender=unix:/run/a.sock", "--sender=unix:/run/b.sock")
        self.assertEqual(run(PROGRAMS["receiver.toml"], "--check-config", *flags).returncode, 0)
        twice = run(PROGRAMS["receiver.toml"], "--check-config", *flags, "--sender=unix:/run/a.sock")
        self.assertEqual(twice.returncode, 2)
        self.assertEqual(
            twice.stderr,
            "flag --sender: sender: 'unix:/run/a.sock' is given twice, expected each sender once: each trainer rank has one, with its own address\n",
        )

    def test_a_missing_configuration_file_is_a_mistake(self) -> None:
        missing = f"{self.folder}/none"
        for checked in (
            run(PROGRAMS["sender.toml"], "--check-config", f"--config={missing}"),
            run(PROGRAMS["sender.toml"], "--check-config", DWS_CONFIG=missing),
        ):
            self.assertEqual(checked.returncode, 2)
            self.assertIn(missing, checked.stderr)

    def test_an_unknown_variable_is_a_warning_and_not_a_mistake(self) -> None:
        checked = run(PROGRAMS["sender.toml"], "--check-config", DWS_SENDER_SERVICE_PORT="1", DWS_THREAD="1")
        self.assertEqual(checked.returncode, 0)
        self.assertIn("warning: environment DWS_THREAD: no option of this program; did you mean DWS_THREADS?", checked.stderr)


if __name__ == "__main__":
    unittest.main()
