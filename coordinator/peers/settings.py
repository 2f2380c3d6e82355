"""Flags: where this replica listens for its peers, where they listen, and their certificates."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.peers.send_shares import SEND_BYTES_PER_S, SEND_BYTES_PER_S_MIN
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

    `addresses` are those of all other replicas, by id; the standbys come last. Where replicas were
    added since, they are what flags say, and the log says the rest. `own_address` is where others
    reach this one, if flags say it. `joins`: the cluster runs already, and those at `addresses` are
    asked about it. `asks_id`: they are asked for the id of this replica, too. The ids of
    `addresses` are then a guess, which gives way to whatever the log says. `send_bytes_per_s` is
    what the others get of snapshot files here, in all; 0 sets no limit. `journal_ring_bytes` is the
    size of the ring that every replica's journal is; 0 for segments.
    """

    listen: str
    addresses: Mapping[int, str]
    tls: PeerTls | None
    standby_count: int = 0
    own_address: str = ""
    joins: bool = False
    asks_id: bool = False
    send_bytes_per_s: int = SEND_BYTES_PER_S
    journal_ring_bytes: int = 0

    @property
    def said_addresses(self) -> Mapping[int, str]:
        """The addresses that go before what the log says."""
        return {} if self.asks_id else self.addresses

    def standbys_beside(self, replica_count: int, replica_id: int) -> int:
        """Return how many standbys founded the cluster beside so many voters.

        A replica that joins is told by whichever flags: those with ids beyond the voters, and
        itself. It matters in the first epoch alone.
        """
        if not self.joins or self.asks_id:
            return self.standby_count
        return max(0, max((replica_id, *self.addresses)) + 1 - replica_count)


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
        "--join",
        action="store_true",
        help="the cluster runs already: with an empty data directory, ask the replicas at the"
        " --peer addresses about it, and never found one. For replicas that were added by"
        " `viewstamp replica add`, and for any replica of a cluster whose members have changed",
    )
    add(
        "--join-as",
        metavar="HOST:PORT",
        help="like --join, for a replica whose id is asked for, too: the one that `viewstamp"
        " replica add` gave to this address. The data directory keeps it, and --replica-id is not"
        " looked at. --peer only says whom to ask: once members have changed, the log says who is"
        " where",
    )
    add(
        "--peer-tls-certificate",
        type=Path,
        help="PEM chain that names replica-<ID>.viewstamp; with key and ca: mutual TLS",
    )
    add("--peer-tls-key", type=Path, help="PEM private key of that certificate")
    add("--peer-tls-ca", type=Path, help="PEM certificate of the authority of all replicas")
    add(
        "--peer-snapshot-bytes-per-s",
        type=int,
        default=SEND_BYTES_PER_S,
        metavar="BYTES",
        help="bytes of snapshot files that other replicas get from this one in a second, in all, so"
        " that commands do not wait for them; 0 sets no limit",
    )


def joins(options: argparse.Namespace) -> bool:
    """Return whether flags say that the cluster runs already."""
    return bool(options.join or options.join_as)


def settings_of(
    options: argparse.Namespace, replica_id: int, replica_count: int
) -> PeerSettings | None:
    """Return the settings, None for a cluster of one. Raises ValueError."""
    tls = _tls(options)
    if options.join_as:
        return _joining_as(options, tls)
    if options.join:
        return _joining(options, replica_id, tls)
    if replica_count == 1 and (options.peer_listen is None or options.standby):
        if options.peer or options.standby or tls:
            raise ValueError(
                "flags about peers and standbys need --replica-count of at least 2: a lone replica"
                " speaks to nobody, unless it has --peer-listen for replicas that are added later"
            )
        return None
    if options.peer_listen is None:
        raise ValueError(f"--peer-listen is missing: {replica_count} replicas must be reachable")
    _check_address("--peer-listen", options.peer_listen)
    standbys = standby_addresses(options, replica_count)
    voters = _voters(options.peer, replica_id, replica_count)
    others = {replica: each for replica, each in standbys.items() if replica != replica_id}
    return PeerSettings(
        options.peer_listen,
        voters | others,
        tls,
        len(standbys),
        _own_address(options, replica_id),
        send_bytes_per_s=_send_bytes_per_s(options),
    )


def _joining(options: argparse.Namespace, replica_id: int, tls: PeerTls | None) -> PeerSettings:
    """Return the settings of a replica that asks others about the cluster. Raises ValueError."""
    if options.peer_listen is None:
        raise ValueError("--peer-listen is missing: the others must reach a replica that joins")
    _check_address("--peer-listen", options.peer_listen)
    named = _addresses("--peer", options.peer) | _addresses("--standby", options.standby)
    seeds = {replica: address for replica, address in named.items() if replica != replica_id}
    if not seeds:
        raise ValueError("--join needs --peer ID=HOST:PORT of at least one other replica to ask")
    return PeerSettings(
        options.peer_listen,
        seeds,
        tls,
        own_address=_own_address(options, replica_id),
        joins=True,
        send_bytes_per_s=_send_bytes_per_s(options),
    )


def _send_bytes_per_s(options: argparse.Namespace) -> int:
    """Return what peers may be sent of snapshot files, 0 for no limit. Raises ValueError."""
    bytes_per_s: int = options.peer_snapshot_bytes_per_s
    if bytes_per_s and bytes_per_s < SEND_BYTES_PER_S_MIN:
        raise ValueError(
            f"--peer-snapshot-bytes-per-s is {bytes_per_s}: give at least {SEND_BYTES_PER_S_MIN},"
            " or 0 for no limit"
        )
    return bytes_per_s


def _joining_as(options: argparse.Namespace, tls: PeerTls | None) -> PeerSettings:
    """Return the settings of a replica that asks others for its id, too. Raises ValueError."""
    if options.peer_listen is None:
        raise ValueError("--peer-listen is missing: the others must reach a replica that joins")
    if options.standby:
        raise ValueError("--standby and --join-as exclude each other: the log names the standbys")
    _check_address("--peer-listen", options.peer_listen)
    _check_address("--join-as", options.join_as)
    named = _addresses("--peer", options.peer)
    seeds = {replica: each for replica, each in named.items() if each != options.join_as}
    if not seeds:
        raise ValueError("--join-as needs --peer ID=HOST:PORT of at least one other replica to ask")
    return PeerSettings(
        options.peer_listen, seeds, tls, own_address=options.join_as, joins=True, asks_id=True
    )


def _own_address(options: argparse.Namespace, replica_id: int) -> str:
    """Return where flags say that others reach this replica; empty if they do not."""
    named = _addresses("--peer", options.peer) | _addresses("--standby", options.standby)
    return named.get(replica_id, "")


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
