"""Keys for a store that end: from STS by a web identity, and from the metadata of an instance and a container."""

from __future__ import annotations

import os
import unittest
from typing import Any, Mapping
from unittest import mock

from tests.integration.integration_case import eventually
from tests.integration.transfer.key_issuer import ROLE, KeyIssuer
from tests.integration.transfer.store_test import StoreCase

TOKEN = "token-of-this-pod"


class StoreKeysTest(StoreCase):
    def setUp(self) -> None:
        super().setUp()
        self.issuer = KeyIssuer(self.store, TOKEN)
        self.addCleanup(self.issuer.stop)
        self.token_file = os.path.join(self.cluster.folder, "token")
        with open(self.token_file, "w", encoding="utf-8") as file:
            file.write(f"{TOKEN}\n")
        self.file_flags = self.flags
        self.flags = self.flags[:3]

    def environment(self, given: Mapping[str, str]) -> Any:
        own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return mock.patch.dict(os.environ, {**own, **given}, clear=True)

    def web_identity(self) -> dict[str, str]:
        return {
            "AWS_WEB_IDENTITY_TOKEN_FILE": self.token_file,
            "AWS_ROLE_ARN": ROLE,
            "AWS_ENDPOINT_URL_STS": self.issuer.address,
        }

    def container(self) -> dict[str, str]:
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{self.issuer.address}/agent?of=dws",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": self.token_file,
        }

    def follow(self, environment: Mapping[str, str], *flags: str) -> None:
        self.issuer.lasts = 301.5  # they are renewed five minutes before their end
        with self.environment(environment):
            sender = self.sender_starts(*flags)
            self.register()
            self.publish()
            engine, live = self.joins("engine", *flags, "--shared-poll-ms=20")
        self.assert_at(engine, live)
        eventually(lambda: len(self.store.key_ids) >= 4, lambda: str(self.store.key_ids))
        self.publish()
        self.assert_at(engine, live)
        receiver = self.cluster.receivers[0]
        shown = sender.log_tail(10_000) + receiver.log_tail(10_000) + sender.page("/status") + receiver.page("/status")
        for secret, token, _ in self.store.sessions.values():
            self.assertNotIn(secret, shown)
            self.assertNotIn(token, shown)
        self.assertNotIn(TOKEN, shown)
        self.assertEqual(receiver.logged("store_keys_not_renewed"), 0)

    def test_a_web_identity_gets_keys_that_are_renewed_before_they_end(self) -> None:
        self.follow(self.web_identity())

    def test_a_containers_agent_gives_keys_that_are_renewed_before_they_end(self) -> None:
        self.follow(self.container())

    def test_an_instance_gives_keys_that_are_renewed_before_they_end(self) -> None:
        self.follow({"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.issuer.address}, "--shared-credentials=instance")

    def test_what_is_missing_or_refused_is_named_at_the_start(self) -> None:
        web, agent = self.web_identity(), self.container()
        nobody = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}
        cases: tuple[tuple[Mapping[str, str], tuple[str, ...], str], ...] = (
            ({}, (), "there are no keys for the store: expected one of --shared-credentials=FILE"),
            ({}, ("--shared-credentials=environment",), "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and one is"),
            ({}, ("--shared-credentials=web-identity",), "AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN"),
            (nobody, ("--shared-credentials=instance",), "instance metadata: 127.0.0.1:9: cannot connect"),
            ({**web, "AWS_ROLE_ARN": "arn:other"}, (), "answers with status 403: AccessDenied: not for you"),
            ({**web, "AWS_ENDPOINT_URL_STS": "http://10.0.0.1"}, (), "would travel unencrypted to http://10.0.0.1"),
            ({**web, "AWS_WEB_IDENTITY_TOKEN_FILE": "/none"}, (), "No such file"),
            ({**agent, "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://10.0.0.1/x"}, (), "expected https, this machine or an agent"),
        )
        for environment, flags, words in cases:
            with self.subTest(words), self.environment(environment):
                with self.assertRaisesRegex(Exception, words):
                    self.cluster.start_sender(9, *self.flags, *flags)

    def test_old_keys_serve_while_they_last_if_no_others_come(self) -> None:
        self.issuer.lasts = 302  # so they are to be renewed soon
        with self.environment(self.web_identity()):
            sender = self.sender_starts()
            self.register()
            self.issuer.refuses = True
            self.publish()
            eventually(lambda: bool(self.store.keys("/manifest")), sender.log_tail)
            eventually(lambda: sender.logged("store_keys_not_renewed") > 0, sender.log_tail)
            self.assertIn("AccessDenied: not for you", sender.log_tail(1000))


if __name__ == "__main__":
    unittest.main()
