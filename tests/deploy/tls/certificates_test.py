"""deploy/tls/certificates.sh: its files and their modes, what openssl reads in them, and what it refuses.

tests/integration/security_doc_test.py runs daemons with what it makes."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = os.path.abspath("deploy/tls/certificates.sh")
_CONFIG = """
[ca]
default_ca = test
[test]
database = {work}/index
new_certs_dir = {work}
rand_serial = yes
default_md = sha256
policy = anything
[anything]
commonName = supplied
"""


class CertificatesTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_line(self, line: str, code: int = 0, umask: str = "0") -> str:
        """What it prints to stdout and stderr."""
        ran = subprocess.run(
            ["bash", "-c", f"umask {umask}; {SCRIPT} {line}"],
            cwd=self.folder, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        self.assertEqual(ran.returncode, code, f"{line}: {ran.stdout}{ran.stderr}")
        return ran.stdout + ran.stderr

    def shell(self, line: str) -> str:
        return subprocess.run(["bash", "-euo", "pipefail", "-c", line], cwd=self.folder, check=True,
                              capture_output=True, text=True, timeout=60).stdout  # fmt: skip

    def openssl(self, line: str) -> str:
        return self.shell(f"openssl {line}")

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

    def names(self, cert: str) -> str:
        return self.openssl(f"x509 -in {cert} -noout -ext subjectAltName").splitlines()[1].strip()

    def fails(self, line: str) -> str:
        ran = subprocess.run(["bash", "-c", f"openssl {line}"], cwd=self.folder, capture_output=True,
                             text=True, timeout=60)  # fmt: skip
        self.assertNotEqual(ran.returncode, 0, line)
        return ran.stdout + ran.stderr

    def sign_again(self, cert: str, ends: int = 5, names: str = "") -> None:
        """The authority signs another certificate for the same key, which ends in so many days."""
        begin, end = (f"{datetime.datetime.utcnow() + datetime.timedelta(days=days):%Y%m%d%H%M%SZ}"
                      for days in (-9, ends))  # fmt: skip
        key = os.path.join(os.path.dirname(cert), "key.pem")
        alternative = names or self.names(cert).replace("IP Address", "IP")
        with tempfile.TemporaryDirectory() as work:
            with open(os.path.join(work, "config"), "w") as config:
                config.write(_CONFIG.format(work=work))
            self.shell(
                f"touch {work}/index; openssl req -new -key {key} -subj /CN=again -out {work}/request;"
                f" openssl ca -batch -notext -config {work}/config -cert ca/ca.pem -keyfile ca/ca.key"
                f" -in {work}/request -out {cert} -startdate {begin} -enddate {end}"
                f" -extfile <(echo 'subjectAltName={alternative}')"
            )

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

    def test_certificates_have_the_narrowest_usage(self) -> None:
        self.run_line("job --job-id job --authority ca --out tls --receive r --operate ann --publish 4095")
        authority = self.openssl("x509 -in ca/ca.pem -noout -text")
        for part in ("CA:TRUE, pathlen:0", "Certificate Sign, CRL Sign\n", "URI:dws-job:job\n", "prime256v1",
                     "ecdsa-with-SHA256"):  # fmt: skip
            self.assertIn(part, authority)
        for name, usage in (("receive-r", "TLS Web Server Authentication, TLS Web Client Authentication\n"),
                            ("publish-4095", "TLS Web Server Authentication, TLS Web Client Authentication\n"),
                            ("operate-ann", "Extended Key Usage: \n                TLS Web Client Authentication\n")):
            text = self.openssl(f"x509 -in tls/{name}/cert.pem -noout -text")
            self.assertIn(usage, text)
            self.assertRegex(text, r"X509v3 Key Usage: critical\n +Digital Signature\n")

    def test_a_certificate_is_valid_for_its_hosts_and_loopback_and_no_other_host(self) -> None:
        self.run_line("job --job-id job --authority ca --out tls --host third.example --receive"
                      " 'r@*.rack.example,10.0.0.5,2001:db8::7,::1'")  # fmt: skip
        cert = "tls/receive-r/cert.pem"
        for check, fits in (("host engine0.rack.example", True), ("host third.example", True),
                            ("host localhost", True), ("host engine0.another.example", False),
                            ("ip 10.0.0.5", True), ("ip 2001:db8::7", True), ("ip 127.0.0.1", True),
                            ("ip ::1", True), ("ip 10.0.0.6", False)):  # fmt: skip
            said = self.openssl(f"x509 -in {cert} -noout -check{check}")
            self.assertEqual("does match" in said, fits, said)
        self.assertEqual(self.names(cert).count("0:0:0:0:0:0:0:1"), 1)

    def test_a_new_certificate_is_valid_from_an_hour_before_to_its_last_day(self) -> None:
        self.authority()
        self.run_line("issue --authority ca --role receive --name r --days 3 --out tls")
        for cert, days in (("tls/receive-r/cert.pem", 3), ("ca/ca.pem", 3650)):
            dates = dict(re.findall(r"not(\w+)=(.*)", self.openssl(f"x509 -in {cert} -noout -dates")))
            begin, end = (datetime.datetime.strptime(dates[name], "%b %d %H:%M:%S %Y GMT")
                          for name in ("Before", "After"))  # fmt: skip
            self.assertEqual(end - begin, datetime.timedelta(days=days, hours=1))
            self.assertLess(abs(datetime.datetime.utcnow() - datetime.timedelta(hours=1) - begin),
                            datetime.timedelta(minutes=2))  # fmt: skip

    def test_hosts_are_dns_names_and_addresses(self) -> None:
        self.authority()
        hosts = ("localhost", "engine-0.example.net", "*.example", "a_b.example", "x1.2y", "10.0.0.5", "::", "1::",
                 "2001:db8::1", "1:2:3:4:5:6:7:8", "1::8", "::1.2.3.4", "fe80:0:0:0:0:0:255.0.0.1")
        flags = " ".join(f"--host '{host}'" for host in hosts)
        self.run_line(f"issue --authority ca --role receive --name r {flags} --out tls")
        self.assertEqual(self.names("tls/receive-r/cert.pem").count(", "), len(hosts) + 2)
        before = self.content()
        for host in ("a b", "a..b", "a.", "-a", "a-.b", "*", "a.*.b", "10.0.0.256", "10.0.0", "010.0.0.1", "engine0:7700",
                     "http://x", "a\nb", "a,b", "a" * 64, "a." * 126 + "aa", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9",
                     "1::2::3", ":::", ":1", "1:", "12345::", "::g", "1:2:3:4:5:6:7::8", "::1.2.3", "[::1]"):  # fmt: skip
            with self.subTest(host):
                said = self.run_line(f"issue --authority ca --role receive --name s --host '{host}' --out tls", code=2)
                self.assertIn(f"'{host[:253]}' is not a host: expected a DNS name or an IP address", said)
        self.assertEqual(self.content(), before)

    def test_help_fits_and_needs_no_openssl(self) -> None:
        for line in ("--help", "-h", "issue --help"):
            said = self.run_line(line).splitlines()
            self.assertIn("Usage: dws-certificates COMMAND [OPTION...] [FILE...]", said)
            self.assertLessEqual(max(map(len, said)), 112)
        ran = subprocess.run(["/bin/bash", SCRIPT, "renew"], env={"PATH": self.folder}, capture_output=True, text=True,
                              timeout=60)  # fmt: skip
        self.assertEqual(ran.returncode, 1)
        self.assertIn("the program openssl is missing: install it (Debian's package openssl)", ran.stderr)

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
                    said = self.run_line(line, code=1)
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
            said = self.run_line(line, code=1)
            self.assertIn(f"a private key is written to {folder}: it is owned by uid 12345, expected uid 0", said)
            self.assertEqual(self.content(), before)

    def test_a_link_to_a_certificate_is_not_renewed(self) -> None:
        self.authority()
        self.run_line("issue --authority ca --role receive --name r --days 5 --out tls")
        link = os.path.join(self.folder, "cert.pem")
        os.symlink("tls/receive-r/cert.pem", link)
        before = self.content()
        said = self.run_line("renew --authority ca cert.pem", code=1)
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
            self.assertIn("exists already", self.run_line(line, code=1))
            self.assertEqual(self.content(), before)
        # One of several files exists, so none is made.
        more = job.replace("--operate ann", "--operate bob")
        self.assertIn("publish-0", self.run_line(more, code=1))
        self.assertEqual(self.content(), before)
        self.run_line("issue --authority ca --role publish --name 1 --out tls --force")
        changed = {path for path, content in self.content().items() if content != before[path]}
        self.assertEqual(changed, {"tls/publish-1/cert.pem", "tls/publish-1/key.pem"})
        self.openssl("verify -CAfile ca/ca.pem tls/publish-1/cert.pem")

    def test_a_sender_that_trains_has_both_roles(self) -> None:
        job = "job --job-id train --authority ca --out tls --train 0-1@t.example"
        self.assertEqual(self.run_line(job).count("issued"), 2)
        roles = "URI:dws://train/publish/1, URI:dws://train/train/1, DNS:t.example"
        self.assertIn(roles, self.names("tls/train-1/cert.pem"))
        self.assertIn("renewed", self.run_line("renew --authority ca --within 91 tls/train-1/cert.pem"))
        self.assertIn(roles, self.names("tls/train-1/cert.pem"))
        self.run_line("issue --authority ca --role train --name 2 --out tls")
        self.assertIn("URI:dws://train/publish/2, URI:dws://train/train/2", self.names("tls/train-2/cert.pem"))
        both = self.run_line("job --job-id train --authority ca --out more --train 0 --publish 0", code=2)
        self.assertIn("names '0' twice", both)

    def test_mistakes_are_named_and_write_nothing(self) -> None:
        self.authority()
        before = self.content()
        issue = "issue --authority ca --out tls --role"
        for line, code, words in (
            ("", 2, "expected job, authority, issue or renew"),
            ("isue --authority ca", 2, "'isue' is not a command: expected job, authority, issue or renew"),
            ("authority --job-id job --out x --days 7301", 2, "--days is '7301', expected 1 to 7300 days"),
            ("authority --job-id '' --out x", 2, "--job-id is empty: expected 1 to 256 bytes"),
            (f"authority --job-id {'j' * 257} --out x", 2, "--job-id has 257 bytes, expected at most 256"),
            ("authority --job-id $'a\\nb' --out x", 2, "--job-id has a control character"),
            ("authority --job-id job", 2, "--out is missing: authority needs it"),
            ("authority --job-id job --out", 2, "--out has no value: expected one behind it"),
            ("authority --job-id job --out x --out y", 2, "--out is given twice, expected once"),
            ("authority --job-id job --out x --role receive", 2, "authority has no option '--role'"),
            ("authority --job-id job --out x --force=no", 2, "--force takes no value"),
            ("authority job --out x", 2, "'job' is not expected here"),
            (f"{issue} boss --name a", 2, "'boss' is not a role: expected publish, train, receive or operate"),
            (f"{issue} publish --name first", 2, "'first' is not a trainer rank: expected a number from 0 to 4095"),
            (f"{issue} publish --name 99999", 2, "'99999' is not a trainer rank: expected a number from 0 to 4095"),
            (f"{issue} publish --name 4096", 2, "'4096' is not a trainer rank"),
            (f"{issue} publish --name 007", 2, "'007' is not a trainer rank"),
            (f"{issue} receive --name= --out tls", 2, "--name= has no value: expected one after the '='"),
            (f"{issue} receive --name r --host= --days 5", 2, "--host= has no value"),
            (f"{issue} receive --name r --host 'a b'", 2, "'a b' is not a host"),
            (f"{issue} receive --name r" + " --host a.example" * 65, 2, "65 hosts, expected at most 64"),
            (f"{issue} receive --name r --days 0", 2, "--days is '0', expected 1 to 825 days"),
            (f"{issue} receive --name r --days 826", 2, "--days is '826', expected 1 to 825 days"),
            ("issue --authority nowhere --out tls --role receive --name r", 1,
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
            ("job --job-id job --authority ca --out tls --receive r@", 2, "'' is not a host"),
            ("renew --authority ca ca/ca.pem --within 825", 0, "not due"),
            ("renew --authority ca", 2, "nothing to renew"),
            ("renew --authority ca --within 826 ca/ca.pem", 2, "--within is '826', expected 0 to 825 days"),
            ("renew --authority ca nowhere.pem", 1, "nowhere.pem: No such file"),
            ("renew --authority ca ca/ca.key", 1, "expected a certificate in PEM"),
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
        names = self.names("tls/receive-short/cert.pem")
        said = self.run_line("renew --authority ca tls/*/cert.pem", code=1)
        self.assertIn("tls/receive-alien/cert.pem: the certificate is not signed by the authority in ca", said)
        self.assertIn("tls/receive-long/cert.pem: not due: dws://job/receive/long, expires in ", said)
        self.assertIn("tls/receive-short/cert.pem: renewed: dws://job/receive/short, expires in 90 days", said)
        changed = {path for path, content in self.content().items() if content != before[path]}
        self.assertEqual(changed, {"tls/receive-short/cert.pem"})
        self.openssl("verify -x509_strict -CAfile ca/ca.pem tls/receive-short/cert.pem")
        # The key still belongs to the certificate.
        cert = self.openssl("x509 -in tls/receive-short/cert.pem -noout -pubkey")
        self.assertEqual(cert, self.openssl("pkey -in tls/receive-short/key.pem -pubout"))
        self.assertEqual(self.names("tls/receive-short/cert.pem"), names)
        self.assertEqual(self.mode("tls/receive-short/cert.pem"), 0o644)

    def test_an_expired_certificate_is_renewed_without_its_key(self) -> None:
        self.authority()
        self.run_line("issue --authority ca --role operate --name ann --host 10.0.0.5 --out tls")
        cert = "tls/operate-ann/cert.pem"
        key = self.openssl(f"x509 -in {cert} -noout -pubkey")
        self.sign_again(cert, ends=-1)
        self.assertIn("expired", self.fails("verify -CAfile ca/ca.pem " + cert))
        os.remove(os.path.join(self.folder, "tls/operate-ann/key.pem"))
        self.assertIn("renewed", self.run_line(f"renew --authority ca {cert}"))
        self.openssl(f"verify -x509_strict -purpose sslclient -CAfile ca/ca.pem {cert}")
        self.assertEqual(self.openssl(f"x509 -in {cert} -noout -pubkey"), key)
        self.assertIn("IP Address:10.0.0.5", self.names(cert))
        self.assertIn("error 26", self.fails(f"verify -purpose sslserver -CAfile ca/ca.pem {cert}"))

    def test_a_certificate_without_an_identity_of_the_job_is_not_renewed(self) -> None:
        self.authority()
        self.run_line("issue --authority ca --role operate --name ann --days 5 --out tls")
        cert = "tls/operate-ann/cert.pem"
        for names, words in (("DNS:a.example", "the certificate has no dws:// identity"),
                             ("URI:dws://other/operate/ann", "is not an identity of job 'job'"),
                             ("URI:dws://job/boss/ann", "is not an identity of job 'job'"),
                             ("URI:dws://job/operate/ann,DNS:a b", "'a b' is not a host")):  # fmt: skip
            with self.subTest(names):
                self.sign_again(cert, names=names)
                before = self.content()
                self.assertIn(words, self.run_line(f"renew --authority ca {cert}", code=1))
                self.assertEqual(self.content(), before)

    def test_an_authority_that_cannot_sign_is_refused_by_name(self) -> None:
        self.authority()
        self.run_line("authority --job-id job --out other")
        self.run_line("authority --job-id job --out short --days 3")
        self.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=ca -keyout stranger.key"
                     " -out stranger.pem")  # fmt: skip
        self.openssl("pkey -in other/ca.key -aes256 -passout pass:secret -out locked.key")
        for cert, key, words in (("ca/ca.pem", "other/ca.key", "mixed/ca.key is not the key of mixed/ca.pem"),
                                 ("stranger.pem", "stranger.key", "mixed/ca.pem names no job"),
                                 ("other/ca.pem", "locked.key", "expected a private key in PEM without a passphrase"),
                                 ("other/ca.pem", "other/ca.pem", "expected a private key in PEM"),
                                 ("ca/ca.key", "ca/ca.key", "mixed/ca.pem: expected a certificate in PEM"),
                                 ("short/ca.pem", "short/ca.key", "90 days would outlive its authority")):  # fmt: skip
            with self.subTest(words):
                shutil.rmtree(os.path.join(self.folder, "mixed"), ignore_errors=True)
                os.mkdir(os.path.join(self.folder, "mixed"))
                for source, name in ((cert, "ca.pem"), (key, "ca.key")):
                    shutil.copy(os.path.join(self.folder, source), os.path.join(self.folder, "mixed", name))
                self.assertIn(words, self.run_line("issue --authority mixed --role operate --name a --out tls", 1))
                self.assertFalse(os.path.exists(os.path.join(self.folder, "tls")))
        # A renewal that is not due needs no more of its authority's life.
        self.run_line("issue --authority short --role operate --name a --days 2 --out tls")
        self.assertIn("not due", self.run_line("renew --authority short --within 1 tls/*/cert.pem"))
        self.assertIn("would outlive", self.run_line("renew --authority short tls/*/cert.pem", 1))

    def test_a_folder_that_cannot_be_made_changes_nothing(self) -> None:
        self.authority()
        os.mkdir(os.path.join(self.folder, "tls"))
        with open(os.path.join(self.folder, "tls", "receive-r"), "w") as file:
            file.write("a file, and no folder")
        before = self.content()
        said = self.run_line("issue --authority ca --role receive --name r --out tls", code=1)
        self.assertIn("tls/receive-r", said)
        self.assertEqual(self.content(), before)


if __name__ == "__main__":
    unittest.main()
