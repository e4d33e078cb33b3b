"""Uses a running sender and receiver the way a job does, and fails when they do not do their work:

    exercise.py --sender-socket S --receiver-socket R --sender-http H:P --receiver-http H:P
                --admin H:P|unix:PATH [--job J] [--tls CA,CERT,KEY]

Two versions from a trainer to an engine, through the installed package `dws`; then health, reflection
and the pages that probes ask for. It knows programs and addresses only: no source tree.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import urllib.request

import dws
import grpc
import numpy as np

DEADLINE_SECONDS = 60.0
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_HEALTH = "/grpc.health.v1.Health/Check"


def check(truth: object, what: str) -> None:
    if not truth:
        raise SystemExit(f"exercise.py: FAILED: {what}")
    print(f"ok: {what}", flush=True)


class Engine(threading.Thread):
    """Attaches, notes the sum at version 2, and stays until it is told to go."""

    def __init__(self, socket: str) -> None:
        super().__init__(daemon=True)
        self._socket = socket
        self.sum_at_two: list[float] = []
        self.seen = threading.Event()
        self.over = threading.Event()

    def run(self) -> None:
        with dws.Engine(self._socket) as engine:
            views = engine.attach({"w": np.zeros((256, 1024), np.float32)})
            while not self.over.wait(0.01):  # between two forward passes
                with engine.running(timeout=DEADLINE_SECONDS) as grant:
                    if grant.version == 2 and not self.sum_at_two:
                        self.sum_at_two.append(float(views["w"].sum()))
                        self.seen.set()


def sync(trainer: dws.Trainer, engine: Engine) -> None:
    views = trainer.register({"w": np.zeros((256, 1024), np.float32)})
    weights = views["w"].reshape(-1)
    for version in (1, 2):
        weights[version::97] += version
        trainer.publish(version)
        trainer.wait(version, policy="all", timeout=DEADLINE_SECONDS)
    engine.seen.wait(DEADLINE_SECONDS)
    check(engine.sum_at_two == [float(weights.sum())], "the engine has the trainer's weights")


def page(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def connect(address: str, tls: str) -> grpc.Channel:
    direct = [("grpc.enable_http_proxy", 0)]
    if not tls:
        return grpc.insecure_channel(address, options=direct)
    ca, certificate, key = [open(path, "rb").read() for path in tls.split(",")]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate), direct)


def ask(options: argparse.Namespace) -> None:
    """Asks for what probes, Prometheus and operators ask for, while trainer and engine exist."""
    for address in (options.sender_http, options.receiver_http):
        check(page(address, "/healthz"), f"http://{address}/healthz answers")
        check(page(address, "/readyz"), f"http://{address}/readyz says ready")
        check("dws_build_info{" in page(address, "/metrics"), f"http://{address}/metrics has metrics")
        check(json.loads(page(address, "/status"))["build_version"], f"http://{address}/status is JSON")

    with connect(options.admin, options.tls) as channel:
        health = channel.unary_unary(_HEALTH)(b"", timeout=10)
        check(health == b"\x08\x01", "grpc.health.v1 says SERVING")  # status: 1
        reflect = channel.stream_stream(_REFLECTION)
        answer = next(reflect(iter([b"\x3a\x01*"]), timeout=10))  # list_services: "*"
        check(b"dws.v1.AdminService" in answer, "reflection lists the services")


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("sender-socket", "receiver-socket", "sender-http", "receiver-http", "admin"):
        parser.add_argument(f"--{flag}", required=True)
    parser.add_argument("--job", default="default")
    parser.add_argument("--tls", default="")
    options = parser.parse_args()

    engine = Engine(options.receiver_socket)
    engine.start()
    with dws.Trainer(options.sender_socket, job_id=options.job) as trainer:
        sync(trainer, engine)
        ask(options)
        engine.over.set()
        engine.join(DEADLINE_SECONDS)


if __name__ == "__main__":
    main()
