"""`viewstamp up` and `keygen`: they run replicas here, and need the extra `server`."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import ssl
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from viewstamp import limits
from viewstamp.cli import up_options
from viewstamp.cli.output import printed
from viewstamp.cli.settings import EXIT_REFUSED, EXIT_USAGE, Settings, fail, settings_of
from viewstamp.cli.up_configuration import certificate_elsewhere, check_elsewhere
from viewstamp.cluster import (
    ClusterFailed,
    LocalCluster,
    LocalReplicas,
    PreflightError,
    StartRefused,
    check_passed_on,
)
from viewstamp.cluster.local import DEFAULT_LISTEN
from viewstamp.cluster.preflight import write_secret
from viewstamp.configuration.settings_table import CONFIG_FLAG
from viewstamp.telemetry.settings import TELEMETRY_DIRECTORY, TRACE_RATIO, TelemetrySettings

# Hosts that stand for all interfaces of a machine.
WILDCARDS: Final = frozenset(("0.0.0.0", "[::]"))


def up(
    context: typer.Context,
    flags: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- FLAGS",
            help="Flags after `--` go to every coordinator; `python -m coordinator --help`"
            " explains them.",
            show_default=False,
        ),
    ] = None,
    data_directory: up_options.DataDirectory = Path("data"),
    listen: up_options.Listen = DEFAULT_LISTEN,
    trace_ratio: up_options.TraceRatio = TRACE_RATIO,
    otlp_endpoint: up_options.OtlpEndpoint = None,
    metrics_listen: up_options.MetricsListen = None,
    replicas: up_options.Replicas = 1,
    standbys: up_options.Standbys = 0,
    config: up_options.Config = None,
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    Starts the coordinator and the domain services, and restarts those that die. The processes write
    their logs to DATA_DIRECTORY/log and their traces to DATA_DIRECTORY/telemetry. With several
    replicas each has a directory of its own, DATA_DIRECTORY/replica-0 and so on, and listens one
    port above the one before. Flags after `--` are passed on to the coordinators: `viewstamp up
    --replicas 3 -- --snapshot-commands 1000 --log-level debug`. Exit codes: 0 stopped, 1 a process
    was given up, 2 it could not start.
    """
    settings = settings_of(context)
    telemetry = TelemetrySettings(
        directory=data_directory / TELEMETRY_DIRECTORY,
        trace_ratio=trace_ratio,
        otlp_endpoint=otlp_endpoint,
        metrics_listen=metrics_listen,
    )
    try:
        check_passed_on(flags or [], replicas + standbys)
        check_elsewhere(config, os.environ, replicas + standbys)
        file = [] if config is None else [f"{CONFIG_FLAG}={config.resolve()}"]
        shared: Any = {
            "telemetry": telemetry,
            "coordinator_arguments": [*file, *(flags or [])],
            "service_arguments": file,
        }
        cluster: LocalCluster | LocalReplicas = (
            LocalCluster(data_directory, listen, **shared)
            if replicas == 1 and standbys == 0
            else LocalReplicas(data_directory, replicas, listen, standbys=standbys, **shared)
        )
        certificate = _certificate_in(flags or []) or certificate_elsewhere(config, os.environ)
        asyncio.run(_serve(settings, cluster, certificate))
    except (PreflightError, StartRefused) as error:
        fail(settings, "CANNOT_START", str(error))
    except ClusterFailed as error:
        if settings.for_programs:
            fail(settings, "CLUSTER_FAILED", str(error), exit_code=EXIT_REFUSED)
        typer.echo(f"error: CLUSTER_FAILED: {error}", err=True)
        raise typer.Exit(EXIT_REFUSED) from error


async def _serve(
    settings: Settings, cluster: LocalCluster | LocalReplicas, certificate: Path | None
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
    try:
        await cluster.start()
        tasks.append(asyncio.create_task(_serve_until_failure(settings, cluster, certificate)))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await cluster.stop()
    if not settings.for_programs:
        typer.echo("stopped")


async def _serve_until_failure(
    settings: Settings, cluster: LocalCluster | LocalReplicas, certificate: Path | None
) -> None:
    await cluster.wait_ready()
    _announce(settings, cluster, certificate)
    await cluster.wait()


def _announce(
    settings: Settings, cluster: LocalCluster | LocalReplicas, certificate: Path | None
) -> None:
    password = cluster.root_password_path.resolve()
    members = cluster.replicas if isinstance(cluster, LocalReplicas) else [cluster]
    if printed(settings, _described_all(cluster, members)):
        return
    standbys = cluster.standby_addresses if isinstance(cluster, LocalReplicas) else []
    address = ",".join(member.address for member in members[: len(members) - len(standbys)])
    typer.echo(f"Viewstamp listens on {address}")
    if standbys:
        typer.echo(f"standbys listen on {','.join(standbys)}")
    if password.exists():
        typer.echo(f"root's first password is in {password}")
    else:  # of a restored cluster, or deleted once it was changed
        typer.echo("root has the password that it had")
    authority = settings.tls_ca or _own_authority(certificate)
    trust = f" --tls-ca '{authority.resolve()}'" if authority is not None else ""
    own = dialled(address)
    line = f"viewstamp login --address {own} --username root"
    line += f" --password-file '{password}'" if password.exists() else ""
    typer.echo(f"log in: {line}{trust}")
    if certificate is not None and authority is None:
        typer.echo(f"        with --tls-ca and the PEM file of the CA that signed {certificate}")
    logs = cluster.data_directory.resolve() / ("*/log" if len(members) > 1 else "log")
    typer.echo(f"logs:   {logs}    stop: Ctrl-C")


def dialled(addresses: str) -> str:
    """Return addresses for clients on this machine, because nobody can connect to 0.0.0.0."""
    ends = (address.rpartition(":") for address in addresses.split(","))
    return ",".join(
        f"{'localhost' if host in WILDCARDS else host}:{port}" for host, _, port in ends
    )


def _certificate_in(flags: Sequence[str]) -> Path | None:
    """Return the certificate that coordinators with these flags use for clients."""
    flag = "--tls-certificate"
    for given, following in pairwise([*flags, ""]):
        if given == flag:
            return Path(following)
        if given.startswith(f"{flag}="):
            return Path(given.removeprefix(f"{flag}="))
    return None


def _own_authority(certificate: Path | None) -> Path | None:
    """Return the certificate if it is self-signed, so that clients can use it as the authority."""
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=certificate)
    roots = (each["subject"] == each["issuer"] for each in context.get_ca_certs())
    return certificate if any(roots) else None


def _described_all(
    cluster: LocalCluster | LocalReplicas, members: Sequence[LocalCluster]
) -> dict[str, Any]:
    described = [_described(member) for member in members]
    shared = {"root_password_file": str(cluster.root_password_path.resolve())}
    if not isinstance(cluster, LocalReplicas):
        return {**described[0], **shared}
    count = len(cluster.addresses)
    parts = {"replicas": described[:count], "standbys": described[count:]}
    return {"data_directory": str(cluster.data_directory.resolve()), **parts, **shared}


def _described(cluster: LocalCluster) -> dict[str, Any]:
    return {
        "address": cluster.address,
        "data_directory": str(cluster.data_directory.resolve()),
        "pids": cluster.pids,
    }


def keygen(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(help="The key file to write; must not exist.", metavar="FILE")
    ],
) -> None:
    """Write a new cluster key: 64 hexadecimal digits, the same file for every replica."""
    settings = settings_of(context)
    try:
        write_secret(file, secrets.token_hex(limits.CLUSTER_KEY_BYTES) + "\n")
    except FileExistsError:
        text = f"{file} exists, and a key in use must never be replaced"
        fail(settings, "FILE_EXISTS", text, "choose another file", exit_code=EXIT_USAGE)
    except OSError as error:
        fail(settings, "CANNOT_WRITE", f"{file}: {error.strerror}", "choose another file")
    if not printed(settings, {"file": str(file)}):
        typer.echo(
            f"wrote a new cluster key to {file}: copy it to every replica, show it to nobody"
        )
