"""`viewstamp audit`: who changed what, or was refused, from the audit log of one replica."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from viewstamp.audit.files import DIRECTORY, read
from viewstamp.cli.output import moment, printed_lines
from viewstamp.cli.settings import fail, settings_of

Record = dict[str, Any]

DENIED: Final = frozenset({"refused", "refused in part"})


def audit(
    context: typer.Context,
    data_directory: Annotated[
        Path,
        typer.Option(
            help="Data directory of a replica, which may be running.", metavar="DIRECTORY"
        ),
    ] = Path("data"),
    user: Annotated[int | None, typer.Option(help="Only calls of the user with this id.")] = None,
    method: Annotated[
        str | None, typer.Option(help="Only calls of this method, for example DeleteStream.")
    ] = None,
    since_revision: Annotated[int, typer.Option(help="Only changes from this revision on.")] = 0,
    since: Annotated[
        datetime | None, typer.Option(help="Only calls since this time (UTC).")
    ] = None,
    denied: Annotated[bool, typer.Option("--denied", help="Only refused calls.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new records until interrupted.")
    ] = False,
) -> None:
    """Show the audit log of a replica: changes, logins and denials, oldest first.

    A replica logs only the requests that it answered: with several replicas, look at each.
    """
    settings = settings_of(context)
    directory = data_directory / DIRECTORY
    if not directory.is_dir():
        step = "give --data-directory; a coordinator with --audit-bytes 0 keeps no log"
        fail(settings, "NO_AUDIT_LOG", f"there is no audit log in {directory}", step)
    since_us = 0 if since is None else _microseconds(since)

    def is_wanted(record: Record) -> bool:
        return (
            (user is None or record.get("user") == user)
            and (method is None or method in _methods(record))
            and record.get("revision", 0) >= since_revision
            and record.get("at", 0) >= since_us
            and (not denied or record.get("outcome") in DENIED)
        )

    for record in filter(is_wanted, read(directory, follows=follow)):
        if not printed_lines(settings, [record]):
            typer.echo(_line(record))


def _microseconds(moment_of: datetime) -> int:
    from datetime import UTC

    return int(moment_of.replace(tzinfo=UTC).timestamp() * 1_000_000)


def _methods(record: Record) -> Iterator[str]:
    """Yield the methods in a record, also those in transactions."""
    for part in _all_parts(record):
        yield part.get("method", "")
        yield from part.get("parts", ())


def _all_parts(record: Record) -> Iterator[Record]:
    yield from record.get("methods", ())
    yield from record.get("omitted", ())


def _line(record: Record) -> str:
    """Return a record for people."""
    if record.get("kind") == "lost":
        return f"{record.get('records')} records were lost: the disk was full, or too slow"
    at = moment(record["at"]) if "at" in record else "-"
    who = "-" if record.get("user") is None else f"user {record['user']}"
    where = record.get("from") or "-"
    session = f" session {record['session']}" if "session" in record else ""
    revision = f" revision {record['revision']}" if record.get("revision") else ""
    reason = f" {record['reason']}" if "reason" in record else ""
    what = ", ".join(_parts(record)) or record.get("kind", "")
    return f"{at} {where} {who}{session}: {what}: {record.get('outcome', '')}{reason}{revision}"


def _parts(record: Record) -> Iterator[str]:
    for part in _all_parts(record):
        count = f" x{part['count']}" if part.get("count", 1) > 1 else ""
        parts = f" of {json.dumps(part['parts'])}" if part.get("parts") else ""
        request = f" {json.dumps(part['request'])}" if part.get("request") else ""
        refused = "".join(f" refused {why}" for why in _refused(part.get("refused", {})))
        yield f"{part.get('method', '')}{count}{parts}{request}{refused}"


def _refused(reasons: dict[str, int]) -> Iterator[str]:
    for reason, count in reasons.items():
        yield f"{reason} x{count}" if count > 1 else reason
