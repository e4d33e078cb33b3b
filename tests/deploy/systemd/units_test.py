"""systemd accepts the units and rates them as hardened, and their settings fit the daemons."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

UNITS = Path("deploy/systemd")
PROGRAMS = {
    "dws-sender@.service": "sender_daemon/dws-sender",
    "dws-receiver@.service": "receiver_daemon/dws-receiver",
}
EXPOSURE_MAX = 3.0
ANALYZE = shutil.which("systemd-analyze")


def seconds(text: str) -> int:
    return int(re.fullmatch(r"(\d+)s?", text)[1])  # type: ignore[index]


class UnitsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name, program in PROGRAMS.items():
            text = (UNITS / name).read_text()
            installed = f"/usr/bin/{os.path.basename(program)}"
            self.assertIn(f"ExecStart={installed} ", text)
            (self.folder / name).write_text(text.replace(installed, os.path.abspath(program)))

    def values(self, unit: str, key: str) -> list[str]:
        return re.findall(rf"^{key}=(.*)$", (UNITS / unit).read_text(), re.M)

    def analyze(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        assert ANALYZE is not None
        return subprocess.run(
            [ANALYZE, *arguments], cwd=self.folder, text=True, capture_output=True, timeout=60
        )

    @unittest.skipIf(ANALYZE is None, "systemd-analyze is not installed")
    def test_systemd_accepts_the_units(self) -> None:
        for name in PROGRAMS:
            checked = self.analyze("verify", "--man=no", f"./{name}")
            self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""), name)

    def test_units_run_their_daemon_and_the_shell_alone(self) -> None:
        # Other programs may be missing: /bin/kill is of a package that no small installation has.
        for name, program in PROGRAMS.items():
            text = (UNITS / name).read_text()
            run = set(re.findall(r"^Exec\w+=[-@:+!]*(\S+)", text, re.M))
            self.assertEqual(run, {f"/usr/bin/{os.path.basename(program)}", "/bin/sh"})

    @unittest.skipIf(ANALYZE is None, "systemd-analyze is not installed")
    def test_a_mistake_in_a_unit_is_detected(self) -> None:
        path = self.folder / "dws-sender@.service"
        path.write_text(path.read_text().replace("WatchdogSec=", "WatchdogSecs="))
        checked = self.analyze("verify", "--man=no", "./dws-sender@.service")
        self.assertIn("WatchdogSecs", checked.stderr)

    @unittest.skipIf(ANALYZE is None, "systemd-analyze is not installed")
    def test_the_units_are_hardened(self) -> None:
        for name in PROGRAMS:
            said = self.analyze("security", "--offline=true", "--no-pager", f"./{name}").stdout
            level = re.search(r"Overall exposure level for .*: ([0-9.]+) ", said)
            self.assertIsNotNone(level, said[-500:])
            assert level is not None
            self.assertLessEqual(float(level[1]), EXPOSURE_MAX, name)

    def test_a_core_dump_does_not_leak_and_a_stop_ends_no_command_behind_the_daemon(self) -> None:
        for name in PROGRAMS:
            self.assertEqual(self.values(name, "LimitCORE"), ["0"])
            self.assertEqual(self.values(name, "KillMode"), ["mixed"])

    def test_devices_are_not_hidden_and_memory_may_be_locked(self) -> None:
        for name in PROGRAMS:
            self.assertEqual(self.values(name, "DeviceAllow"), ["char-nvidia* rw"])
            self.assertEqual(self.values(name, "PrivateDevices"), [])
            self.assertEqual(self.values(name, "LimitMEMLOCK"), ["infinity"])
            # In a user namespace every peer would appear as user nobody.
            self.assertEqual(self.values(name, "PrivateUsers"), ["no"])

    def test_a_daemon_ends_before_systemd_kills_it(self) -> None:
        for name, program in PROGRAMS.items():
            shown = subprocess.run([program, "--help"], text=True, capture_output=True, timeout=60).stdout
            default = re.search(r"--stop-timeout SECONDS\S*(?: in \[[^\]]*\])?=(\d+)", shown)
            self.assertIsNotNone(default, shown)
            assert default is not None
            self.assertGreater(seconds(self.values(name, "TimeoutStopSec")[0]), int(default[1]) + 10)

    def test_every_variable_of_the_units_is_an_option(self) -> None:
        for name, program in PROGRAMS.items():
            shown = subprocess.run([program, "--help"], text=True, capture_output=True, timeout=60).stdout
            variables = [value.split("=")[0] for value in self.values(name, "Environment")]
            self.assertTrue(variables)
            for variable in variables:
                flag = "--" + variable.removeprefix("DWS_").lower().replace("_", "-")
                self.assertIn(f" {flag} ", shown)

    def test_a_daemon_is_not_restarted_for_a_wrong_configuration_or_a_damaged_ledger(self) -> None:
        for name, program in PROGRAMS.items():
            code = subprocess.run([program, "--no-such-flag"], capture_output=True, timeout=60).returncode
            damaged = self.status_with_a_damaged_ledger(name, program)
            self.assertEqual(self.values(name, "RestartPreventExitStatus"), [f"{code} {damaged}"])

    def status_with_a_damaged_ledger(self, name: str, program: str) -> int:
        with tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp") as folder:
            for kind in ("sender", "receiver"):
                Path(folder, f"{kind}.ledger").write_text("this is no ledger")
            flags = ["--job-id=job", f"--state-dir={folder}", f"--socket={folder}/s"]
            if "receiver" in name:
                flags += ["--receiver-id=r", f"--sender=unix:{folder}/sender.sock"]
            done = subprocess.run([program, *flags], text=True, capture_output=True, timeout=60)
            self.assertIn("--quarantine-damaged-ledger", done.stderr)
            return done.returncode


class SnippetsTest(unittest.TestCase):
    @unittest.skipIf(os.geteuid() != 0, "only root gives folders to others")
    @unittest.skipIf(shutil.which("systemd-tmpfiles") is None, "systemd-tmpfiles is not installed")
    def test_folders_are_made(self) -> None:
        with tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp") as root:
            Path(root, "etc").mkdir()
            Path(root, "etc/passwd").write_text("dws:x:977:977::/:/bin/false\n")
            Path(root, "etc/group").write_text("dws:x:977:\n")
            subprocess.run(
                ["systemd-tmpfiles", f"--root={root}", "--create", os.path.abspath(UNITS / "dws.tmpfiles.conf")],
                check=True, capture_output=True, timeout=60,
            )
            self.assertEqual(Path(root, "run/dws").stat().st_mode & 0o7777, 0o755)
            self.assertEqual(Path(root, "var/lib/dws").stat().st_mode & 0o7777, 0o750)

    @unittest.skipIf(shutil.which("systemd-sysusers") is None, "systemd-sysusers is not installed")
    def test_the_user_is_made(self) -> None:
        with tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp") as root:
            Path(root, "etc").mkdir()
            subprocess.run(
                ["systemd-sysusers", f"--root={root}", os.path.abspath(UNITS / "dws.sysusers.conf")],
                check=True, capture_output=True, timeout=60,
            )
            self.assertRegex(Path(root, "etc/passwd").read_text(), r"(?m)^dws:x:\d+:\d+:.*:/var/lib/dws:")
            self.assertRegex(Path(root, "etc/group").read_text(), r"(?m)^dws:x:\d+:")


if __name__ == "__main__":
    unittest.main()
