"""Mutual TLS of a service that its coordinator reaches over a network: flags, callers, renewal.

Whoever reaches the port of a service could read and change the state. So without TLS a service
listens on a unix socket or on this machine alone, unless its operator allows clear text. With TLS
every caller has to be a coordinator of the replica that the service belongs to.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import grpc
from prometheus_client.core import GaugeMetricFamily, Metric

from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.certificates.certificate_watch import CertificateWatch
from viewstamp.certificates.clear_text import UNIX_PREFIX, leaves_machine
from viewstamp.certificates.pem_files import Certificates, PemFiles
from viewstamp.certificates.proven_names import coordinator_name, is_coordinator, names_of
from viewstamp.telemetry import fields

_NS_PER_US: Final = 1_000
_FILES: Final = "--tls-certificate, --tls-key and --tls-ca"

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group(
        "TLS", "For a coordinator that reaches --listen over a network."
    )
    add = group.add_argument
    add(
        "--tls-certificate",
        type=Path,
        help="PEM chain that names <SERVICE>-<ID>.viewstamp, with the id of the replica; with key"
        " and ca: mutual TLS",
    )
    add("--tls-key", type=Path, help="PEM private key of that certificate")
    add("--tls-ca", type=Path, help="PEM certificate of the authority of coordinators")
    add(
        "--plaintext",
        action="store_true",
        help="serve other machines without TLS: whoever reaches the port can read and change all",
    )


def files_of(options: argparse.Namespace) -> PemFiles | None:
    """Return the files for TLS, None without. Raises ValueError for what cannot be together."""
    files = (options.tls_certificate, options.tls_key, options.tls_ca)
    listen = options.listen
    if not any(files):
        if leaves_machine(listen) and not options.plaintext:
            raise ValueError(
                f"--listen {listen}: other machines can reach it, and whoever does could read and"
                f" change the state: give {_FILES}, or --plaintext if nobody else reaches it"
            )
        return None
    if not all(files):
        raise ValueError(f"{_FILES} go together: give all three or none")
    if options.plaintext:
        raise ValueError(f"--plaintext and {_FILES} exclude each other: give one of the two")
    if listen.startswith(UNIX_PREFIX):
        raise ValueError(f"--listen {listen}: a unix socket has no TLS; leave out {_FILES}")
    return PemFiles("--tls-certificate", *files)


class LoggedAlarms:
    """Tells in the log what is wrong with certificates, each once until it is over."""

    def __init__(self) -> None:
        self._told: set[tuple[int, str]] = set()

    def tell(self, kind: cluster_pb2.AlarmKind.ValueType, message: str, subject: str = "") -> None:
        """Write what is wrong, unless it was written already."""
        if (kind, subject) not in self._told:
            self._told.add((kind, subject))
            name = cluster_pb2.AlarmKind.Name(kind)
            _log.error("alarm raised", extra=fields(alarm=name, message=message))

    def clear(self, kind: cluster_pb2.AlarmKind.ValueType, subject: str = "") -> None:
        """Write that it is over, if it was written."""
        if (kind, subject) in self._told:
            self._told.remove((kind, subject))
            name = cluster_pb2.AlarmKind.Name(kind)
            _log.warning("alarm cleared", extra=fields(alarm=name, subject=subject))


def watch_of(certificates: Certificates | None) -> CertificateWatch:
    """Return what takes renewed files while it runs; without certificates it ends at once."""
    return CertificateWatch((certificates,), LoggedAlarms(), lambda: time.time_ns() // _NS_PER_US)


def families_of(certificates: Certificates | None) -> Iterable[Metric]:
    """Yield when each file expires, for the page of metrics; nothing without certificates."""
    if certificates is None:
        return
    family = GaugeMetricFamily(
        "viewstamp_certificate_expiry_timestamp_seconds",
        "When a certificate or its authority expires, in seconds since 1970.",
        labels=["flag"],
    )
    for expiry in certificates.expiries:
        family.add_metric([expiry.flag], expiry.ends_s)
    yield family


def refusal_of(names: frozenset[str] | None, replica: int | None) -> str:
    """Return why a caller may not call, empty if it may.

    `names` are those of its certificate, None where there is no TLS. `replica` is the one that the
    service belongs to, None until it is known.
    """
    if names is None:
        return ""
    if replica is None:
        is_right = any(is_coordinator(name) for name in names)
        due = "a coordinator, coordinator-<ID>.viewstamp"
    else:
        is_right = coordinator_name(replica) in names
        due = coordinator_name(replica)
    if is_right:
        return ""
    found = ", ".join(sorted(names)) or "no name"
    return f"the caller's certificate must name {due}; this one has {found}"


async def admit(context: Any, replica: int | None) -> None:
    """End a call with PERMISSION_DENIED unless its caller may make it."""
    refusal = refusal_of(names_of(context), replica)
    if refusal:
        _log.warning("a caller was refused", extra=fields(peer=context.peer(), why=refusal))
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal)
