"""A rollout engine's HTTP server that has no model: SGLang's or vLLM's endpoints for updating weights, over
real state, and it misbehaves when told to.

    engine_server.py --kind sglang --model FOLDER [--port N] [--token T] [--without /flush_cache ...]

Prints "listening PORT". Weights are the tensors of the *.safetensors files in a folder, as bytes; requests are
counts. The test controls and inspects it through /fake, which is not part of any engine:

    POST /fake {"running": 3}                                        it has running requests
    POST /fake {"finish": true}                                      and they are finished
    POST /fake {"ignores_clear_cache": true}                         its pause keeps the caches with mode keep
    POST /fake {"failing": [0, 1]}                                   vLLM's next loads fail in these workers, one each
    POST /fake {"token": "t2"}                                       uses another API key from now on
    POST /fake {"fault": "/resume", "do": "hang", "times": 1}        misbehaves there; times 0: permanently
    GET  /fake                                                       the state, and the calls in order

Faults before the endpoint does its work: hang, drop (the connection), die (the process), refuse (400 with success
false), status (with "code" and "text"), slow (by "seconds"), garbage, huge (with "bytes"), drip. After it: lose (the reply), die_after.
"""

from __future__ import annotations

import argparse
import hashlib
import http.server
import json
import os
import ssl
import struct
import sys
import threading
import urllib.parse
from typing import Any

COMMON = {"/health": "get", "/update_weight_version": "post"}
ENDPOINTS = {
    "sglang": {
        "/pause_generation": "post",
        "/continue_generation": "post",
        "/flush_cache": "get",
        "/update_weights_from_disk": "post",
        "/model_info": "get",
        "/get_model_info": "get",
        "/weights_checker": "post",
        **COMMON,
    },
    "vllm": {
        "/pause": "post",
        "/resume": "post",
        "/is_paused": "get",
        "/reset_prefix_cache": "post",
        "/reset_encoder_cache": "post",
        "/collective_rpc": "post",
        "/weight_info": "get",
        "/weight_checker": "post",
        **COMMON,
    },
}
DRIP_SECONDS = 0.02
DRIP_BYTES = 1 << 20


class Refused(Exception):
    """Ends a call with a status and a body."""

    def __init__(self, code: int, body: Any):
        super().__init__(code)
        self.code = code
        self.body = body


def need(body: dict[str, Any], field: str) -> Any:
    """A field that the engine requires."""
    if field in body:
        return body[field]
    raise Refused(400, wrong(f"{{'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field required'}}"))


def wrong(what: str) -> dict[str, Any]:
    """The body of the answer to a request that does not validate; SGLang has the fields on top."""
    message = f"1 validation error:\n  {what}"
    error = {"message": message, "type": "Bad Request", "code": 400}
    return {"object": "error", **error, "error": error}


def load_safetensors(folder: str) -> dict[str, bytes]:
    """All tensors of a checkpoint's folder; raises ValueError and OSError like a loader."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    if not names:
        raise ValueError(f"Cannot find any model weights with `{folder}`")
    tensors = {}
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            content = file.read()
        (size,) = struct.unpack_from("<Q", content)
        data = content[8 + size :]
        for tensor, entry in json.loads(content[8 : 8 + size]).items():
            if tensor != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[tensor] = data[begin:end]
    return tensors


class Engine:
    """The state and the endpoints' effects on it. Methods are called under the lock."""

    aborts_by_default = False  # when it is told a version

    def __init__(self, model: str):
        self.lock = threading.Condition()
        self.tensors = load_safetensors(model)
        self.weight_version = "default"
        self.paused = False
        self.running = 0
        self.waiting = 0
        self.aborted = 0
        self.cached, self.connector_cached, self.encoder_cached = 100, 50, 3  # computed with some weights
        self.ignores_clear_cache = False
        self.loads = 0
        self.broken = ""  # the error that the next load repeats, after one that failed halfway

    def state(self) -> dict[str, Any]:
        return {
            "tensors": {name: data.hex() for name, data in self.tensors.items()},
            "weight_version": self.weight_version,
            "paused": self.paused,
            "running": self.running,
            "waiting": self.waiting,
            "aborted": self.aborted,
            "cached": self.cached,
            "connector_cached": self.connector_cached, "encoder_cached": self.encoder_cached,
            "loads": self.loads,
        }

    def abort_all(self) -> None:
        self.aborted += self.running + self.waiting
        self.running = self.waiting = 0
        self.lock.notify_all()

    def load(self, folder: str) -> None:
        """As vLLM: tensors of other sizes fail when some are written, and with them the next load."""
        if self.broken:
            error, self.broken = self.broken, ""
            raise ValueError(error)
        loaded = load_safetensors(folder)
        for name, data in loaded.items():
            if len(data) != len(self.tensors.get(name, data)):
                self.broken = f"start (0) + length ({len(data)}) exceeds dimension size"
                raise ValueError(self.broken)
            self.tensors[name] = data
        self.loads += 1

    def checksums(self) -> dict[str, str]:
        return {name: hashlib.sha256(data).hexdigest() for name, data in self.tensors.items()}

    def update_weight_version(self, _query: dict[str, str], body: dict[str, Any]) -> Any:
        version = need(body, "new_version")
        if body.get("abort_all_requests", self.aborts_by_default):
            self.abort_all()
        self.weight_version = version
        message = f"Weight version updated to {self.weight_version}"
        return {"success": True, "message": message, "new_version": self.weight_version}

    def health(self, _query: dict[str, str], _body: dict[str, Any]) -> Any:
        return ""


class Sglang(Engine):
    aborts_by_default = True

    def load(self, folder: str) -> None:
        """A load that fails when some tensors are written ends the server."""
        try:
            super().load(folder)
        except ValueError:
            if self.broken:
                os._exit(1)
            raise

    def pause_generation(self, _query: dict[str, str], body: dict[str, Any]) -> Any:
        mode = body.get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            raise Refused(400, wrong(f"{{'type': 'literal_error', 'loc': ('body', 'mode'), 'input': '{mode}'}}"))
        self.paused = True
        if mode == "abort":
            self.abort_all()
        elif mode == "retract":
            self.waiting += self.running
            self.running = 0
        return {"message": "Generation paused successfully.", "status": "ok"}

    def continue_generation(self, _query: dict[str, str], _body: dict[str, Any]) -> Any:
        self.paused = False
        self.running += self.waiting
        self.waiting = 0
        return {"message": "Generation continued successfully.", "status": "ok"}

    def flush(self) -> bool:
        """Requests that a pause holds back do not count."""
        if self.running or (self.waiting and not self.paused):
            return False
        self.cached = 0
        return True

    def flush_cache(self, query: dict[str, str], _body: dict[str, Any]) -> Any:
        """With a timeout it waits for an empty queue, also in a pause, in which it stays as it is."""
        seconds = float(query.get("timeout", "0"))
        if seconds and not self.lock.wait_for(lambda: not self.running and not self.waiting, seconds):
            raise Refused(400, "Timed out waiting for idle state.")
        if self.flush():
            return "Cache flushed.\nPlease check backend logs for more details.\n"
        raise Refused(400, "Flush cache failed.\n")

    def update_weights_from_disk(self, _query: dict[str, str], body: dict[str, Any]) -> Any:
        try:
            self.load(need(body, "model_path"))
        except (OSError, ValueError, KeyError, struct.error) as error:
            message = f"Failed to update weights: {error}"
            body = {"success": False, "message": message, "num_paused_requests": 0}
            raise Refused(400, body) from error
        self.weight_version = body.get("weight_version") or self.weight_version
        if body.get("flush_cache", True) and not self.flush():
            message = "Weights were updated, but the cache was not flushed because requests are still running or queued."
            raise Refused(400, {"success": False, "message": message})
        return {
            "success": True,
            "message": f"Succeeded to update model weights. Weight version updated to {self.weight_version}.",
            "num_paused_requests": self.running,
        }

    def model_info(self, _query: dict[str, str], _body: dict[str, Any]) -> Any:
        return {"model_path": "fake", "is_generation": True, "weight_version": self.weight_version}

    get_model_info = model_info

    def health(self, _query: dict[str, str], _body: dict[str, Any]) -> Any:
        """It generates a token, so not in a pause. The real one takes 20 s to say so."""
        if self.paused:
            raise Refused(503, "")
        return ""

    def weights_checker(self, _query: dict[str, str], body: dict[str, Any]) -> Any:
        if body.get("action") != "checksum":
            raise Refused(400, {"success": False, "message": "Unsupported action"})
        return {"success": True, "message": "Success.", "ranks": [{"checksums": self.checksums()}]}


class Vllm(Engine):
    """With two workers that load the same weights; those of the state are the first one's."""

    def __init__(self, model: str):
        super().__init__(model)
        self.replies: list[list[str]] = [[], []]  # of each worker, not read yet; "": it did it
        self.failing: list[int] = []
        self.worker_loads = [0, 0]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "worker_loads": self.worker_loads}

    def pause(self, query: dict[str, str], _body: dict[str, Any]) -> Any:
        mode = query.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            raise Refused(400, wrong(f"{{'type': 'literal_error', 'loc': 'query.mode', 'input': '{mode}'}}"))
        self.paused = True
        if mode == "abort":
            self.abort_all()
        elif mode == "wait":
            self.lock.wait_for(lambda: not self.running)
        # vLLM 0.32 drops all caches in every mode, although it documents that mode keep ignores clear_cache.
        if query.get("clear_cache", "true") == "true" and not (mode == "keep" and self.ignores_clear_cache):
            self.cached = self.connector_cached = self.encoder_cached = 0
        return {"status": "paused"}

    def resume(self, _query: dict[str, str], _body: dict[str, Any]) -> Any:
        self.paused = False
        return {"status": "resumed"}

    def is_paused(self, _query: dict[str, str], _body: dict[str, Any]) -> Any:
        return {"is_paused": self.paused}

    def reset_prefix_cache(self, query: dict[str, str], _body: dict[str, Any]) -> Any:
        success = not self.running or query.get("reset_running_requests") == "true"
        if success:
            self.cached = 0
        return {"success": success}

    def reset_encoder_cache(self, _query: dict[str, str], _body: dict[str, Any]) -> Any:
        self.encoder_cached = 0
        return ""

    def weight_info(self, _query: dict[str, str], _body: dict[str, Any]) -> Any:
        return {"weight_version": self.weight_version}

    def weight_checker(self, _query: dict[str, str], body: dict[str, Any]) -> Any:
        if need(body, "action") != "checksum":
            raise Refused(400, wrong("{'type': 'literal_error', 'loc': 'body.action'}"))
        return {"checksums": self.checksums()}

    def collective_rpc(self, _query: dict[str, str], body: dict[str, Any]) -> Any:
        if (method := body.get("method")) != "reload_weights":
            if method is None:
                raise Refused(400, wrong("Missing 'method' in request body"))
            raise self.failed(f"'CPUWorker' object has no attribute '{method}'")
        failing = self.failing.pop(0) if self.failing else None
        why = ""
        try:
            if failing != 0:
                self.load(body["kwargs"]["weights_path"])
        except (OSError, ValueError, KeyError, struct.error) as error:
            why = str(error)
        for worker, replies in enumerate(self.replies):
            said = "no memory" if worker == failing else why
            self.worker_loads[worker] += said == ""
            replies.append(said)
        for replies in self.replies:  # stops at the first error: what the others said stays
            if said := replies.pop(0):
                raise self.failed(said)
        return {"results": [None for _ in self.replies]}

    def failed(self, why: str) -> Refused:
        message = f"Call to collective_rpc method failed: Worker failed with error '{why}'"
        error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
        return Refused(500, {"error": error})


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, args: argparse.Namespace):
        super().__init__(("127.0.0.1", args.port), Connection)
        self.kind = args.kind
        self.engine = {"sglang": Sglang, "vllm": Vllm}[args.kind](args.model)
        known = ENDPOINTS[args.kind].items()
        self.endpoints = {path: method for path, method in known if path not in args.without}
        if "/openapi.json" not in args.without:
            self.endpoints["/openapi.json"] = "get"
        self.token = args.token
        if args.pem:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(args.pem)
            # The handshake in the connection's thread: a failed handshake blocks no other connection.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.faults: dict[str, dict[str, Any]] = {}
        self.calls: list[dict[str, Any]] = []
        self.never = threading.Event()

    def take_fault(self, path: str) -> dict[str, Any]:
        fault = self.faults.get(path, {})
        if fault.get("times", 0) == 1:
            del self.faults[path]
        elif fault.get("times", 0) > 1:
            fault["times"] -= 1
        return dict(fault)


class Connection(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.serve("get")

    def do_POST(self) -> None:
        self.serve("post")

    def do_OPTIONS(self) -> None:
        self.serve("options")

    def reply(self, code: int, body: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        data = text.encode()
        self.send_response(code)
        kind = "text/plain" if isinstance(body, str) else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ssl.SSLError):
            pass  # the caller has hung up, or rejects the certificate

    def drop(self) -> None:
        self.close_connection = True

    def serve(self, method: str) -> None:
        url = urllib.parse.urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(size).decode()
        query = dict(urllib.parse.parse_qsl(url.query))
        try:
            body = json.loads(text) if text else {}
            if url.path == "/fake":
                return self.fake(method, body)
            return self.engine_call(method, url.path, query, body)
        except Refused as refused:
            return self.reply(refused.code, refused.body)
        except (BrokenPipeError, ConnectionResetError):
            return self.drop()

    def fake(self, method: str, body: dict[str, Any]) -> None:
        engine = self.server.engine
        with engine.lock:
            if method == "post":
                engine.running = body.get("running", engine.running)
                engine.ignores_clear_cache |= "ignores_clear_cache" in body
                if body.get("finish"):
                    engine.running = engine.waiting = 0
                if "failing" in body:
                    engine.failing = body["failing"]
                if "fault" in body:
                    self.server.faults[body["fault"]] = body
                self.server.token = body.get("token", self.server.token)
                engine.lock.notify_all()
            state = {**engine.state(), "calls": self.server.calls}
        self.reply(200, state)

    def engine_call(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> None:
        server = self.server
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            raise Refused(401, {"error": "Unauthorized"})
        if path not in server.endpoints:
            raise Refused(404, {"detail": "Not Found"})
        if server.endpoints[path] != method:
            raise Refused(405, {"detail": "Method Not Allowed"})
        with server.engine.lock:
            server.calls.append({"path": path, "query": query, "body": body})
            fault = server.take_fault(path)
        what = fault.get("do", "")
        if what and self.misbehave(what, fault):
            return
        if path == "/openapi.json":
            paths = {name: {verb: {}} for name, verb in server.endpoints.items()}
            return self.reply(200, {"openapi": "3.1.0", "info": {"title": "FastAPI"}, "paths": paths})
        with server.engine.lock:
            answer = getattr(server.engine, path[1:])(query, body)
        if what == "die_after":
            os._exit(1)
        if what == "lose":
            return self.drop()
        self.reply(200, answer)

    def misbehave(self, what: str, fault: dict[str, Any]) -> bool:
        """Returns False if the fault comes only after the work is done."""
        if what == "hang":
            self.server.never.wait()
        elif what == "drop":
            self.drop()
        elif what == "die":
            os._exit(1)
        elif what == "refuse":
            raise Refused(400, {"success": False, "message": fault.get("text", "no")})
        elif what == "status":
            raise Refused(fault["code"], fault.get("text", ""))
        elif what == "slow":
            self.server.never.wait(fault["seconds"])
            return False
        elif what == "garbage":
            self.reply(200, '{"success": tru\x00\x1b[31m')
        elif what == "huge":
            self.send_response(200)
            self.send_header("Content-Length", str(fault["bytes"]))
            self.end_headers()
            for _ in range(fault["bytes"] >> 20):
                self.wfile.write(b" " * (1 << 20))
        elif what == "drip":
            self.send_response(200)
            self.send_header("Content-Length", str(DRIP_BYTES))
            self.end_headers()
            while not self.server.never.wait(DRIP_SECONDS):
                self.wfile.write(b" ")
        else:
            return False
        return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("sglang", "vllm"), required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", default="")
    parser.add_argument("--pem", default="", help="certificate and key: HTTPS")
    parser.add_argument("--without", action="append", default=[])
    server = Server(parser.parse_args())
    print(f"listening {server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
