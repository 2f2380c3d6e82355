"""The coordinator's command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from coordinator.app import archive_settings, journal_settings
from coordinator.app.archive_settings import ArchiveSettings
from coordinator.app.flag_values import cluster_id_of, services_of
from coordinator.base.errors import ConfigError
from coordinator.console import settings as console
from coordinator.console.settings import ConsoleSettings
from coordinator.gateway.quotas import QuotaConfig
from coordinator.peers import settings as peers
from coordinator.peers.introduction import Introduction
from coordinator.peers.settings import PeerSettings
from coordinator.replica.space import RECORD_BYTES_MAX
from coordinator.scrub.settings import SCRUB_INTERVAL_MS, add_scrub_argument, scrub_interval_of
from coordinator.stages import service_settings
from viewstamp import limits, transports
from viewstamp.certificates.pem_files import PemFiles
from viewstamp.configuration import (
    ConfigurationError,
    ConfiguredProgram,
    Layered,
    prepare,
    settings_table,
)
from viewstamp.configuration.program import COORDINATOR_SECTION
from viewstamp.limits import REPLICAS_MAX
from viewstamp.routing import SERVICE_NAMES
from viewstamp.telemetry import settings as telemetry
from viewstamp.telemetry.settings import TelemetrySettings

P = ParamSpec("P")
Said = TypeVar("Said")

AUDIT_BYTES: Final = 128 * limits.MIB
AUDIT_BYTES_MIN: Final = 1 * limits.MIB
DEFAULT_LISTEN: Final = "127.0.0.1:7400"


@dataclass(frozen=True, slots=True)
class SnapshotConfig:
    """Where snapshots go, when one is due, and how long it is kept. A limit of 0 never triggers.

    Without `directories` they are in the data directory.
    """

    directories: tuple[Path, ...]
    commands: int
    journal_bytes: int
    interval_ms: int
    keep_last: int
    keep_daily: int
    reserve_bytes: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Config:
    """What one coordinator process was told."""

    data_directory: Path
    listen: str
    services: dict[str, str]
    service_tls: PemFiles | None
    """How this coordinator proves to services over a network who it is; None without TLS."""
    cluster_key: Path
    replica_id: int
    replica_count: int
    """Of those that voted when the cluster was founded; 0 if others have to tell."""
    standby_count: int
    cluster_id: bytes | None
    segment_bytes: int
    archive: Path | None
    retain_ms: int
    snapshots: SnapshotConfig
    tls_certificate: Path | None
    tls_key: Path | None
    log_level: str
    transport: str
    """What carries calls, by its name."""
    telemetry: TelemetrySettings
    advertise: str | None
    peers: PeerSettings | None
    """None for a cluster of one replica."""
    quotas: QuotaConfig
    audit_bytes: int
    """Of all files together; 0 keeps no audit log."""
    reflection: bool
    history: bool
    channelz: bool
    connections_max: int
    health_listen: str | None = None
    """Where probes find Health alone, in clear text."""
    console: ConsoleSettings | None = None
    archive_shipping: ArchiveSettings | None = None
    introduction: Introduction | None = None
    """What another replica has told of the cluster that this one was added to."""
    scrub_interval_ms: int = SCRUB_INTERVAL_MS
    """In which everything is to be read from the disk once; 0 never reads it."""
    record_bytes_max: int = RECORD_BYTES_MAX
    """The largest record for which the journal keeps room. No flag sets it: a smaller one fits only
    a composition whose commands are all small."""
    ring_bytes: int = 0
    """Of the ring that the journal is; 0 for one in segments."""

    @property
    def written_directories(self) -> dict[str, Path]:
        """The data directory, and those of snapshot copies where they are elsewhere, by name."""
        copies = {f"copy-{number}": path for number, path in enumerate(self.snapshots.directories)}
        return {"data": self.data_directory, **copies}


def parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m coordinator`."""
    result = argparse.ArgumentParser(
        prog="python -m coordinator",
        # What begins like a flag that somebody else gives would stand for it.
        allow_abbrev=False,
        description="Run the log, the mux and the public gRPC server of one replica. Exit codes: 0"
        " stopped, 1 failed while running (restart it), 2 wrong flags or environment (do"
        " not restart).",
    )
    add = result.add_argument
    add("--data-directory", type=Path, required=True, help="journal, superblock, secrets")
    add(
        "--listen",
        default=DEFAULT_LISTEN,
        help="HOST:PORT for clients; port 0 takes a free one. `0.0.0.0` and `[::]` are all"
        " addresses of the machine, of both versions of the protocol",
    )
    add(
        "--advertise",
        metavar="HOST:PORT",
        help="address at which clients reach --listen, if it differs",
    )
    add(
        "--service",
        action="append",
        default=[],
        metavar="NAME=TARGET",
        help=f"address of a domain service; give it once for each of {', '.join(SERVICE_NAMES)}",
    )
    add(
        "--cluster-key",
        type=Path,
        help="file of the cluster's secret; default: cluster.key in the data directory",
    )
    add("--replica-id", type=int, default=0, help="number of this replica; never changes")
    add("--replica-count", type=int, default=1, help="how many replicas found the cluster")
    add("--cluster-id", help="32 hexadecimal digits; a directory of another cluster is refused")
    journal_settings.add_arguments(result)
    _add_snapshots(result)
    _add_quotas(result)
    _add_disclosure(result)
    console.add_arguments(result)
    archive_settings.add_arguments(result)
    add(
        "--connections-max",
        type=int,
        default=limits.CONNECTIONS_MAX,
        help="connections of clients at the same time; further ones are closed at once"
        " (default: %(default)s)",
    )
    add("--tls-certificate", type=Path, help="PEM chain; needs --tls-key")
    add("--tls-key", type=Path, help="PEM private key; needs --tls-certificate")
    add(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="the least level that is logged",
    )
    transports.add_argument(result)
    service_settings.add_arguments(result)
    add_scrub_argument(result)
    peers.add_arguments(result)
    telemetry.add_arguments(result)
    settings_table.add_arguments(result)
    return result


def _add_snapshots(result: argparse.ArgumentParser) -> None:
    group = result.add_argument_group("snapshots", "A trigger of 0 is off.")
    add = group.add_argument
    add(
        "--snapshot-directory",
        action="append",
        type=Path,
        default=[],
        help=f"directory for one of {limits.SNAPSHOT_COPIES} copies, best on a disk of its own;"
        f" give it {limits.SNAPSHOT_COPIES} times; default: snapshots/copy-N in the data directory",
    )
    add(
        "--snapshot-commands",
        type=int,
        default=limits.SNAPSHOT_COMMANDS,
        help="commands after which a snapshot is taken",
    )
    add(
        "--snapshot-journal-bytes",
        type=int,
        default=limits.SNAPSHOT_JOURNAL_BYTES,
        help="journal bytes after which a snapshot is taken",
    )
    add(
        "--snapshot-interval-ms",
        type=int,
        default=limits.SNAPSHOT_INTERVAL_MS,
        help="time after which a snapshot is taken, if anything changed",
    )
    add(
        "--snapshot-keep-last",
        type=int,
        default=limits.SNAPSHOT_KEEP_LAST,
        help="number of completed snapshots that are kept; at least 1",
    )
    add(
        "--snapshot-keep-daily",
        type=int,
        default=limits.SNAPSHOT_KEEP_DAILY,
        help="number of days of each of which the newest snapshot is kept",
    )
    add(
        "--snapshot-reserve-bytes",
        type=int,
        default=limits.SNAPSHOT_RESERVE_BYTES_MIN,
        help="space reserved in each directory of copies, so that a full disk does not stop a"
        " snapshot",
    )
    add(
        "--snapshot-deadline-ms",
        type=int,
        default=limits.SNAPSHOT_DEADLINE_MS,
        help="a snapshot that is not durable by then has failed",
    )


def _add_quotas(result: argparse.ArgumentParser) -> None:
    group = result.add_argument_group(
        "write quotas", "Rates per second; 0 means no limit. A caller above a rate is told to wait."
    )
    for name, default, what in (
        ("commands-per-user", limits.QUOTA_COMMANDS_PER_USER, "commands of one user"),
        ("bytes-per-user", limits.QUOTA_BYTES_PER_USER, "bytes of commands of one user"),
        ("commands", 0, "commands of all users together"),
        ("bytes", 0, "bytes of commands of all users together"),
    ):
        group.add_argument(
            f"--quota-{name}", type=int, default=default, help=f"{what} (default: {default})"
        )
    group.add_argument(
        "--quota-burst-ms",
        type=int,
        default=limits.QUOTA_BURST_MS,
        help="a caller may send at once what a pause of this length has saved up",
    )


def _add_disclosure(result: argparse.ArgumentParser) -> None:
    group = result.add_argument_group("audit and disclosure")
    group.add_argument(
        "--audit-bytes",
        type=int,
        default=AUDIT_BYTES,
        help="room for the audit log in the data directory, audit/; 0 keeps none"
        f" (default: {AUDIT_BYTES})",
    )
    group.add_argument(
        "--no-reflection",
        action="store_true",
        help="do not list the methods to callers without a token",
    )
    group.add_argument(
        "--no-history",
        action="store_true",
        help="refuse reads of earlier revisions, for which another process needs as much memory as"
        " all services",
    )
    group.add_argument(
        "--channelz",
        action="store_true",
        help="show connections (addresses, counts) to callers without a token; for debugging",
    )
    group.add_argument(
        "--health-listen",
        metavar="HOST:PORT",
        help="serve gRPC Health there, in clear text, and nothing else: for probes",
    )


def _audit_bytes(options: argparse.Namespace) -> int:
    size: int = options.audit_bytes
    if size and size < AUDIT_BYTES_MIN:
        raise ConfigError(
            f"--audit-bytes {size}: give at least {AUDIT_BYTES_MIN}, or 0 to keep no audit log"
        )
    return size


def _connections_max(most: int) -> int:
    if not 1 <= most <= limits.OPEN_FILES_MAX // 2:
        raise ConfigError(
            f"--connections-max {most}: give 1 to {limits.OPEN_FILES_MAX // 2}, half of the files"
            " that a coordinator may open"
        )
    return most


def _quotas(options: argparse.Namespace) -> QuotaConfig:
    values = {}
    for field in fields(QuotaConfig):
        flag = "--quota-" + field.name.replace("_", "-")
        values[field.name] = getattr(options, f"quota_{field.name}")
        if values[field.name] < (1 if field.name == "burst_ms" else 0):
            raise ConfigError(f"{flag} is {values[field.name]}: give 0 for no limit, or more")
    return QuotaConfig(**values)


def program() -> ConfiguredProgram:
    """Return the coordinator as a program with settings."""
    services = tuple(f"--service={name}=unix:{name}.sock" for name in SERVICE_NAMES)
    return ConfiguredProgram(
        (COORDINATOR_SECTION,),
        parser(),
        _validate,
        {"--data-directory": ("--data-directory=data",), "--service": services},
    )


def _validate(options: argparse.Namespace) -> None:
    """Raise ValueError where a start would raise ConfigError or UnknownTransport."""
    try:
        _config_of(options)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    transports.check(options.transport)


def parse(arguments: list[str], environment: Mapping[str, str] = os.environ) -> Config:
    """Return the configuration of flags, variables and the file that one of them names.

    Raises ConfigError, OSError; exits with 2 on unknown flags.
    """
    configured = program()
    try:
        found: Layered = prepare(configured, arguments, environment)
    except ConfigurationError as error:
        raise ConfigError(str(error)) from error
    try:
        return _config_of(configured.parser.parse_args(found.arguments))
    except ConfigError as error:
        raise ConfigError(found.explained(str(error))) from error


def _config_of(options: argparse.Namespace) -> Config:
    """Return what the options say. Raises ConfigError."""
    standby_count = _check_replicas(options)
    services = services_of(options.service)
    journal = _said(journal_settings.settings_of, options)
    if (options.tls_certificate is None) != (options.tls_key is None):
        raise ConfigError("--tls-certificate and --tls-key go together: give both or neither")
    return Config(
        data_directory=options.data_directory,
        listen=_listen(options.listen),
        services=services,
        service_tls=_said(service_settings.files_of, options, services),
        cluster_key=options.cluster_key or options.data_directory / "cluster.key",
        replica_id=options.replica_id,
        replica_count=0 if peers.joins(options) else options.replica_count,
        standby_count=standby_count,
        cluster_id=cluster_id_of(options.cluster_id),
        segment_bytes=journal.segment_bytes,
        archive=journal.archive,
        retain_ms=journal.retain_ms,
        ring_bytes=journal.ring_bytes,
        snapshots=_snapshots(options),
        tls_certificate=options.tls_certificate,
        tls_key=options.tls_key,
        log_level=options.log_level,
        transport=options.transport,
        telemetry=_said(telemetry.settings_of, options),
        advertise=options.advertise,
        peers=_peers(options, journal.ring_bytes),
        quotas=_quotas(options),
        audit_bytes=_audit_bytes(options),
        reflection=not options.no_reflection,
        history=not options.no_history,
        channelz=options.channelz,
        connections_max=_connections_max(options.connections_max),
        health_listen=options.health_listen,
        console=_said(console.settings_of, options),
        archive_shipping=_said(archive_settings.settings_of, options),
        scrub_interval_ms=_said(scrub_interval_of, options),
    )


def _said(read: Callable[P, Said], *args: P.args, **kwargs: P.kwargs) -> Said:
    """Return what the flags of another part say. Raises ConfigError."""
    try:
        return read(*args, **kwargs)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _peers(options: argparse.Namespace, ring_bytes: int) -> PeerSettings | None:
    found = _said(peers.settings_of, options, options.replica_id, options.replica_count)
    return None if found is None else replace(found, journal_ring_bytes=ring_bytes)


def _check_replicas(options: argparse.Namespace) -> int:
    """Return how many standbys there are."""
    replica_id, replica_count = options.replica_id, options.replica_count
    if peers.joins(options):
        if replica_id < 0:
            raise ConfigError(f"--replica-id is {replica_id}: give the id of the added replica")
        return 0
    if not 1 <= replica_count <= REPLICAS_MAX:
        raise ConfigError(f"--replica-count is {replica_count}: 1 to {REPLICAS_MAX} are possible")
    standby_count = len(_said(peers.standby_addresses, options, replica_count))
    if not 0 <= replica_id < replica_count + standby_count:
        raise ConfigError(
            f"--replica-id is {replica_id}: it counts from 0 to --replica-count - 1, or is that of"
            " a --standby"
        )
    return standby_count


def _listen(text: str) -> str:
    host, separator, port = text.rpartition(":")
    if not (separator and host and port.isdecimal()) or host == "unix":
        raise ConfigError(f"--listen is {text!r}: give HOST:PORT, for example {DEFAULT_LISTEN}")
    return text


def _snapshots(options: argparse.Namespace) -> SnapshotConfig:
    directories = tuple(options.snapshot_directory)
    different = {path.absolute() for path in directories}
    if directories and not len(different) == len(directories) == limits.SNAPSHOT_COPIES:
        raise ConfigError(
            f"--snapshot-directory names {', '.join(map(str, directories))}: give it"
            f" {limits.SNAPSHOT_COPIES} times, each another directory, or not at all"
        )
    if options.snapshot_keep_last < 1:
        raise ConfigError(f"--snapshot-keep-last is {options.snapshot_keep_last}: keep at least 1")
    if options.snapshot_deadline_ms < 1:
        raise ConfigError(
            f"--snapshot-deadline-ms is {options.snapshot_deadline_ms}: give at least 1"
        )
    numbers = ("commands", "journal_bytes", "interval_ms", "keep_daily", "reserve_bytes")
    for name in numbers:
        if getattr(options, f"snapshot_{name}") < 0:
            flag = "--snapshot-" + name.replace("_", "-")
            raise ConfigError(f"{flag} is {getattr(options, f'snapshot_{name}')}: give 0 or more")
    return SnapshotConfig(
        directories=directories,
        keep_last=options.snapshot_keep_last,
        deadline_ms=options.snapshot_deadline_ms,
        **{name: getattr(options, f"snapshot_{name}") for name in numbers},
    )
