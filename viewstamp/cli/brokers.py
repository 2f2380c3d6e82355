"""`viewstamp broker ...`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from viewstamp import limits
from viewstamp.cli.calls import collected, run
from viewstamp.cli.canonical import part
from viewstamp.cli.following import WatchedName, follow_list
from viewstamp.cli.grammar import entity
from viewstamp.cli.options import (
    AtRevision,
    BrokerArgument,
    DryRun,
    ExpectedRevision,
    Following,
    Yes,
    confirm,
    guards,
)
from viewstamp.cli.output import done, show, show_list
from viewstamp.cli.settings import settings_of

if TYPE_CHECKING:
    from viewstamp.api.brokers.v1 import brokers_pb2, brokers_service_pb2
    from viewstamp.client import Client

app = typer.Typer(
    help="Manage brokers, which carry the data of partitions.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

COLUMNS = ("id", "name", "rack", "fenced", "draining", "replicas_count", "broker_epoch")
_ENDPOINT: Final = re.compile(r"([^=]+)=(.+):(\d+)")


@app.command("list")
def list_(context: typer.Context, watch: Following = False, revision: AtRevision = None) -> None:
    """List the brokers by id."""
    if watch:
        listed = WatchedName.broker
        follow_list(context, lambda client: client.brokers.list(), COLUMNS, listed, revision)
        return
    brokers = collected(context, lambda client: client.brokers.list(), revision)
    empty = "no brokers yet: they register themselves, or by `viewstamp broker register`"
    show_list(settings_of(context), brokers, COLUMNS, empty, _name)


@app.command()
def get(context: typer.Context, broker: BrokerArgument, revision: AtRevision = None) -> None:
    """Show one broker: where it serves, its epoch, and whether it may lead."""
    found = run(context, lambda client: client.brokers.get(entity(broker)), revision)
    show(settings_of(context), found, f"broker {found.name}", name=_name(found))


@app.command()
def register(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="1 to 255 bytes, unique among brokers.")],
    endpoint: Annotated[
        list[str],
        typer.Option(
            metavar="LISTENER=HOST:PORT", help="Where it serves one kind of caller; 1 to 8."
        ),
    ],
    storage_id: Annotated[
        str, typer.Option(metavar="ID", help="Names its storage; another one means lost data.")
    ],
    rack: Annotated[
        str, typer.Option(help="Where it stands; replicas are spread over racks.")
    ] = "",
    timeout_ms: Annotated[
        int,
        typer.Option(
            min=0,
            max=limits.BROKER_TIMEOUT_MAX_US // 1_000,
            help="It is fenced after this silence, in ms: 6,000 to 3,600,000; 0 for 9,000.",
        ),
    ] = 0,
    user: Annotated[
        str | None,
        typer.Option(help="Who may act for it (id or name); by default who registers it first."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Register a broker for its user, who then needs no permission to manage servers.

    A broker registers itself whenever it starts. Do not register one that runs: that ends its
    epoch, and it stops.
    """
    endpoints = _endpoints(endpoint)

    async def registered(client: Client) -> brokers_service_pb2.RegisterBrokerResponse:
        return await client.brokers.register(
            name,
            endpoints,
            storage_id=storage_id,
            rack=rack,
            timeout_ms=timeout_ms,
            user_id=None if user is None else (await client.users.get(entity(user))).id,
            validate_only=dry_run,
        )

    response = run(context, registered)
    sentence = f"registered broker {name!r} with id {response.broker_id}"
    created = part(name, response.broker_id)
    done(settings_of(context), response, sentence, dry_run=dry_run, name=created)


@app.command()
def drain(
    context: typer.Context,
    broker: BrokerArgument,
    expected_revision: ExpectedRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Have a broker lead only what no other one can, and give it no new replicas."""
    _update(context, broker, expected_revision, draining=True, dry_run=dry_run)


@app.command()
def undrain(
    context: typer.Context,
    broker: BrokerArgument,
    expected_revision: ExpectedRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Use a broker again that was drained."""
    _update(context, broker, expected_revision, draining=False, dry_run=dry_run)


@app.command()
def unregister(
    context: typer.Context,
    broker: BrokerArgument,
    expected_revision: ExpectedRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Forget a broker that has no replicas: move them away first, or delete their topics."""
    settings = settings_of(context)
    confirm(settings, f"Forget broker {broker}?", yes=yes, dry_run=dry_run)
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(context, lambda client: client.brokers.unregister(entity(broker), **bound))
    done(settings, response, f"unregistered broker {broker}", dry_run=dry_run)


def _update(
    context: typer.Context,
    broker: str,
    expected_revision: int | None,
    *,
    draining: bool,
    dry_run: bool,
) -> None:
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(
        context,
        lambda client: client.brokers.update(entity(broker), draining=draining, **bound),
    )
    sentence = f"drained broker {broker}" if draining else f"put broker {broker} to use again"
    done(settings_of(context), response, sentence, dry_run=dry_run)


def _endpoints(texts: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return host and port by listener. Raises BadParameter."""
    found: dict[str, tuple[str, int]] = {}
    for text in texts:
        match = _ENDPOINT.fullmatch(text)
        if match is None:
            example = "write LISTENER=HOST:PORT, for example internal=10.0.0.7:9000"
            raise typer.BadParameter(f"{text!r} is no endpoint: {example}", param_hint="--endpoint")
        listener, host, port = match.groups()
        if listener in found:
            told = f"listener {listener!r} has two endpoints: give each a listener of its own"
            raise typer.BadParameter(told, param_hint="--endpoint")
        found[listener] = host, int(port)
    return found


def _name(broker: brokers_pb2.Broker) -> str:
    return part(broker.name, broker.id)
