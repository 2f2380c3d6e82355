"""Flags: where this replica listens for its peers, where they listen, and their certificates."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from viewstamp.limits import STANDBYS_MAX


@dataclass(frozen=True, slots=True)
class PeerTls:
    """PEM files: the replica's chain, its key, and the authority of all replicas."""

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """One process's settings about its peers.

    `addresses` are those of all other replicas, by id; the standbys come last.
    """

    listen: str
    addresses: Mapping[int, str]
    tls: PeerTls | None
    standby_count: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags about peers to the coordinator's parser."""
    group = parser.add_argument_group("peers", "For clusters of several replicas.")
    add = group.add_argument
    add(
        "--peer-listen",
        metavar="HOST:PORT",
        help="address for the other replicas; never the public port",
    )
    add(
        "--peer",
        action="append",
        default=[],
        metavar="ID=HOST:PORT",
        help="--peer-listen address of another replica; give it once for each. This replica's own"
        " address may be given, too, so that all replicas can have the same flags",
    )
    add(
        "--standby",
        action="append",
        default=[],
        metavar="ID=HOST:PORT",
        help="--peer-listen address of a standby, which is a replica without a vote; give it once"
        " for each, with ids from --replica-count on, the same on every replica. A process whose"
        " --replica-id is among these ids is that standby",
    )
    add(
        "--peer-tls-certificate",
        type=Path,
        help="PEM chain that names replica-<ID>.viewstamp; with key and ca: mutual TLS",
    )
    add("--peer-tls-key", type=Path, help="PEM private key of that certificate")
    add("--peer-tls-ca", type=Path, help="PEM certificate of the authority of all replicas")


def settings_of(
    options: argparse.Namespace, replica_id: int, replica_count: int
) -> PeerSettings | None:
    """Return the settings, None for a cluster of one. Raises ValueError."""
    tls = _tls(options)
    if replica_count == 1:
        if options.peer_listen or options.peer or options.standby or tls:
            raise ValueError(
                "flags about peers and standbys need --replica-count of at least 2: a lone replica"
                " speaks to nobody"
            )
        return None
    if options.peer_listen is None:
        raise ValueError(f"--peer-listen is missing: {replica_count} replicas must be reachable")
    _check_address("--peer-listen", options.peer_listen)
    standbys = standby_addresses(options, replica_count)
    voters = _voters(options.peer, replica_id, replica_count)
    others = {replica: each for replica, each in standbys.items() if replica != replica_id}
    return PeerSettings(options.peer_listen, voters | others, tls, len(standbys))


def standby_addresses(options: argparse.Namespace, replica_count: int) -> dict[int, str]:
    """Return where the standbys listen for the others, by id. Raises ValueError."""
    found = _addresses("--standby", options.standby)
    if len(found) > STANDBYS_MAX:
        raise ValueError(
            f"--standby is given {len(found)} times: {STANDBYS_MAX} standbys are possible"
        )
    due = list(range(replica_count, replica_count + len(found)))
    if sorted(found) != due:
        raise ValueError(
            f"--standby names {sorted(found)}: beside {replica_count} replicas the standbys are"
            f" {due}"
        )
    return {replica: found[replica] for replica in due}


def _voters(values: Sequence[str], replica_id: int, replica_count: int) -> dict[int, str]:
    addresses = _addresses("--peer", values)
    due = set(range(replica_count)) - {replica_id}
    if addresses.keys() - {replica_id} != due:
        raise ValueError(
            f"--peer names replicas {sorted(addresses)}: give each of {sorted(due)} once"
        )
    return {replica: addresses[replica] for replica in sorted(due)}


def _addresses(flag: str, values: Sequence[str]) -> dict[int, str]:
    addresses: dict[int, str] = {}
    for value in values:
        number, _, address = value.partition("=")
        if not number.isdecimal():
            raise ValueError(f"{flag} {value}: write ID=HOST:PORT")
        _check_address(f"{flag} {number}", address)
        if int(number) in addresses:
            raise ValueError(f"{flag} {value}: replica {number} was given an address already")
        addresses[int(number)] = address
    return addresses


def _check_address(flag: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()) or host == "unix":
        raise ValueError(f"{flag} is {address!r}: give HOST:PORT, for example 10.0.0.1:7410")


def _tls(options: argparse.Namespace) -> PeerTls | None:
    files = (options.peer_tls_certificate, options.peer_tls_key, options.peer_tls_ca)
    if all(files):
        return PeerTls(*files)
    if any(files):
        raise ValueError(
            "--peer-tls-certificate, --peer-tls-key and --peer-tls-ca go together: give all three"
            " or none"
        )
    return None
