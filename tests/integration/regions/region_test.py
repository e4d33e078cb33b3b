"""nginx serves a shared directory, another nginx keeps a region's copy of it, as deploy/nginx configures them."""

from __future__ import annotations

import os
import shutil
import time
import unittest
from typing import Mapping, Optional

from tests.integration.certificates import Authority
from tests.integration.integration_case import eventually
from tests.integration.regions import nginx
from tests.integration.regions.region_case import RegionCase

LARGE = {"large": (6000, 1000), "small": (33,)}
TRUSTED = {"# 10.20.0.0/16   1;": "127.0.0.0/8 1;"}
SLOW = {"max_ranges            1;": "max_ranges 1; limit_rate 2m;"}
# A file system on which not even one slice has room.
FULL_DISK = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=700k none "$0" && exec "$@"')


class RegionTest(RegionCase):
    def setUp(self) -> None:
        super().setUp()
        self.authority = Authority(self.cluster.folder, "authority")
        self.certificates = self.authority.issue("server", "dws://test/receive/cache")
        self.origin_at = ("127.0.0.1", nginx.free_port())
        self.origin = nginx.origin(f"{self.cluster.folder}/origin", self.root, self.origin_at, self.certificates)
        self.addCleanup(self.origin.stop)
        self.origin.start(self.origin_at)
        self.cache_at = ("127.0.0.1", nginx.free_port())
        self.cached = f"{self.cluster.folder}/cached"
        self.ca = f"--shared-ca={self.certificates.ca}"

    def start_cache(self, changes: Optional[Mapping[str, str]] = None, wrap: tuple[str, ...] = ()) -> str:
        """Returns its URL."""
        if wrap:
            os.makedirs(self.cached)
        self.cache = nginx.region(
            f"{self.cluster.folder}/cache", self.cached, self.cache_at, self.origin_at, self.certificates,
            changes={**TRUSTED, **(changes or {})},
        )  # fmt: skip
        self.addCleanup(self.cache.stop)
        self.cache.start(self.cache_at, wrap)
        return f"https://localhost:{self.cache_at[1]}/dws"

    def size_of(self, name: str) -> int:
        return sum(os.path.getsize(path) for path in self.paths_of(name))

    def paths_of(self, name: str) -> list[str]:
        return [os.path.join(at, name) for at, _, names in os.walk(self.root) if name in names]

    def test_several_receivers_take_one_copy_from_the_origin(self) -> None:
        url = self.start_cache()
        self.begin(shapes=LARGE)
        joined = [self.joins(f"receiver-{i}", f"--shared-dir={url}", self.ca) for i in range(3)]
        for engine, live in joined:
            self.assert_at(engine, live)
        for _ in range(3):
            self.publish(0.2)
            for engine, live in joined:
                self.assert_at(engine, live)
        for name in ("delta", "full"):
            with self.subTest(name):
                size = self.size_of(name)
                self.assertGreater(size, 1 << 20)
                self.assertLessEqual(self.origin.bytes_sent(f"GET .*/{name}$"), 1.05 * size)
                self.assertGreaterEqual(self.cache.bytes_sent(f"GET .*/{name}$"), 2.5 * size)
        # Lists and manifests: once a second, not once for each look of each receiver.
        asked = [sum("/ HTTP" in line for line in server.requests()) for server in (self.origin, self.cache)]
        self.assertLess(2 * asked[0], asked[1])

    def test_a_cache_that_is_killed_costs_time(self) -> None:
        url = self.start_cache(SLOW)
        self.begin(shapes=LARGE)
        alone, live = self.joins("alone", f"--shared-dir={url}", self.ca)
        beside, its = self.joins("beside", f"--shared-dir={url}", self.ca, senders=True)
        listed = f"--shared-dir={url},{self.root}"
        third, thirds = self.joins("listed", listed, self.ca)
        eventually(lambda: self.cache.bytes_sent("/full$") > 0, lambda: str(self.cache.requests()))
        self.cache.kill()
        self.assert_at(beside, its)
        self.assert_at(third, thirds)
        self.assertIsNone(alone.grant)
        self.cache.start(self.cache_at)
        self.assert_at(alone, live)
        self.publish(0.2)
        for engine, weights in ((alone, live), (beside, its), (third, thirds)):
            self.assert_at(engine, weights)

    def test_a_cache_whose_disk_is_full_costs_time(self) -> None:
        url = self.start_cache(wrap=(*FULL_DISK, self.cached))
        self.begin(shapes=LARGE)
        engine, live = self.joins("engine", f"--shared-dir={url},{self.root}", self.ca)
        self.assert_at(engine, live)
        self.assertRegex(self.cache.errors(), "No space left|has written only")
        self.publish(0.2)
        self.assert_at(engine, live)

    def test_a_poisoned_cache_is_read_past_and_put_right(self) -> None:
        url = self.start_cache()
        self.begin(shapes=LARGE)
        first, live = self.joins("first", f"--shared-dir={url}", self.ca)
        self.assert_at(first, live)
        poisoned = 0
        for at, _, names in os.walk(self.cached):
            for name in names:
                path = os.path.join(at, name)
                size = os.path.getsize(path)
                if size < 100_000:
                    continue
                poisoned += 1
                with open(path, "r+b") as file:
                    file.seek(size // 2)
                    was = file.read(1)
                    file.seek(size // 2)
                    file.write(bytes([was[0] ^ 1]))
        self.assertGreater(poisoned, 3)
        before = self.origin.bytes_sent("/full$")
        second, its = self.joins("second", f"--shared-dir={url}", self.ca)
        self.assert_at(second, its)
        right = self.origin.bytes_sent("/full$")
        self.assertGreater(right, before)
        third, thirds = self.joins("third", f"--shared-dir={url}", self.ca)
        self.assert_at(third, thirds)
        self.assertEqual(self.origin.bytes_sent("/full$"), right)
        for receiver in self.cluster.receivers:
            self.assertEqual(receiver.logged("shared_dir_damaged"), 0)

    def test_a_list_that_is_stale_for_seconds_delays_only(self) -> None:
        url = self.start_cache({"Expires Set-Cookie": "Cache-Control Expires Set-Cookie", "200 1s": "200 4s"})
        self.begin()
        engine, live = self.joins("engine", f"--shared-dir={url}", self.ca)
        self.assert_at(engine, live)
        for _ in range(2):
            self.publish()
            self.assert_at(engine, live)
        beside, its = self.joins("beside", f"--shared-dir={url}", self.ca, senders=True)
        self.publish(0.3)
        self.assert_at(beside, its)

    def test_who_shows_no_certificate_reads_nothing(self) -> None:
        self.begin()
        place = f"--shared-dir=https://localhost:{self.origin_at[1]}/dws"
        # Nor does a receiver that does not trust the server's authority.
        for name, flags, words in (("stranger", (self.ca,), "status 403; look at"), ("other", (), "is not accepted")):
            with self.subTest(name):
                receiver = self.cluster.start_receiver(name, place, *flags, senders=False)
                eventually(lambda: words in receiver.log_tail(), lambda: receiver.log_tail())
                self.assertEqual(receiver.logged("shared_dir_found"), 0)
        self.assertEqual(self.origin.bytes_sent("manifest"), 0)

    def test_a_receiver_shows_its_certificate(self) -> None:
        self.begin()
        own = self.authority.issue("joiner", "dws://test/receive/joiner")
        place = f"--shared-dir=https://localhost:{self.origin_at[1]}/dws"
        engine, live = self.joins(
            "joiner", place, self.ca, "--tls-ca", own.ca, "--tls-cert", own.cert, "--tls-key", own.key
        )
        self.assert_at(engine, live)
        self.publish()
        self.assert_at(engine, live)
        # A key that cannot be used is named, once, until it can be used again.
        receiver = self.cluster.receivers[0]
        with open(own.key, encoding="utf-8") as file:
            key = file.read()
        with open(own.key, "w", encoding="utf-8") as file:
            file.write("not yet written")
        self.origin.kill()
        self.origin.start(self.origin_at)
        eventually(lambda: receiver.logged("client_certificate_not_shown") == 1, receiver.log_tail)
        self.assertIn(f"the key {own.key}: ", receiver.log_tail(1000))
        with open(own.key, "w", encoding="utf-8") as file:
            file.write(key)
        self.publish()
        self.assert_at(engine, live)
        self.assertEqual(receiver.logged("client_certificate_not_shown"), 1)

    def test_a_cache_that_loses_its_origin_is_left_for_the_next_place(self) -> None:
        """The origin hangs: what the cache has of lists ends after seconds, and the sender's directory has newer versions."""
        url = self.start_cache()
        self.begin()
        engine, live = self.joins("engine", f"--shared-dir={url},{self.root}", self.ca)
        self.assert_at(engine, live)
        lists = f"/dws/{os.path.relpath(os.path.dirname(os.path.dirname(self.files('manifest')[0])), self.root)}/"
        with self.origin.stopped():
            began = time.monotonic()
            self.publish(0.3)
            self.assert_at(engine, live)
            # While one request waits for the origin, others get a list that is at most five seconds old, then none.
            codes: list[int] = []
            while not codes or time.monotonic() < began + 8 or codes[-1] == 200:
                self.assertLess(time.monotonic(), began + 60, codes)
                time.sleep(0.2)
                codes.append(nginx.ask(self.cache_at, "GET", lists, self.certificates, wait=3))
            for _ in range(3):
                self.publish(0.3)
                self.assert_at(engine, live)
                self.assertNotEqual(nginx.ask(self.cache_at, "GET", lists, self.certificates, wait=3), 200)
        self.publish(0.3)
        self.assert_at(engine, live)

    def test_the_origin_shows_versions_only_and_takes_nothing(self) -> None:
        shutil.copytree("deploy/nginx", f"{self.root}/job/rank-00000/receivers")
        os.makedirs(f"{self.root}/receivers/rank-00000")  # a job of that name
        with open(f"{self.root}/v.tmp", "w", encoding="utf-8") as file:
            file.write("unfinished")
        with open(f"{self.root}/manifest", "w", encoding="utf-8") as file:
            file.write("a manifest")
        for method, path, code in (
            ("GET", "/dws/manifest", 200), ("HEAD", "/dws/manifest", 200), ("PUT", "/dws/manifest", 403),
            ("DELETE", "/dws/manifest", 403), ("POST", "/dws/", 403), ("GET", "/dws/v.tmp", 404),
            ("GET", "/dws/job/rank-00000/receivers/", 404), ("GET", "/dws/job/rank-00000/receivers", 404),
            ("GET", "/dws/job/rank-00000/receivers/origin.conf", 404), ("GET", "/dws/receivers/", 200),
            ("GET", "/dws/receivers/rank-00000/", 200), ("GET", "/", 404),
            ("GET", "/dws/%2e%2e/%2e%2e/etc/passwd", 400), ("GET", "/dws/none", 404), ("GET", "/dws/", 200),
        ):  # fmt: skip
            with self.subTest(f"{method} {path}"):
                self.assertEqual(nginx.ask(self.origin_at, method, path, self.certificates), code)


if __name__ == "__main__":
    unittest.main()
