"""nginx and systemd accept what deploy/nginx has, with the modules that Debian's nginx-light has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from tests.integration.regions import nginx

ANALYZE = shutil.which("systemd-analyze")
UNIT = "/lib/systemd/system/nginx.service"


class ConfigTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_nginx_accepts_both_without_a_warning(self) -> None:
        files = nginx.issue(self.folder)
        at = ("127.0.0.1", nginx.free_port())
        origin = nginx.origin(f"{self.folder}/origin", f"{self.folder}/dws", at, files)
        cache = nginx.region(f"{self.folder}/cache", f"{self.folder}/cached", at, at, files)
        for server in (origin, cache):
            said = server.check()
            self.assertIn("test is successful", said)
            self.assertNotIn("[warn]", said)

    def test_a_mistake_is_refused(self) -> None:
        files = nginx.issue(self.folder)
        at = ("127.0.0.1", nginx.free_port())
        wrong = nginx.region(
            f"{self.folder}/cache", f"{self.folder}/cached", at, at, files, changes={"slice             1m": "slices 1m"}
        )
        with self.assertRaises(subprocess.CalledProcessError) as refused:
            wrong.check()
        self.assertIn('unknown directive "slices"', refused.exception.stderr)

    def test_both_may_be_on_one_host(self) -> None:
        names = []
        for site in ("origin", "region"):
            with open(f"deploy/nginx/{site}.conf", encoding="utf-8") as file:
                text = file.read()
            names.append(set(re.findall(r"(?:map .*?|geo) (\$\w+) \{|keys_zone=(\w+)|log_format (\w+)|shared:(\w+)", text)))
        self.assertTrue(all(names))
        self.assertFalse(names[0] & names[1])

    @unittest.skipIf(ANALYZE is None or not os.path.exists(UNIT), "systemd-analyze or nginx's unit is not installed")
    def test_systemd_accepts_the_drop_in(self) -> None:
        assert ANALYZE is not None
        shutil.copy(UNIT, f"{self.folder}/nginx.service")
        os.makedirs(f"{self.folder}/nginx.service.d")
        shutil.copy("deploy/nginx/nginx.service.conf", f"{self.folder}/nginx.service.d/dws.conf")
        done = subprocess.run(
            [ANALYZE, "verify", "--man=no", "./nginx.service"],
            cwd=self.folder, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        said = subprocess.run(
            [ANALYZE, "security", "--offline=true", "--no-pager", "./nginx.service"],
            cwd=self.folder, capture_output=True, text=True, timeout=60, check=False,
        ).stdout  # fmt: skip
        self.assertIn("NoNewPrivileges=", said)


if __name__ == "__main__":
    unittest.main()
