"""The settings of the console, from the coordinator's flags."""

from __future__ import annotations

import argparse
import ipaddress
from dataclasses import dataclass
from typing import Final

_PORT_MAX: Final = 65_535
_LOCAL_NAME: Final = "localhost"


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Where the console listens, HOST:PORT."""

    listen: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("console")
    group.add_argument(
        "--console-listen",
        metavar="HOST:PORT",
        help="serve the console there, a page that shows the cluster to users who log in; with TLS"
        " if --tls-certificate is given",
    )
    group.add_argument(
        "--console-plaintext",
        action="store_true",
        help="let the console take passwords without TLS on an address other than the loopback, as"
        " behind a proxy that ends TLS",
    )


def settings_of(options: argparse.Namespace) -> ConsoleSettings | None:
    """Return the settings, None without a console. Raises ValueError."""
    listen: str | None = options.console_listen
    if listen is None:
        if options.console_plaintext:
            raise ValueError("--console-plaintext is about --console-listen: give both, or neither")
        return None
    host, separator, port = listen.rpartition(":")
    if not (separator and host and port.isdecimal() and int(port) <= _PORT_MAX) or host == "unix":
        raise ValueError(f"--console-listen is {listen!r}: give HOST:PORT; port 0 takes any")
    is_private = options.tls_certificate is not None or is_loopback(host)
    if not (is_private or options.console_plaintext):
        raise ValueError(
            f"--console-listen {listen}: passwords would cross the network in clear text: give"
            " --tls-certificate and --tls-key, listen at 127.0.0.1, or give --console-plaintext if"
            " a proxy before it ends TLS"
        )
    return ConsoleSettings(listen)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine for itself alone."""
    if host == _LOCAL_NAME:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
