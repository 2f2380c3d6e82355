"""Flags: how this coordinator and services that it reaches over a network prove who they are."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from viewstamp.certificates.clear_text import UNIX_PREFIX, leaves_machine
from viewstamp.certificates.pem_files import PemFiles

_FILES: Final = "--service-tls-certificate, --service-tls-key and --service-tls-ca"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags to the coordinator's parser."""
    group = parser.add_argument_group(
        "services over a network", "Unix sockets need none of these, and have no TLS."
    )
    add = group.add_argument
    add(
        "--service-tls-certificate",
        type=Path,
        help="PEM chain that names coordinator-<ID>.viewstamp; with key and ca: mutual TLS with"
        " each service at HOST:PORT",
    )
    add("--service-tls-key", type=Path, help="PEM private key of that certificate")
    add("--service-tls-ca", type=Path, help="PEM certificate of the authority of the services")
    add(
        "--service-plaintext",
        action="store_true",
        help="reach services on other machines without TLS: whoever is on the way can read and"
        " change all",
    )


def files_of(options: argparse.Namespace, services: Mapping[str, str]) -> PemFiles | None:
    """Return the files for TLS, None without. Raises ValueError for what cannot be together.

    `services` are the targets of the services by their names.
    """
    files = (options.service_tls_certificate, options.service_tls_key, options.service_tls_ca)
    if not any(files):
        far = [name for name, target in services.items() if leaves_machine(target)]
        if far and not options.service_plaintext:
            raise ValueError(
                f"--service {far[0]}={services[far[0]]}: it is reached over a network, where"
                f" others could read and change the state: give {_FILES}, or --service-plaintext"
                " if nobody else is there"
            )
        return None
    if not all(files):
        raise ValueError(f"{_FILES} go together: give all three or none")
    if options.service_plaintext:
        raise ValueError(f"--service-plaintext and {_FILES} exclude each other: give one")
    if all(target.startswith(UNIX_PREFIX) for target in services.values()):
        raise ValueError(f"{_FILES}: each --service is a unix socket, which has no TLS; leave out")
    return PemFiles("--service-tls-certificate", *files)
