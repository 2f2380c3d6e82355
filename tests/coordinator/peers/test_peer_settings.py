"""The flags about peers: their meaning, and their errors."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.app.config import parse
from coordinator.base.errors import ConfigError
from coordinator.peers.send_shares import SEND_BYTES_PER_S
from coordinator.peers.settings import PeerSettings, PeerTls, add_arguments, settings_of
from viewstamp.limits import STANDBYS_MAX
from viewstamp.routing import SERVICE_NAMES

LISTEN = "--peer-listen=10.0.0.1:7410"
PEERS = ["--peer=0=10.0.0.2:7410", "--peer=2=[fd00::3]:7410"]
TLS = ["--peer-tls-certificate=c.pem", "--peer-tls-key=k.pem", "--peer-tls-ca=a.pem"]
SERVICES = [f"--service={name}=unix:/{name}" for name in SERVICE_NAMES]


def settings(*flags: str, replica: int = 1, count: int = 3) -> PeerSettings | None:
    """Return the configuration that the flags give to a process of this replica."""
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
    """A replica does not link to itself: its own address among the peers is where others reach it,
    so one pod template serves all."""
    told, named = settings(LISTEN, *PEERS), settings(LISTEN, *PEERS, "--peer=1=host-1:7410")
    assert told is not None
    assert named == replace(told, own_address="host-1:7410")


def test_how_fast_peers_get_snapshot_files() -> None:
    """The flag says it for replicas of the founding and for those that join; 0 sets no limit."""
    for flags in ((LISTEN, *PEERS), (LISTEN, *PEERS, "--join")):
        for said, bytes_per_s in (((), SEND_BYTES_PER_S), (("0",), 0), (("1024",), 1024)):
            made = settings(*flags, *(f"--peer-snapshot-bytes-per-s={each}" for each in said))
            assert made is not None
            assert made.send_bytes_per_s == bytes_per_s
        with pytest.raises(ValueError, match="give at least 1024"):
            settings(*flags, "--peer-snapshot-bytes-per-s=1023")


STANDBYS = ["--standby=3=10.0.0.4:7410", "--standby=4=10.0.0.5:7410"]


def test_standbys_are_peers_of_all() -> None:
    """Voters have the addresses of the standbys, and each standby has those of all others."""
    voter = settings(LISTEN, *PEERS, *STANDBYS)
    standby = settings(LISTEN, *PEERS, "--peer=1=10.0.0.1:7410", *STANDBYS, replica=4)
    assert voter is not None and standby is not None
    assert list(voter.addresses) == [0, 2, 3, 4]
    assert list(standby.addresses) == [0, 1, 2, 3]
    assert (voter.standby_count, standby.standby_count) == (2, 2)


def test_a_process_is_the_standby_that_its_id_names() -> None:
    """An id beyond the voters is a standby's, if all are told of it."""
    voters = ["--peer=0=a:1", "--peer=1=b:1", "--peer=2=c:1"]
    flags = ["--data-directory=/data", *SERVICES, "--replica-count=3", LISTEN, *voters]

    told = parse([*flags, "--replica-id=3", "--standby=3=d:1"])

    assert (told.replica_id, told.replica_count, told.standby_count) == (3, 3, 1)
    with pytest.raises(ConfigError, match="--replica-id is 3: it counts from 0"):
        parse([*flags, "--replica-id=3"])


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
        ([LISTEN, *PEERS, STANDBYS[1]], "names [4]: beside 3 replicas the standbys are [3]"),
        ([LISTEN, *PEERS, "--standby=2=a:1"], "the standbys are [3]"),
        ([LISTEN, *PEERS, STANDBYS[0], STANDBYS[0]], "was given an address already"),
        ([LISTEN, *PEERS, "--standby=3"], "--standby 3 is '': give HOST:PORT"),
        (
            [LISTEN, *PEERS, *(f"--standby={i}=a:1" for i in range(3, 4 + STANDBYS_MAX))],
            f"{STANDBYS_MAX} standbys are possible",
        ),
    ],
)
def test_wrong_flags(flags: list[str], says: str) -> None:
    """The message names the flag and what would be right."""
    with pytest.raises(ValueError) as caught:
        settings(*flags)
    assert says in str(caught.value)


def test_a_lone_replica_may_listen_for_those_that_come_later() -> None:
    """With an address for others it can grow; without one it speaks to nobody."""
    assert settings(replica=0, count=1) is None
    assert settings(LISTEN, "--peer=0=a:7", replica=0, count=1) == PeerSettings(
        "10.0.0.1:7410", {}, None, own_address="a:7"
    )


def test_who_joins_names_whom_to_ask() -> None:
    """Its peers are asked about the cluster, so no counts are needed; one must be named."""
    joins = settings(LISTEN, "--join", "--peer=0=a:1", "--peer=7=b:2", replica=7, count=1)
    assert joins == PeerSettings("10.0.0.1:7410", {0: "a:1"}, None, own_address="b:2", joins=True)
    for flags, says in (
        (["--join", "--peer=0=a:1"], "--peer-listen is missing"),
        ([LISTEN, "--join"], "--join needs --peer"),
        ([LISTEN, "--join", "--peer=7=b:2"], "--join needs --peer"),
    ):
        with pytest.raises(ValueError, match=says):
            settings(*flags, replica=7, count=1)


def test_who_asks_for_its_id_asks_all_but_itself() -> None:
    """One template serves all pods: each leaves out its own address, whatever its id. No standby is
    counted from the ids that flags guess, and no id is needed."""
    flags = [LISTEN, "--join-as=pod-1:1", *(f"--peer={each}=pod-{each}:1" for each in range(3))]
    asks = settings(*flags, replica=0, count=1)
    assert asks == PeerSettings(
        *("10.0.0.1:7410", {0: "pod-0:1", 2: "pod-2:1"}, None),
        own_address="pod-1:1",
        joins=True,
        asks_id=True,
    )
    assert (asks.standbys_beside(1, 0), asks.said_addresses) == (0, {})
    assert parse(["--data-directory=/data", *SERVICES, *flags]).replica_count == 0
    for wrong, says in (
        (["--join-as=pod-1:1", "--peer=0=a:1"], "--peer-listen is missing"),
        ([LISTEN, "--join-as=pod-1", "--peer=0=a:1"], "--join-as is 'pod-1': give HOST:PORT"),
        ([LISTEN, "--join-as=a:1", "--peer=0=a:1"], "--join-as needs --peer"),
        ([*flags, "--standby=3=a:1"], "--standby and --join-as exclude each other"),
    ):
        with pytest.raises(ValueError, match=says):
            settings(*wrong, replica=0, count=1)


@pytest.mark.parametrize(
    ("replica", "named", "standbys"),
    [(0, (1, 2), 0), (0, (1, 2, 3), 1), (3, (0, 1, 2), 1), (3, (0, 1, 2, 4), 2), (1, (0,), 0)],
)
def test_who_joins_counts_the_standbys_of_the_founding(
    replica: int, named: tuple[int, ...], standbys: int
) -> None:
    """Its flags name all others by --peer. If a standby were not counted, its id would be given
    again to the next replica that is added."""
    flags = [f"--peer={each}=host-{each}:1" for each in named]
    joins = settings(LISTEN, "--join", *flags, replica=replica, count=1)
    assert joins is not None
    assert joins.standbys_beside(3, replica) == standbys


def test_flags_of_a_founder_count_its_standbys() -> None:
    """They name each standby as one."""
    told = settings(LISTEN, *PEERS, *STANDBYS)
    assert told is not None
    assert told.standbys_beside(3, 1) == 2


@pytest.mark.parametrize("flags", [PEERS[:1], TLS, ["--standby=1=a:1"]])
def test_flags_without_peers(flags: list[str]) -> None:
    """A cluster of one that is given peers was started with a flag missing."""
    with pytest.raises(ConfigError, match="need --replica-count of at least 2"):
        parse(["--data-directory=/data", *SERVICES, *flags])
