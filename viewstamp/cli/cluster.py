"""`viewstamp up`, `keygen`, `status` and `cluster`."""

from __future__ import annotations

import asyncio
import secrets
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from viewstamp import limits
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.cli.options import Yes, confirm
from viewstamp.cli.output import plain, print_json, print_table
from viewstamp.cli.session import ask_here, run
from viewstamp.cli.settings import EXIT_REFUSED, EXIT_USAGE, Settings, fail, settings_of
from viewstamp.client import Client
from viewstamp.cluster import (
    ClusterFailed,
    LocalCluster,
    LocalReplicas,
    PreflightError,
    check_passed_on,
)
from viewstamp.cluster.local import DEFAULT_LISTEN
from viewstamp.cluster.preflight import write_secret
from viewstamp.telemetry.settings import TELEMETRY_DIRECTORY, TRACE_RATIO, TelemetrySettings

# These fit into 80 columns.
REPLICA_COLUMNS = ("replica_id", "role", "status", "commit", "lag", "link", "address")
WIDE_REPLICA_COLUMNS = (
    *("replica_id", "role", "status", "view", "op", "commit", "retired", "lag", "generation"),
    *("address", "heard_ms", "link", "feature_level_max", "unfit"),
)
SERVICE_COLUMNS = ("stage", "connected", "settled_revision", "item_log_bytes", "restarts")
ALARM_COLUMNS = ("kind", "message", "since")


def up(
    context: typer.Context,
    flags: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- FLAGS",
            help="Behind `--`: flags for the coordinator, for each one if there are several;"
            " `python -m coordinator --help` explains them.",
            show_default=False,
        ),
    ] = None,
    data_directory: Annotated[
        Path, typer.Option(help="Journal, secrets, logs; created if it is not there.")
    ] = Path("data"),
    listen: Annotated[
        str, typer.Option(help="HOST:PORT for clients; port 0 takes a free one.")
    ] = DEFAULT_LISTEN,
    trace_ratio: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Of commands, so many are traced: 0 to 1.")
    ] = TRACE_RATIO,
    otlp_endpoint: Annotated[
        str | None, typer.Option(help="Send traces to a collector too: http://HOST:PORT.")
    ] = None,
    metrics_listen: Annotated[
        str | None, typer.Option(help="HOST:PORT of the coordinator's Prometheus page.")
    ] = None,
    replicas: Annotated[
        int, typer.Option(min=1, max=limits.REPLICAS_MAX, help="Four processes each.")
    ] = 1,
    standbys: Annotated[
        int,
        typer.Option(
            min=0,
            max=limits.STANDBYS_MAX,
            help="Replicas without a vote, beside at least 2 that have one; four processes each.",
        ),
    ] = 0,
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    Starts the coordinator and the three domain services, and restarts what dies. The processes
    write their logs to DATA_DIRECTORY/log and their traces to DATA_DIRECTORY/telemetry. With
    several replicas each has a directory of its own, DATA_DIRECTORY/replica-0 and so on, and
    listens one port above the one before. What stands behind `--` is passed on to the coordinators:
    `viewstamp up --replicas 3 -- --snapshot-commands 1000 --log-level debug`. Exit codes: 0
    stopped, 1 a process was given up, 2 it could not start.
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
        shared: Any = {"telemetry": telemetry, "coordinator_arguments": flags or []}
        cluster: LocalCluster | LocalReplicas = (
            LocalCluster(data_directory, listen, **shared)
            if replicas == 1 and standbys == 0
            else LocalReplicas(data_directory, replicas, listen, standbys=standbys, **shared)
        )
        asyncio.run(_serve(settings, cluster))
    except PreflightError as error:
        fail(settings, "CANNOT_START", str(error))
    except ClusterFailed as error:
        if settings.as_json:
            fail(settings, "CLUSTER_FAILED", str(error), exit_code=EXIT_REFUSED)
        typer.echo(f"error: CLUSTER_FAILED: {error}", err=True)
        raise typer.Exit(EXIT_REFUSED) from error


async def _serve(settings: Settings, cluster: LocalCluster | LocalReplicas) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
    try:
        await cluster.start()
        tasks.append(asyncio.create_task(_serve_until_failure(settings, cluster)))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await cluster.stop()
    if not settings.as_json:
        typer.echo("stopped")


async def _serve_until_failure(settings: Settings, cluster: LocalCluster | LocalReplicas) -> None:
    await cluster.wait_ready()
    _announce(settings, cluster)
    await cluster.wait()


def _announce(settings: Settings, cluster: LocalCluster | LocalReplicas) -> None:
    password = cluster.root_password_path.resolve()
    members = cluster.replicas if isinstance(cluster, LocalReplicas) else [cluster]
    if settings.as_json:
        described = [_described(member) for member in members]
        shared = {"root_password_file": str(password)}
        if isinstance(cluster, LocalReplicas):
            directory = str(cluster.data_directory.resolve())
            count = len(cluster.addresses)
            parts = {"replicas": described[:count], "standbys": described[count:]}
            print_json({"data_directory": directory, **parts, **shared})
        else:
            print_json({**described[0], **shared})
        return
    standbys = cluster.standby_addresses if isinstance(cluster, LocalReplicas) else []
    address = ",".join(member.address for member in members[: len(members) - len(standbys)])
    typer.echo(f"Viewstamp listens on {address}")
    if standbys:
        typer.echo(f"standbys listen on {','.join(standbys)}")
    typer.echo(f"root's first password is in {password}")
    typer.echo(
        f"log in: viewstamp login --address {address} --username root --password-file '{password}'"
    )
    logs = cluster.data_directory.resolve() / ("*/log" if len(members) > 1 else "log")
    typer.echo(f"logs:   {logs}    stop: Ctrl-C")


def _described(cluster: LocalCluster) -> dict[str, Any]:
    return {
        "address": cluster.address,
        "data_directory": str(cluster.data_directory.resolve()),
        "pids": cluster.pids,
    }


def keygen(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Where to; must not exist.", metavar="FILE")],
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
    if settings.as_json:
        print_json({"file": str(file)})
    else:
        typer.echo(
            f"wrote a new cluster key to {file}: copy it to every replica, show it to nobody"
        )


def status(
    context: typer.Context,
    digests: Annotated[
        bool, typer.Option("--digests", help="Compute state digests (walks over all state).")
    ] = False,
    here: Annotated[
        bool,
        typer.Option("--here", help="What the replica at --address holds, however old."),
    ] = False,
    wide: Annotated[
        bool, typer.Option("--wide", "-w", help="All there is to say of each replica.")
    ] = False,
) -> None:
    """Show replicas, services and alarms.

    Without --here the primary answers. With it a backup or a standby does, out of its own state:
    its revision, and with --digests what its services hold, to be compared with the primary's.
    """
    settings = settings_of(context)
    if here:
        found = ask_here(context, cluster_pb2.GetStatusRequest(include_digests=digests))
    else:
        found = run(context, lambda client: client.status(include_digests=digests))
    if settings.as_json:
        header = {"view": found.header.view, "revision": found.header.revision}
        print_json({**plain(found), **header})
        return
    _show_status(found, digests=digests, wide=wide)


app = typer.Typer(help="The replicas of a cluster.", no_args_is_help=True)


@app.command("step-down")
def step_down(context: typer.Context) -> None:
    """Have the primary hand over to another replica, as before it is stopped for work on it."""
    settings = settings_of(context)

    async def handed_over(client: Client) -> tuple[int, int]:
        before = (await client.status()).primary
        await client.step_down()
        # The next linearizable answer comes from whoever leads then.
        return before, (await client.status()).primary

    before, after = run(context, handed_over)
    if settings.as_json:
        print_json({"primary_before": before, "primary": after})
    else:
        typer.echo(f"replica {before} has stepped down; replica {after} is the primary")


@app.command("feature-level")
def feature_level(
    context: typer.Context,
    raise_it: Annotated[
        bool, typer.Option("--raise", help="By one, for good; no older build can take part then.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --raise: only say whether it could be done.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Show which feature level is in force and what each replica supports; or raise it.

    It can be raised once every replica, standbys included, runs a build that knows the next level.
    """
    settings = settings_of(context)
    if dry_run and not raise_it:
        text, action = "--dry-run is about --raise", "give both"
        fail(settings, "USAGE", text, action, exit_code=EXIT_USAGE)
    if raise_it:
        question = "Raise the feature level by one, which nobody can take back?"
        confirm(settings, question, yes=yes, dry_run=dry_run)

    async def looked(client: Client) -> cluster_pb2.GetStatusResponse:
        before = await client.status()
        if not raise_it:
            return before
        in_force = before.feature_level
        await client.raise_feature_level(in_force + 1, in_force, validate_only=dry_run)
        return before if dry_run else await client.status()

    _show_levels(settings, run(context, looked), could_be_raised=dry_run)


@app.command()
def describe(
    context: typer.Context,
    text: Annotated[str, typer.Argument(help="Up to 256 bytes; '' for no description.")],
    expected_revision: Annotated[
        int | None,
        typer.Option(min=0, help="Only if it was last set at this revision; 0: if there is none."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say whether it could be done.")
    ] = False,
) -> None:
    """Say what the cluster is there for; `viewstamp status` shows it."""
    settings = settings_of(context)

    async def described(client: Client) -> cluster_pb2.GetStatusResponse:
        await client.describe_cluster(
            text, expected_revision=expected_revision, validate_only=dry_run
        )
        return await client.status()

    found = run(context, described)
    if settings.as_json:
        dry = {"could_be_set": True} if dry_run else {}
        revision = found.description_revision
        print_json({"description": found.description, "description_revision": revision, **dry})
    else:
        now = f"set at revision {found.description_revision}" if found.description else "removed"
        typer.echo("it could be set now" if dry_run else f"the description of the cluster is {now}")


def _show_levels(
    settings: Settings, found: cluster_pb2.GetStatusResponse, *, could_be_raised: bool
) -> None:
    supported = {each.replica_id: each.feature_level_max for each in found.replicas}
    if settings.as_json:
        dry = {"could_be_raised": True} if could_be_raised else {}
        print_json({"feature_level": found.feature_level, "supported": supported, **dry})
        return
    typer.echo(f"feature level {found.feature_level} is in force")
    for replica, level in supported.items():
        typer.echo(f"replica {replica} supports {f'up to {level}' if level else 'unknown'}")
    if could_be_raised:
        typer.echo(f"it could be raised to {found.feature_level + 1} now")


def _show_status(found: cluster_pb2.GetStatusResponse, *, digests: bool, wide: bool) -> None:
    values = plain(found)
    typer.echo(f"cluster {found.cluster}   primary {found.primary}   view {found.header.view}")
    typer.echo(
        f"revision {found.header.revision}   sessions {found.sessions}   "
        f"feature level {found.feature_level}"
    )
    if found.description:
        typer.echo(f"{found.description}   (set at revision {found.description_revision})")
    columns = WIDE_REPLICA_COLUMNS if wide else REPLICA_COLUMNS
    print_table(columns, values["replicas"], "replicas")
    print_table(SERVICE_COLUMNS, values["services"], "services")
    if digests:
        for service in values["services"]:
            typer.echo(f"{service['stage']}: {service['state_digest'] or '-'}")
        typer.echo(f"sessions: {found.sessions_digest or '-'}")
    if values["alarms"]:
        print_table(ALARM_COLUMNS, values["alarms"], "alarms")
    else:
        typer.echo("no alarms")
