"""A server that gives keys that end, for a store of the tests: STS, and the metadata of an instance and of a container."""

from __future__ import annotations

import http.server
import itertools
import json
import threading
import time
import urllib.parse
from typing import Any, Optional

from tests.integration.transfer.s3_store import S3Store

ROLE = "arn:aws:iam::1:role/dws"
_SESSION = "metadata-session"
_ROLES = "/latest/meta-data/iam/security-credentials/"


class KeyIssuer:
    """Lifecycle: made; stop.

    Attributes:
      token: that a web identity or a container has to show.
      lasts: how many seconds keys are good for.
      refuses: whether it gives none.
      issued: how many keys it gave.
    """

    def __init__(self, store: S3Store, token: str) -> None:
        self.store = store
        self.token = token
        self.lasts = 3600.0
        self.refuses = False
        self.issued = 0
        self._numbers = itertools.count(1)
        issuer = self

        class Answering(http.server.BaseHTTPRequestHandler):
            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
                found = issuer._answer(self.command, self.path, self.headers, body)
                status, answer = (403, issuer._refusal()) if found is None or issuer.refuses else (200, found)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer.encode())

            do_GET = do_PUT = do_POST = _do

            def log_message(self, *unused: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _refusal(self) -> str:
        return "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not for you</Message></Error></ErrorResponse>"

    def _answer(self, method: str, path: str, headers: Any, body: str) -> Optional[str]:
        if (method, path) == ("POST", "/"):
            form = dict(urllib.parse.parse_qsl(body))
            asked = (form["Action"], form["RoleArn"], form["WebIdentityToken"])
            right = asked == ("AssumeRoleWithWebIdentity", ROLE, self.token)
            return self._xml(self._issue()) if right else None
        if (method, path) == ("PUT", "/latest/api/token"):
            return _SESSION if headers.get("x-aws-ec2-metadata-token-ttl-seconds") else None
        if path == "/agent?of=dws":
            return json.dumps(self._issue()) if headers.get("authorization") == self.token else None
        if headers.get("x-aws-ec2-metadata-token") != _SESSION or not path.startswith(_ROLES):
            return None
        return "dws-role\n" if path == _ROLES else json.dumps({"Code": "Success", **self._issue()})

    def _issue(self) -> dict[str, str]:
        number = next(self._numbers)
        keys = (f"AKSESSION{number}", f"session/secret+{number}", f"session-token-{number}=")
        end = time.time() + self.lasts
        self.store.sessions[keys[0]] = (keys[1], keys[2], end)
        self.issued += 1
        names = ("AccessKeyId", "SecretAccessKey", "Token")
        return {**dict(zip(names, keys)), "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))}

    def _xml(self, keys: dict[str, str]) -> str:
        inside = "".join(f"<{name}>{value}</{name}>" for name, value in keys.items())
        inside = inside.replace("Token>", "SessionToken>")
        return ("<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
                f"{inside}</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>")  # fmt: skip
