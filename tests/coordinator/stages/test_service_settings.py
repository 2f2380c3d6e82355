"""Which targets of services a coordinator reaches in clear text, and which behind TLS."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import pytest

from coordinator.stages.channel import CONNECT_NETWORK_MS, RECONNECT_DELAY_MIN_MS, channel_options
from coordinator.stages.service_settings import add_arguments, files_of

TLS = ("--service-tls-certificate=c", "--service-tls-key=k", "--service-tls-ca=a")
NEAR = {"users": "unix:/run/users.sock", "streams": "127.0.0.1:7442"}
SOCKETS = {"users": "unix:/run/users.sock", "streams": "unix:/run/streams.sock"}
FAR = {"users": "unix:/run/users.sock", "streams": "viewstamp-services-0.viewstamp-services:7442"}


def options(*arguments: str) -> argparse.Namespace:
    """Return the options of a coordinator."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "services", "is_encrypted"),
    [
        ((), NEAR, False),
        ((), SOCKETS, False),
        (("--service-plaintext",), FAR, False),
        (TLS, FAR, True),
        (TLS, NEAR, True),
    ],
)
def test_what_is_reached(
    arguments: tuple[str, ...], services: Mapping[str, str], is_encrypted: bool
) -> None:
    """This machine needs no TLS, and a network has it unless the operator says otherwise."""
    assert (files_of(options(*arguments), services) is not None) is is_encrypted


@pytest.mark.parametrize(
    ("arguments", "services", "complaint"),
    [
        ((), FAR, "--service streams=viewstamp-services-0.* reached over a network"),
        (TLS[1:], FAR, "go together"),
        ((*TLS, "--service-plaintext"), FAR, "exclude each other"),
        (TLS, SOCKETS, "each --service is a unix socket"),
    ],
)
def test_what_is_refused(
    arguments: tuple[str, ...], services: Mapping[str, str], complaint: str
) -> None:
    """Clear text over a network, halves of a certificate, and TLS for nobody are refused."""
    with pytest.raises(ValueError, match=complaint):
        files_of(options(*arguments), services)


@pytest.mark.parametrize(
    ("target", "attempt_ms"),
    [("unix:/run/users.sock", RECONNECT_DELAY_MIN_MS), ("10.0.0.1:7441", CONNECT_NETWORK_MS)],
)
def test_a_network_has_time_for_handshakes(target: str, attempt_ms: int) -> None:
    """An attempt to connect over a network may take round trips, and one on a socket is short."""
    assert dict(channel_options(target))["grpc.min_reconnect_backoff_ms"] == attempt_ms
    assert CONNECT_NETWORK_MS >= 1_000
