"""The flags about peers: what is told, and what is wrong with what is told."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from coordinator.config import ConfigError, parse
from coordinator.peers.settings import PeerSettings, PeerTls, add_arguments, settings_of

LISTEN = "--peer-listen=10.0.0.1:7410"
PEERS = ["--peer=0=10.0.0.2:7410", "--peer=2=[fd00::3]:7410"]
TLS = ["--peer-tls-certificate=c.pem", "--peer-tls-key=k.pem", "--peer-tls-ca=a.pem"]
SERVICES = [f"--service={name}=unix:/{name}" for name in ("users", "streams", "consumer_groups")]


def settings(*flags: str, replica: int = 1, count: int = 3) -> PeerSettings | None:
    """Return what a process of this replica is told by the flags."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return settings_of(parser.parse_args(flags), replica, count)


def test_all_peers_are_named() -> None:
    """Each other replica has its address; certificates are optional."""
    addresses = {0: "10.0.0.2:7410", 2: "[fd00::3]:7410"}
    assert settings(LISTEN, *PEERS) == PeerSettings("10.0.0.1:7410", addresses, None)
    secured = settings(LISTEN, *PEERS, *TLS)
    assert secured is not None
    assert secured.tls == PeerTls(Path("c.pem"), Path("k.pem"), Path("a.pem"))


def test_all_replicas_can_be_given_the_same_flags() -> None:
    """An own address among the peers' is left out, so that one pod template serves all replicas."""
    told = settings(LISTEN, *PEERS, "--peer=1=10.0.0.1:7410")
    assert told == settings(LISTEN, *PEERS)


def test_one_replica_has_no_peers() -> None:
    """A cluster of one needs no flag, and its configuration has no peers."""
    assert settings(replica=0, count=1) is None
    assert parse(["--data-directory=/data", *SERVICES]).peers is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (PEERS, "--peer-listen is missing: 3 replicas"),
        (["--peer-listen=7410", *PEERS], "--peer-listen is '7410': give HOST:PORT"),
        ([LISTEN, "--peer=0"], "--peer 0 is '': give HOST:PORT"),
        ([LISTEN, "--peer=zero=a:1"], "write ID=HOST:PORT"),
        ([LISTEN, "--peer=0=unix:/run/socket"], "give HOST:PORT"),
        ([LISTEN, *PEERS, "--peer=0=10.0.0.4:7410"], "was given an address already"),
        ([LISTEN, PEERS[0]], "names replicas [0]: give each of [0, 2] once"),
        ([LISTEN, *PEERS, "--peer=3=10.0.0.4:7410"], "names replicas [0, 2, 3]"),
        ([LISTEN, PEERS[0], "--peer=1=10.0.0.1:7410"], "names replicas [0, 1]"),
        ([LISTEN, *PEERS, *TLS[:2]], "go together"),
    ],
)
def test_wrong_flags(flags: list[str], says: str) -> None:
    """The message names the flag and what would be right."""
    with pytest.raises(ValueError) as caught:
        settings(*flags)
    assert says in str(caught.value)


@pytest.mark.parametrize("flags", [[LISTEN], PEERS[:1], TLS])
def test_flags_without_peers(flags: list[str]) -> None:
    """A cluster of one that is told of peers was started with a flag missing."""
    with pytest.raises(ConfigError, match="need --replica-count of at least 2"):
        parse(["--data-directory=/data", *SERVICES, *flags])
