"""Certificates: TLS between sender and receiver, and `systemctl reload` with new ones under a live connection."""

from __future__ import annotations

import shutil
import socket
import ssl
import time
from pathlib import Path

from job import Job
from report import CheckFailed, Report, until
from unit import Unit, run

_AUTHORITY = "/root/ca"
_ISSUED = "/root/tls"
_LISTEN = ("127.0.0.1", 7700)
_FOLDER = Path("/etc/dws/tls")


def _certificates(*arguments: str) -> None:
    done = run("dws-certificates", *arguments)
    if done.returncode != 0:
        raise CheckFailed(f"dws-certificates {' '.join(arguments)}: {done.stderr}")


def _install(unit: Unit, folder: str, *names: str) -> None:
    """Replaces the unit's files as SECURITY.md says: writes them beside the old ones, then renames
    them."""
    target = _FOLDER / unit.name
    for name in names:
        beside = target / (name + ".new")
        shutil.copy(f"{folder}/{name}", beside)
        shutil.chown(beside, "root", "dws")
        beside.chmod(0o640)
        beside.rename(target / name)


def _served() -> tuple[str, str]:
    """Serial number and end of the certificate that the sender's port has now."""
    operator = f"{_ISSUED}/operate-ann"
    context = ssl.create_default_context(cafile=f"{operator}/ca.pem")
    context.load_cert_chain(f"{operator}/cert.pem", f"{operator}/key.pem")
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(_LISTEN, 10) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            found = secured.getpeercert()
            assert found is not None
            return str(found["serialNumber"]), str(found["notAfter"])


def set_up_tls(report: Report, sender: Unit, receiver: Unit) -> None:
    """The sender listens with TLS, the receiver dials it by TLS alone."""
    name = f"{socket.gethostname()}-{receiver.name.partition('@')[2]}"
    _certificates("job", "--job-id=my-job", f"--authority={_AUTHORITY}", f"--out={_ISSUED}", "--days=20",
                  "--publish=0@localhost", f"--receive={name}@localhost", "--operate=ann")
    for unit, folder in ((sender, f"{_ISSUED}/publish-0"), (receiver, f"{_ISSUED}/receive-{name}")):
        target = _FOLDER / unit.name
        target.mkdir(parents=True)
        _install(unit, folder, "ca.pem", "cert.pem", "key.pem")
        lines = [f"DWS_TLS_{key}={target}/{file}.pem" for key, file in (("CA", "ca"), ("CERT", "cert"), ("KEY", "key"))]
        lines.append(f"DWS_LISTEN=127.0.0.1:{_LISTEN[1]}" if unit is sender else f"DWS_SENDER=127.0.0.1:{_LISTEN[1]}")
        with unit.environment.open("a") as environment:
            environment.write("\n".join([*lines, ""]))
        report.equal(unit.order("restart").returncode, 0, f"{unit.name} starts with TLS, keys root:dws 0640")
    job_id = sender.status()["tls"]["identity"]
    report.equal(job_id, "dws://my-job/publish/0", "the sender shows its identity")


def check_reload(report: Report, job: Job, sender: Unit, receiver: Unit) -> None:
    job.sync(report, "over TLS")
    before, since = _served(), time.time()
    pids = sender.pid, receiver.pid
    name = f"{socket.gethostname()}-{receiver.name.partition('@')[2]}"
    folders = {sender.name: f"{_ISSUED}/publish-0", receiver.name: f"{_ISSUED}/receive-{name}"}
    _certificates("renew", f"--authority={_AUTHORITY}", "--within=30",
                  *(f"{folder}/cert.pem" for folder in folders.values()))
    for unit in (sender, receiver):
        _install(unit, folders[unit.name], "cert.pem")
        done = unit.order("reload")
        report.check(done.returncode == 0 and unit.active, f"systemctl reload {unit.name} with a renewed certificate", done.stderr)
        report.check(unit.logged("tls_reloaded", since), f"{unit.name} logs tls_reloaded")
    after = _served()
    report.check(after[0] != before[0] and after[1] != before[1],
                 f"new connections get the renewed certificate ({before[1]} -> {after[1]})", after)
    report.equal((sender.pid, receiver.pid), pids, "the processes are the same")
    job.sync(report, "over the connection that was there before the reload")
    report.check(not _connected_again(receiver, since), "that connection was not made again")
    receiver.order("restart")
    job.sync(report, "over a connection with the renewed certificates")
    _refuse_a_mistake(report, sender)
    job.sync(report, "after a reload that was refused")


def _connected_again(receiver: Unit, since: float) -> bool:
    return receiver.logged("sender_connected", since, 1.0)


def _refuse_a_mistake(report: Report, sender: Unit) -> None:
    """A key of another certificate: refused, and the files in use stay."""
    before, since = _served(), time.time()
    _install(sender, f"{_ISSUED}/operate-ann", "key.pem")
    sender.order("reload")
    report.check(sender.logged("tls_reload_refused", since), "a reload with a key that does not fit is refused, and logged")
    report.check(until(lambda: sender.show("ActiveState") == "active", 5) and _served() == before,
                 "the certificate in use stays, the unit is active")
    _install(sender, f"{_ISSUED}/publish-0", "key.pem")
    sender.order("reload")
