"""An S3-compatible store in this process, that checks signatures and can be told to misbehave.

It has what common/transport/s3 asks for: objects, ranges, listings in pages, uploads in parts. Reads see what was written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import http.server
import re
import threading
import time
import urllib.parse
from typing import Any, Callable, Iterator, Mapping, Optional
from xml.sax.saxutils import escape

KEY_ID, SECRET, REGION, BUCKET = "AKTEST", "sec/ret+key", "test-1", "weights"
_PAGE = 7  # keys in one page of a listing
_PART_BYTES_MIN = 5 << 20  # of all parts but the last


@dataclasses.dataclass
class Request:
    """What a fault is decided by."""

    method: str
    key: str
    query: Mapping[str, str]
    body: bytes


# What a request gets instead of its answer: (status, body), or a change of the answer's body; None: nothing else.
Fault = Callable[[Request], Optional[object]]


class Refused(Exception):
    """A request ends with an error of the store."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


def _signature(secret: str, date: str, text: str) -> str:
    key = b"AWS4" + secret.encode()
    for part in (date[:8], REGION, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class S3Store:
    """Lifecycle: made; stop.

    Attributes:
      objects: the bytes of each key.
      uploads: of each id, its key and parts.
      fault: decides what goes wrong.
      requests: all, as (method, key).
      secret: of KEY_ID; another one from now on refuses the old.
      sessions: of other key ids, the secret, the token, and when they end.
      key_ids: those that were used.
      answered_bytes: of objects' bodies.
      connections: how many there were.
      closes: whether a connection ends with this answer, which does not say so.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}
        self.fault: Optional[Fault] = None
        self.requests: list[tuple[str, str]] = []
        self.secret = SECRET
        self.sessions: dict[str, tuple[str, str, float]] = {}
        self.key_ids: set[str] = set()
        self.answered_bytes = 0
        self.connections = 0
        self.closes: Callable[[], bool] = lambda: False
        self._lock = threading.Lock()
        self._next = 0
        store = self

        class Answering(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with store._lock:
                    store.connections += 1

            def _do(self) -> None:
                store._serve(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do

            def log_message(self, *unused: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((host, 0), Answering)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.endpoint = f"http://{host}:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def keys(self, pattern: str = "") -> list[str]:
        """Those that match."""
        with self._lock:
            return sorted(key for key in self.objects if re.search(pattern, key))

    def _serve(self, handler: Any) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        path, _, query_text = handler.path.partition("?")
        query = dict(urllib.parse.parse_qsl(query_text, keep_blank_values=True))
        bucket, _, key = urllib.parse.unquote(path)[1:].partition("/")
        request = Request(handler.command, key, query, body)
        headers: dict[str, str] = {}
        try:
            with self._lock:
                self.requests.append((request.method, key))
            self._check(handler, path, query, body)
            if bucket != BUCKET:
                raise Refused(404, "NoSuchBucket")
            fault = self.fault(request) if self.fault is not None else None
            if isinstance(fault, Refused):
                raise fault
            with self._lock:
                status, answer = self._answer(request, handler.headers, headers)
            if callable(fault):
                answer = fault(answer)
                headers.pop("Content-Length", None)
        except Refused as error:
            status = error.status
            answer = f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message></Error>".encode()
        handler.close_connection = self.closes()
        with contextlib.suppress(ConnectionError):  # the daemon was killed
            handler.send_response(status)
            for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                handler.send_header(name, value)
            handler.end_headers()
            if request.method != "HEAD":
                handler.wfile.write(answer)

    def _check(self, handler: Any, path: str, query: Mapping[str, str], body: bytes) -> None:
        """Refuses a request whose signature is wrong."""
        found = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, SignedHeaders=([a-z0-9;-]+), "
            r"Signature=([0-9a-f]{64})",
            handler.headers.get("authorization", ""),
        )
        if found is None:
            raise Refused(403, "AccessDenied", "no signature")
        key_id, day, region, names, signature = found.groups()
        date, body_hash = handler.headers["x-amz-date"], handler.headers["x-amz-content-sha256"]
        age = time.time() - time.mktime(time.strptime(date, "%Y%m%dT%H%M%SZ")) + time.timezone
        self.key_ids.add(key_id)
        secret = self._secret_of(key_id, handler.headers)
        if region != REGION or date[:8] != day or abs(age) > 900:
            raise Refused(403, "InvalidAccessKeyId")
        if body_hash != hashlib.sha256(body).hexdigest():
            raise Refused(400, "XAmzContentSHA256Mismatch")
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names.split(";")):
            raise Refused(403, "AccessDenied", "headers are not signed")
        quoted = "&".join(
            f"{urllib.parse.quote(name, safe='-_.~')}={urllib.parse.quote(value, safe='-_.~')}"
            for name, value in sorted(query.items())
        )
        lines = "".join(f"{name}:{handler.headers[name].strip()}\n" for name in names.split(";"))
        path = urllib.parse.quote(urllib.parse.unquote(path), safe="/-_.~")
        canonical = "\n".join([handler.command, path, quoted, lines, names, body_hash])
        scope = f"{day}/{REGION}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        if signature != _signature(secret, date, text):
            raise Refused(403, "SignatureDoesNotMatch")

    def _secret_of(self, key_id: str, headers: Any) -> str:
        if key_id == KEY_ID:
            return self.secret
        secret, token, end = self.sessions.get(key_id, ("", "", 0.0))
        if not secret:
            raise Refused(403, "InvalidAccessKeyId")
        if headers.get("x-amz-security-token") != token:
            raise Refused(400, "InvalidToken")
        if time.time() > end:
            raise Refused(400, "ExpiredToken")
        return secret

    def _answer(self, request: Request, sent: Any, headers: dict[str, str]) -> tuple[int, bytes]:
        key, query = request.key, request.query
        if request.method == "POST":
            return 200, self._end_upload(key, query, request.body) if "uploadId" in query else self._begin_upload(key)
        if "uploadId" in query:
            return self._part(request, headers)
        if request.method == "PUT":
            self.objects[key] = request.body
            return 200, b""
        if request.method == "DELETE":
            self.objects.pop(key, None)
            return 204, b""
        if not key:
            return 200, self._uploads(query["prefix"]) if "uploads" in query else self._list(query)
        return self._get(request, sent, headers)

    def _get(self, request: Request, sent: Any, headers: dict[str, str]) -> tuple[int, bytes]:
        if request.key not in self.objects:
            raise Refused(404, "NoSuchKey")
        whole = self.objects[request.key]
        headers["ETag"] = etag = f'"{hashlib.md5(whole).hexdigest()}"'
        if sent.get("if-match", etag) != etag:
            raise Refused(412, "PreconditionFailed")
        if request.method == "HEAD":
            headers["Content-Length"] = str(len(whole))
            return 200, b""
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", sent.get("range", ""))
        if wanted is None:
            self.answered_bytes += len(whole)
            return 200, whole
        first, last = int(wanted[1]), int(wanted[2])
        if first >= len(whole):
            raise Refused(416, "InvalidRange")
        self.answered_bytes += len(whole[first : last + 1])
        return 206, whole[first : last + 1]

    def _list(self, query: Mapping[str, str]) -> bytes:
        prefix = query["prefix"]
        assert query["list-type"] == "2" and query["delimiter"] == "/"
        names = set()
        for key in self.objects:
            if key.startswith(prefix):
                head, slash, _ = key[len(prefix) :].partition("/")
                names.add(prefix + head + slash)
        after = query.get("continuation-token", "")
        page = sorted(name for name in names if name > after)
        more = len(page) > _PAGE
        page = page[:_PAGE]
        return b"".join(self._listing(page, more))

    def _listing(self, page: list[str], more: bool) -> Iterator[bytes]:
        yield b"<?xml version='1.0'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
        yield f"<Name>{BUCKET}</Name><IsTruncated>{str(more).lower()}</IsTruncated>".encode()
        for name in page:
            inside = f"<Prefix>{escape(name)}</Prefix>" if name.endswith("/") else f"<Key>{escape(name)}</Key>"
            kind = "CommonPrefixes" if name.endswith("/") else "Contents"
            yield f"<{kind}>{inside}</{kind}>".encode()
        if more:
            yield f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>".encode()
        yield b"</ListBucketResult>"

    def _begin_upload(self, key: str) -> bytes:
        self._next += 1
        self.uploads[f"upload-{self._next}"] = (key, {})
        return (f"<InitiateMultipartUploadResult><UploadId>upload-{self._next}</UploadId>"
                "</InitiateMultipartUploadResult>").encode()  # fmt: skip

    def _part(self, request: Request, headers: dict[str, str]) -> tuple[int, bytes]:
        upload = request.query["uploadId"]
        if self.uploads.get(upload, ("",))[0] != request.key:
            raise Refused(404, "NoSuchUpload")
        if request.method == "DELETE":
            del self.uploads[upload]
            return 204, b""
        self.uploads[upload][1][int(request.query["partNumber"])] = request.body
        headers["ETag"] = f'"{hashlib.md5(request.body).hexdigest()}"'
        return 200, b""

    def _end_upload(self, key: str, query: Mapping[str, str], body: bytes) -> bytes:
        if query["uploadId"] not in self.uploads:
            raise Refused(404, "NoSuchUpload")
        parts = self.uploads[query["uploadId"]][1]
        told = re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>&quot;([0-9a-f]+)&quot;</ETag>", body.decode())
        if [(int(n), e) for n, e in told] != [(n, hashlib.md5(parts[n]).hexdigest()) for n in sorted(parts)]:
            raise Refused(400, "InvalidPart")
        if any(len(parts[n]) < _PART_BYTES_MIN for n in sorted(parts)[:-1]):
            raise Refused(400, "EntityTooSmall")
        self.objects[key] = b"".join(parts[n] for n in sorted(parts))
        del self.uploads[query["uploadId"]]
        return b"<CompleteMultipartUploadResult><Key>x</Key></CompleteMultipartUploadResult>"

    def _uploads(self, prefix: str) -> bytes:
        inside = "".join(f"<Upload><Key>{escape(key)}</Key><UploadId>{upload}</UploadId></Upload>"
                         for upload, (key, _) in self.uploads.items() if key.startswith(prefix))  # fmt: skip
        return ("<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>"
                f"{inside}</ListMultipartUploadsResult>").encode()  # fmt: skip
