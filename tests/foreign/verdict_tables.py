"""`python -m tests.foreign.verdict_tables`: writes the tables of docs/other-languages.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tests.tidy.tree import ROOT
from viewstamp import limits
from viewstamp.client.verdicts import VERDICTS
from viewstamp.errors import Refusal
from viewstamp.status import grpc_code

PAGE: Final = ROOT / "docs" / "other-languages.md"
LIMITS: Final[Mapping[str, int]] = {
    "requests of a session without a reply": limits.SESSION_WINDOW_REQUESTS,
    "sessions of a user": limits.SESSIONS_PER_USER_MAX,
    "bytes of a nonce": limits.SESSION_NONCE_BYTES,
    "commands in a request": limits.REQUEST_COMMANDS_MAX,
    "bytes of a command": limits.COMMAND_BYTES_MAX,
    "bytes of a message": limits.MESSAGE_BYTES_MAX,
    "milliseconds until `open` has to come": limits.STREAM_OPENING_TIMEOUT_MS,
    "milliseconds that a session may be idle": limits.SESSION_IDLE_TIMEOUT_MS,
    "milliseconds between signs of progress of a watch": limits.WATCH_PROGRESS_MS,
    "streams of a connection": limits.STREAMS_PER_CONNECTION_MAX,
}


def verdict_rows() -> list[str]:
    """Return the rows of what to do about each reason."""
    rows = []
    for reason, verdict in VERDICTS.items():
        refusal = Refusal.of(reason)
        rows.append(f"| `{refusal.name}` | {grpc_code(refusal).name} | {verdict.value} |")
    return ["| reason | gRPC status | what to do |", "|---|---|---|", *rows]


def limit_rows() -> list[str]:
    """Return the rows of the limits that a client has to know."""
    rows = [f"| {what} | {value:,} |" for what, value in LIMITS.items()]
    return ["| limit | value |", "|---|--:|", *rows]


def with_tables(text: str) -> str:
    """Return the page with its tables as the code has them."""
    for name, rows in (("verdicts", verdict_rows()), ("limits", limit_rows())):
        begin, end = (f"<!-- {name} {edge} -->" for edge in ("begin", "end"))
        table = "\n".join([begin, *rows, end])
        text, count = re.subn(f"{begin}.*?{end}", lambda _, table=table: table, text, flags=re.S)  # type: ignore[misc]
        assert count == 1, f"{PAGE.name} has {count} places for the table {name}"
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
