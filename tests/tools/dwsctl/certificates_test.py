"""dwsctl certificates as a program: its files and their modes as openssl reads them, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import unittest

DWSCTL = os.path.abspath("tools/dwsctl/dwsctl")


class CertificatesTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_line(self, line: str, code: int = 0, umask: str = "0") -> str:
        """What it prints to stdout and stderr."""
        ran = subprocess.run(
            ["bash", "-c", f"umask {umask}; {DWSCTL} certificates {line}"],
            cwd=self.folder, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        self.assertEqual(ran.returncode, code, f"{line}: {ran.stdout}{ran.stderr}")
        return ran.stdout + ran.stderr

    def openssl(self, line: str) -> str:
        return subprocess.run(["bash", "-c", f"openssl {line}"], cwd=self.folder, check=True,
                              capture_output=True, text=True, timeout=60).stdout  # fmt: skip

    def content(self) -> dict[str, bytes]:
        found = {}
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    found[os.path.relpath(path, self.folder)] = file.read()
        return found

    def mode(self, path: str) -> int:
        return os.stat(os.path.join(self.folder, path)).st_mode & 0o777

    def authority(self) -> None:
        self.run_line("authority --job-id job --out ca")

    def test_files_have_their_modes_whatever_the_umask(self) -> None:
        self.authority()
        self.run_line("issue --authority ca --role receive --name 'r/0 a' --out tls")
        self.assertEqual(
            sorted(self.content()),
            ["ca/ca.key", "ca/ca.pem"]
            + [f"tls/receive-r%2F0%20a/{name}.pem" for name in ("ca", "cert", "key")],
        )
        self.assertEqual(self.mode("ca/ca.key"), 0o600)
        self.assertEqual(self.mode("tls/receive-r%2F0%20a/key.pem"), 0o640)
        self.assertEqual(self.mode("tls/receive-r%2F0%20a/cert.pem"), 0o644)
        text = self.openssl("x509 -in tls/receive-r%2F0%20a/cert.pem -noout -text")
        for part in ("URI:dws://job/receive/r%2F0%20a", "DNS:localhost", "prime256v1",
                     "ecdsa-with-SHA256", "CA:FALSE"):  # fmt: skip
            self.assertIn(part, text)
        self.openssl("verify -x509_strict -CAfile ca/ca.pem tls/*/cert.pem")

    def test_a_new_folder_has_its_mode_whatever_the_umask(self) -> None:
        for umask in ("0777", "0"):
            with self.subTest(umask):
                self.run_line("authority --job-id job --out ca --force", umask=umask)
                self.run_line("issue --authority ca --role receive --name r --out out/tls --force", umask=umask)
                for folder in ("ca", "out", "out/tls", "out/tls/receive-r"):
                    self.assertEqual(self.mode(folder), 0o750, folder)
                shutil.rmtree(os.path.join(self.folder, "out"))
                shutil.rmtree(os.path.join(self.folder, "ca"))

    def test_no_key_is_written_into_a_folder_that_others_can_write(self) -> None:
        self.authority()
        self.run_line("issue --authority ca --role receive --name r --out tls")
        os.mkdir(os.path.join(self.folder, "new"))
        before = self.content()
        issue = "issue --force --authority ca --role receive --name r --out tls"
        others = "--receive r --receive s"
        for folder, line, modes in (
            ("ca", "authority --job-id job --out ca --force", (0o770, 0o702, 0o1777)),
            ("new", f"job --job-id job --authority new --out other {others}", (0o770, 0o702, 0o1777)),
            ("tls/receive-r", issue, (0o770, 0o702, 0o1777)),
            ("tls", issue, (0o770, 0o702)),
            ("new", f"job --job-id job --authority ca --out new {others}", (0o770, 0o702)),
        ):  # fmt: skip
            for mode in modes:
                with self.subTest(line=line, mode=oct(mode)):
                    os.chmod(os.path.join(self.folder, folder), mode)
                    said = self.run_line(line, code=7)
                    self.assertIn(f"a private key is written to {folder}: others can write to it (mode {mode:04o})",
                                  said)
                    self.assertIn("run `chmod go-w` on it", said)
                    self.assertEqual(self.content(), before)
            os.chmod(os.path.join(self.folder, folder), 0o755)
        # With the sticky bit of /tmp nobody can remove the key's folder.
        os.chmod(os.path.join(self.folder, "new"), 0o1777)
        self.run_line("issue --authority ca --role receive --name r --out new")
        self.assertEqual(self.mode("new/receive-r"), 0o750)

    def test_no_key_is_written_into_a_folder_that_another_user_owns(self) -> None:
        self.authority()
        os.mkdir(os.path.join(self.folder, "tls"))
        try:
            for folder in ("tls", "ca"):
                os.chown(os.path.join(self.folder, folder), 12345, -1)
        except OSError as error:
            self.skipTest(f"only root gives folders away: {error}")
        before = self.content()
        for line, folder in (("issue --authority ca --role receive --name r --out tls", "tls"),
                             ("authority --job-id job --out ca --force", "ca")):  # fmt: skip
            said = self.run_line(line, code=7)
            self.assertIn(f"a private key is written to {folder}: it is owned by uid 12345, expected uid 0", said)
            self.assertEqual(self.content(), before)

    def test_a_link_to_a_certificate_is_not_renewed(self) -> None:
        self.authority()
        self.run_line("issue --authority ca --role receive --name r --days 5 --out tls")
        link = os.path.join(self.folder, "cert.pem")
        os.symlink("tls/receive-r/cert.pem", link)
        before = self.content()
        said = self.run_line("renew --authority ca cert.pem", code=7)
        self.assertIn("cert.pem is a symbolic link to tls/receive-r/cert.pem, expected the certificate file itself", said)
        self.assertIn(f"give the path {self.folder}/tls/receive-r/cert.pem", said)
        self.assertEqual(self.content(), before)
        self.assertTrue(os.path.islink(link))

    def test_nothing_is_overwritten_without_force(self) -> None:
        job = "job --job-id job --authority ca --out tls --publish 0-1@t.example --operate ann"
        self.assertEqual(self.run_line(job).count("issued"), 3)
        before = self.content()
        for line in (job, "authority --job-id job --out ca",
                     "issue --authority ca --role publish --name 1 --out tls"):  # fmt: skip
            self.assertIn("exists already", self.run_line(line, code=7))
            self.assertEqual(self.content(), before)
        # One of several files exists, so none is made.
        more = job.replace("--operate ann", "--operate bob")
        self.assertIn("publish-0", self.run_line(more, code=7))
        self.assertEqual(self.content(), before)
        self.run_line("issue --authority ca --role publish --name 1 --out tls --force")
        changed = {path for path, content in self.content().items() if content != before[path]}
        self.assertEqual(changed, {"tls/publish-1/cert.pem", "tls/publish-1/key.pem"})
        self.openssl("verify -CAfile ca/ca.pem tls/publish-1/cert.pem")

    def test_mistakes_are_named_and_write_nothing(self) -> None:
        self.authority()
        before = self.content()
        issue = "issue --authority ca --out tls --role"
        for line, code, words in (
            ("authority --job-id job --out x --days 7301", 2, "7301"),
            ("authority --job-id '' --out x", 2, "a part is empty"),
            (f"{issue} boss --name a", 2, "'boss' is not a role: expected publish, receive or operate"),
            (f"{issue} publish --name first", 2, "'first' is not a trainer rank: expected a number from 0 to 4095"),
            (f"{issue} publish --name 99999", 2, "'99999' is not a trainer rank: expected a number from 0 to 4095"),
            (f"{issue} publish --name 4096", 2, "'4096' is not a trainer rank"),
            (f"{issue} publish --name 007", 2, "'007' is not a trainer rank"),
            (f"{issue} receive --name= --out tls", 2, "--name= has no value: expected one after the '='"),
            (f"{issue} receive --name r --host= --days 5", 2, "--host= has no value"),
            (f"{issue} receive --name r --host 'a b'", 2, "'a b' is not a host"),
            (f"{issue} receive --name r --days 0", 2, "0"),
            ("issue --authority nowhere --out tls --role receive --name r", 7,
             "nowhere has no authority (ca.pem): make one with"),
            ("job --job-id other --authority ca --out tls --receive r", 2,
             "signs for job 'job', not for job 'other'"),
            ("job --job-id job --authority ca --out tls", 2, "nothing to issue"),
            ("job --job-id job --authority ca --out tls --publish 3-1", 2, "'3-1' is not a trainer rank"),
            ("job --job-id job --authority new --out tls --publish 0-3 --publish 2@h", 2,
             "--publish names '2' twice, expected one certificate for each"),
            ("job --job-id job --authority new --out tls --receive r --operate r --receive r@h --force", 2,
             "--receive names 'r' twice"),
            ("job --job-id job --authority ca --out tls --receive r@x..y", 2, "'x..y' is not a host"),
            ("renew --authority ca ca/ca.pem --within 825", 0, "not due"),
            ("renew --authority ca nowhere.pem", 7, "nowhere.pem: No such file"),
            ("renew --authority ca ca/ca.key", 7, "expected a certificate in PEM"),
        ):  # fmt: skip
            with self.subTest(line):
                self.assertIn(words, self.run_line(line, code))
                self.assertEqual(self.content(), before)

    def test_renew_replaces_only_certificates_that_expire_soon(self) -> None:
        self.authority()
        self.run_line("issue --authority ca --role receive --name short --days 10 --out tls")
        self.run_line("issue --authority ca --role receive --name long --days 90 --out tls")
        self.run_line("authority --job-id job --out other")
        self.run_line("issue --authority other --role receive --name alien --days 5 --out tls")
        before = self.content()
        said = self.run_line("renew --authority ca --json tls/*/cert.pem", code=7)
        self.assertIn("tls/receive-alien/cert.pem: the certificate is not signed by", said)
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        self.assertEqual(
            {line["path"]: line["done"] for line in lines},
            {"tls/receive-long/cert.pem": "not due", "tls/receive-short/cert.pem": "renewed"},
        )
        changed = {path for path, content in self.content().items() if content != before[path]}
        self.assertEqual(changed, {"tls/receive-short/cert.pem"})
        self.openssl("verify -x509_strict -CAfile ca/ca.pem tls/receive-short/cert.pem")
        # The key still belongs to the certificate.
        cert = self.openssl("x509 -in tls/receive-short/cert.pem -noout -pubkey")
        self.assertEqual(cert, self.openssl("pkey -in tls/receive-short/key.pem -pubout"))

    def test_a_folder_that_cannot_be_made_changes_nothing(self) -> None:
        self.authority()
        os.mkdir(os.path.join(self.folder, "tls"))
        with open(os.path.join(self.folder, "tls", "receive-r"), "w") as file:
            file.write("a file, and no folder")
        before = self.content()
        said = self.run_line("issue --authority ca --role receive --name r --out tls", code=7)
        self.assertIn("tls/receive-r", said)
        self.assertEqual(self.content(), before)


if __name__ == "__main__":
    unittest.main()
