"""`viewstamp replica ...`: who belongs to a cluster, and changes of it while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from viewstamp.cli.calls import run
from viewstamp.cli.completing import complete_replica
from viewstamp.cli.global_options import checked_addresses
from viewstamp.cli.options import DryRun, Yes, confirm
from viewstamp.cli.output import done, fits_terminal, plain, print_table, printed
from viewstamp.cli.settings import settings_of

if TYPE_CHECKING:
    from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
    from viewstamp.client import Client

app = typer.Typer(
    help="List, add, promote and remove the replicas of a running cluster.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

STATE_COLUMNS: Final = ("replica_id", "role", "status", "lag", "feature_level_max", "heard_ms")
ADDRESS_COLUMNS: Final = ("replica_id", "address", "peer_address")
COLUMNS: Final = (*STATE_COLUMNS[:3], *ADDRESS_COLUMNS[1:], *STATE_COLUMNS[3:])
# How long `promote --wait` waits unless an option says otherwise: a standby may have to fetch a
# large snapshot first.
PATIENCE_S: Final = 600.0

ReplicaArgument = Annotated[
    int,
    typer.Argument(
        min=0,
        metavar="ID",
        help="Id of the replica; see `viewstamp replica list`.",
        autocompletion=complete_replica,
    ),
]


@app.command("list")
def list_(context: typer.Context) -> None:
    """List the replicas: role, status, addresses, how far behind each is.

    `address` is where clients reach it, `peer_address` where the other replicas do. `lag` counts
    entries that it has not applied yet. `heard_ms` is how long ago the primary heard from it.
    """
    settings = settings_of(context)
    found = run(context, lambda client: client.status())
    rows = [plain(each) for each in found.replicas]
    names = [str(each.replica_id) for each in found.replicas]
    if printed(settings, rows, names):
        return
    if fits_terminal(COLUMNS, rows):
        print_table(COLUMNS, rows)
    else:
        print_table(STATE_COLUMNS, rows)
        print_table(ADDRESS_COLUMNS, rows)


@app.command()
def add(
    context: typer.Context,
    peer_address: Annotated[
        str,
        typer.Argument(
            metavar="PEER_ADDRESS",
            callback=one_address,
            help="HOST:PORT at which the other replicas will reach the new one.",
        ),
    ],
    dry_run: DryRun = False,
) -> None:
    """Add a replica without a vote, a standby, and say how to start its process.

    It gets an id that no replica had before. An address that a replica has already is answered with
    the id of that one, so a repeated call adds nobody. The new replica fetches everything from the
    others; then `viewstamp replica promote` gives it a vote. Needs manage_servers, and feature
    level 9.
    """
    settings = settings_of(context)

    async def added(
        client: Client,
    ) -> tuple[cluster_pb2.AddReplicaResponse, cluster_pb2.GetStatusResponse]:
        answer = await client.add_replica(peer_address, validate_only=dry_run)
        return answer, await client.status()

    answer, status = run(context, added)
    replica_id = answer.replica_id
    join = peer_addresses(status, without=replica_id)
    sentence = f"added replica {replica_id} at {peer_address} as a standby"
    done(settings, answer, sentence, dry_run=dry_run, name=str(replica_id), join=join)
    if not dry_run and not settings.for_programs:
        typer.echo(how_to_start(replica_id, peer_address, join), err=True)


@app.command()
def promote(
    context: typer.Context,
    replica_id: ReplicaArgument,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the standby is ready, and show its progress.")
    ] = False,
    patience_s: Annotated[
        float, typer.Option("--patience-s", min=0, help="With --wait: seconds to wait at most.")
    ] = PATIENCE_S,
    dry_run: DryRun = False,
) -> None:
    """Give a standby a vote. It must be heard, and up to date.

    Until then the answer is REPLICA_NOT_READY; with --wait the command asks again. A replica that
    has a vote already keeps it. From then on its disk counts: a command is answered once 2 of 3
    have it, or 3 of 5. Needs manage_servers, and feature level 9.
    """
    settings = settings_of(context)

    async def promoted(client: Client) -> cluster_pb2.PromoteReplicaResponse:
        if not wait:
            return await client.promote_replica(replica_id, validate_only=dry_run)
        # Imported late: most calls do not wait.
        from viewstamp.cli.standby_progress import promoted_once_ready

        return await promoted_once_ready(
            settings, client, replica_id, patience_s=patience_s, dry_run=dry_run
        )

    answer = run(context, promoted)
    done(settings, answer, f"given replica {replica_id} a vote", dry_run=dry_run)


@app.command()
def remove(
    context: typer.Context, replica_id: ReplicaArgument, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Remove a replica for good, with its vote if it has one.

    Its id is never given again, and its data directory must never be started again. If it is the
    primary, another replica takes over. The other replicas that have a vote must be there; a
    replica that is dead can be removed. Stop its process once the command has ended. Needs
    manage_servers, and feature level 9.
    """
    settings = settings_of(context)
    question = f"Remove replica {replica_id} for good?"
    confirm(settings, question, yes=yes, dry_run=dry_run)

    async def removed(
        client: Client,
    ) -> tuple[cluster_pb2.GetStatusResponse, cluster_pb2.RemoveReplicaResponse]:
        before = await client.status()
        return before, await client.remove_replica(replica_id, validate_only=dry_run)

    before, answer = run(context, removed)
    left = [each for each in voters(before) if each != replica_id]
    whose = ", ".join(map(str, left))
    sentence = f"removed replica {replica_id}; those with a vote: {whose}"
    done(settings, answer, sentence, dry_run=dry_run, voters=left)
    if not dry_run and not settings.for_programs:
        typer.echo("now stop its process, and never start its data directory again", err=True)


def one_address(text: str) -> str:
    """Return an address as given. Raises BadParameter unless it is one, with host and port."""
    checked_addresses(text)
    if "," in text:
        raise typer.BadParameter("one replica listens at one address")
    return text


def voters(status: cluster_pb2.GetStatusResponse) -> list[int]:
    """Return the ids of the replicas that have a vote."""
    roles = [(each["replica_id"], each["role"]) for each in map(plain, status.replicas)]
    return [replica_id for replica_id, role in roles if role in ("primary", "backup")]


def peer_addresses(status: cluster_pb2.GetStatusResponse, without: int) -> list[str]:
    """Return where the other replicas that belong to the cluster listen for each other: ID=ADDRESS,
    as `--peer` takes it."""
    rows = [plain(each) for each in status.replicas]
    return [
        f"{each['replica_id']}={each['peer_address']}"
        for each in rows
        if each["replica_id"] != without and each["peer_address"] and each["status"] != "removed"
    ]


def how_to_start(replica_id: int, peer_address: str, join: list[str]) -> str:
    """Return the next step after a replica was added."""
    whom = " ".join(f"--peer {each}" for each in join) or "--peer ID=ADDRESS_OF_A_REPLICA"
    return (
        f"Next: start its process with an empty data directory, and with\n"
        f"  --replica-id {replica_id} --peer-listen {peer_address} --join {whom}\n"
        "beside the flags that all replicas share. Once it is there:\n"
        f"  viewstamp replica promote {replica_id} --wait"
    )
