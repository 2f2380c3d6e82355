"""Hellos of replicas that are none of this cluster."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from coordinator.peers.hello import WIRE_VERSION, Hello, HelloRefusal, encode_hello
from coordinator.peers.listener import Listener
from tests.coordinator.peers.test_hello_race import OWN, FakePeerEvents

CALLS = 3


class UnknownCaller:
    """Somebody with an address."""

    def peer(self) -> str:
        """Return it, as gRPC writes it."""
        return "ipv4:127.0.0.1:1"


def test_a_caller_that_tries_again_and_again_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No replica of that number is known, so its reason is remembered for all of them."""
    listener = Listener(OWN, FakePeerEvents(), lambda: 0, certificate_names=lambda _: None)
    hello = encode_hello(Hello(OWN.cluster_id, WIRE_VERSION, 7, 3, b"d" * 32, b"n" * 16, 0))
    caller: Any = UnknownCaller()
    with caplog.at_level(logging.WARNING):
        refusals = [listener.refusal_of(hello, caller) for _ in range(CALLS)]
    assert {each.reason for each in refusals if each} == {HelloRefusal.UNKNOWN_REPLICA}
    assert listener.refused == {HelloRefusal.UNKNOWN_REPLICA.value: CALLS}
    assert [each.message for each in caplog.records] == ["a hello was refused"]
