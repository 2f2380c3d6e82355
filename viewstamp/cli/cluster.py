"""`viewstamp status` and `cluster`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from viewstamp.cli.calls import ask_here, run
from viewstamp.cli.options import DryRun, Yes, confirm
from viewstamp.cli.output import fits_terminal, plain, print_table, printed
from viewstamp.cli.settings import EXIT_USAGE, Settings, fail, settings_of
from viewstamp.views import view_words

if TYPE_CHECKING:
    from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
    from viewstamp.client import Client

# These columns fit into a terminal of 80 characters.
STATE_COLUMNS = ("replica_id", "role", "status", "commit", "lag")
LINK_COLUMNS = ("replica_id", "link", "address")
# These columns fit, too, if addresses are short.
REPLICA_COLUMNS = (*STATE_COLUMNS, *LINK_COLUMNS[1:])
WIDE_REPLICA_COLUMNS = (
    *("replica_id", "role", "status", "view", "op", "commit", "applied", "lag", "generation"),
    *("address", "peer_address", "heard_ms", "link", "feature_level_max", "unfit"),
)
SERVICE_COLUMNS = ("stage", "connected", "settled_revision", "item_log_bytes", "restarts")
ALARM_COLUMNS = ("kind", "message", "since")


def status(
    context: typer.Context,
    digests: Annotated[
        bool, typer.Option("--digests", help="Compute state digests, which reads all state.")
    ] = False,
    here: Annotated[
        bool,
        typer.Option(
            "--here", help="Show the state of the replica at --address, which may be old."
        ),
    ] = False,
    wide: Annotated[
        bool, typer.Option("--wide", "-w", help="Show every detail of each replica.")
    ] = False,
) -> None:
    """Show replicas, services and alarms.

    Without --here the primary answers. With --here the replica at --address answers from its own
    state: its revision, and with --digests the digests of its services, to compare with those of
    the primary.
    """
    settings = settings_of(context)
    if here:
        from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2

        found = ask_here(context, cluster_pb2.GetStatusRequest(include_digests=digests))
    else:
        found = run(context, lambda client: client.status(include_digests=digests))
    header = {"view": found.header.view, "revision": found.header.revision}
    if not printed(settings, {**plain(found), **header}):
        _show_status(found, digests=digests, wide=wide)


app = typer.Typer(help="Inspect and manage the replicas of a cluster.", no_args_is_help=True)


@app.command("step-down")
def step_down(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say whether it would be accepted.")
    ] = False,
) -> None:
    """Have the primary hand over to another replica, as before it is stopped for work on it."""
    settings = settings_of(context)

    async def handed_over(client: Client) -> tuple[int, int]:
        before = (await client.status()).primary
        await client.step_down(validate_only=dry_run)
        # The next linearizable answer comes from the new primary.
        return before, (await client.status()).primary

    before, after = run(context, handed_over)
    dry = {"could_step_down": True} if dry_run else {}
    if printed(settings, {"primary_before": before, "primary": after, **dry}):
        return
    if dry_run:
        typer.echo(f"replica {before} could step down now")
    else:
        typer.echo(f"replica {before} has stepped down; replica {after} is the primary")


@app.command("feature-level")
def feature_level(
    context: typer.Context,
    raise_it: Annotated[
        bool,
        typer.Option(
            "--raise", help="Raise by one, for good; older builds can no longer take part."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --raise: only say whether it would be accepted.")
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
        typer.Option(min=0, help="Refuse unless last set at this revision; 0: unless none is set."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Say what the cluster is there for; `viewstamp status` shows it."""
    settings = settings_of(context)

    async def described(client: Client) -> cluster_pb2.GetStatusResponse:
        await client.describe_cluster(
            text, expected_revision=expected_revision, validate_only=dry_run
        )
        return await client.status()

    found = run(context, described)
    dry = {"could_be_set": True} if dry_run else {}
    revision = found.description_revision
    values = {"description": found.description, "description_revision": revision, **dry}
    if not printed(settings, values):
        now = f"set at revision {found.description_revision}" if found.description else "removed"
        typer.echo("it could be set now" if dry_run else f"the description of the cluster is {now}")


def _show_levels(
    settings: Settings, found: cluster_pb2.GetStatusResponse, *, could_be_raised: bool
) -> None:
    supported = {each.replica_id: each.feature_level_max for each in found.replicas}
    dry = {"could_be_raised": True} if could_be_raised else {}
    if printed(settings, {"feature_level": found.feature_level, "supported": supported, **dry}):
        return
    typer.echo(f"feature level {found.feature_level} is in force")
    for replica, level in supported.items():
        typer.echo(f"replica {replica} supports {f'up to {level}' if level else 'unknown'}")
    if could_be_raised:
        typer.echo(f"it could be raised to {found.feature_level + 1} now")


def _print_replicas(replicas: list[dict[str, Any]], *, wide: bool) -> None:
    """Print the replicas; with their addresses below if these would fold every column."""
    if wide:
        print_table(WIDE_REPLICA_COLUMNS, replicas, "replicas")
    elif fits_terminal(REPLICA_COLUMNS, replicas):
        print_table(REPLICA_COLUMNS, replicas, "replicas")
    else:
        print_table(STATE_COLUMNS, replicas, "replicas")
        print_table(LINK_COLUMNS, replicas)


def _show_status(found: cluster_pb2.GetStatusResponse, *, digests: bool, wide: bool) -> None:
    values = plain(found)
    typer.echo(
        f"cluster {found.cluster}   primary {found.primary}   view {view_words(found.header.view)}"
    )
    typer.echo(
        f"revision {found.header.revision}   sessions {found.sessions}   "
        f"feature level {found.feature_level}   epoch {found.epoch}"
    )
    if found.description:
        typer.echo(f"{found.description}   (set at revision {found.description_revision})")
    _print_replicas(values["replicas"], wide=wide)
    print_table(SERVICE_COLUMNS, values["services"], "services")
    if digests:
        for service in values["services"]:
            typer.echo(f"{service['stage']}: {service['state_digest'] or '-'}")
        typer.echo(f"sessions: {found.sessions_digest or '-'}")
    if values["alarms"]:
        print_table(ALARM_COLUMNS, values["alarms"], "alarms")
    else:
        typer.echo("no alarms")
