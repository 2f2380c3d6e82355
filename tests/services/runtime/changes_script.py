"""A made-up domain whose commands say which rows they touch, for the tests of changes.

A script is a text of touches, separated by spaces: `a=1` puts a row, `-a` deletes it, `a` puts the
same row again. Rows named `user:7` say what user 7 may do, rows named `box:b` are parents of items
named `b.1`, and all others are items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from services.runtime.changes import RecentChanges
from services.runtime.domain import Call, Domain, WatchedKind
from services.runtime.machine import Machine
from services.runtime.section import Section
from tests.services.runtime import echo
from tests.services.runtime.changes_reading import KINDS
from tests.services.runtime.echo import PUT, batch, command, message, parse, put_request
from viewstamp import framing
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.machine.tables import Table, UndoLog

ROW_BYTES: Final = 100
# Revision, what happened, and the row, with its parent in parentheses.
Told = tuple[int, str, str]


class Row(NamedTuple):
    """A row of any of the tables."""

    name: str
    value: str
    created_revision: int

    @property
    def user_id(self) -> int:
        """Whose rights these are."""
        return int(self.name.removeprefix("user:"))

    @property
    def box(self) -> str:
        """The parent of an item; empty for none."""
        before, dot, _ = self.name.partition(".")
        return "box:" + before if dot else ""


class ScriptState:
    """Three watched tables, and one that is not."""

    def __init__(self, undo: UndoLog) -> None:
        """Start with no rows, but for the box of items without one."""
        self.boxes: Table[str, Row] = Table(undo)
        self.items: Table[str, Row] = Table(undo)
        self.rights: Table[str, Row] = Table(undo)
        self.counts: Table[str, int] = Table(undo)
        self.boxes.put("", Row("", "", 0))

    def table(self, name: str) -> Table[str, Row]:
        """Return the table of a row."""
        return {"user": self.rights, "box": self.boxes}.get(name.partition(":")[0], self.items)

    def touch(self, touch: str, revision: int) -> None:
        """Carry out one touch of a script."""
        name, _, value = touch.lstrip("-").partition("=")
        table = self.table(name)
        old = table.rows.get(name)
        if touch.startswith("-"):
            table.delete(name)
        elif old is not None and not value:
            table.put(name, old)
        else:
            table.put(name, Row(name, value, revision if old is None else old.created_revision))
        self.counts.put("touches", self.counts.rows.get("touches", 0) + 1)


def scripted(state: ScriptState, request: Any, call: Call) -> Any:
    """Carry out a script, and then fail if the request asks for it."""
    for touch in request.text.split():
        state.touch(touch, call.revision)
    if request.fault:
        echo.put(state, request, call)  # type: ignore[arg-type]
    return message("PutResponse", revision=call.revision)


def scripted_in_bulk(state: ScriptState, encoded: Sequence[bytes], call: Call) -> tuple[int, bytes]:
    """Carry out scripts up to the first that does more than to insert one item."""
    results: list[bytes] = []
    for revision, item in enumerate(encoded, call.revision):
        request = parse("PutRequest", item)
        name, equals, value = request.text.partition("=")
        if request.fault or not equals or " " in value or name in state.items:
            break
        state.touch(request.text, revision)
        results.append(message("PutResponse", revision=revision).SerializeToString())
    return len(results), framing.frame_all(results)


def told(state: ScriptState, effect: effects_pb2.GrantsChanged, call: Call) -> None:
    """Carry out the script that stands where the name of a stream is; "bug" is a defect."""
    for touch in effect.permissions.streams[0].stream.name.split():
        assert touch != "bug"
        state.touch(touch, call.revision)


def describe(change: Change, row: Row, parent: Row | None) -> None:
    """Put the row into the change, with the value of its parent."""
    change.key = row.name.encode()
    change.entity = row.value.encode()
    if parent is not None and parent.name:
        change.entity += f"({parent.value})".encode()


def describe_rights(change: Change, row: Row, _: object) -> None:
    """Say whose."""
    change.user_id = row.user_id


DOMAIN: Final[Domain[Any]] = Domain(
    stage=routing_pb2.STAGE_STREAMS,
    files=[echo.FILE],
    new_state=ScriptState,
    commands={"Put": scripted},
    queries={"Get": echo.get},
    effects={"grants_changed": told},
    section=Section(version=1, kinds=()),
    proposals=lambda state: (),
    bulk={"Put": scripted_in_bulk},
    watched=(
        WatchedKind(
            entity_type="item",
            table=lambda state: state.items,
            describe=describe,
            row_bytes=ROW_BYTES,
            weigh=lambda old, new: 0 if new and new.value == old.value else ROW_BYTES,
            parent=lambda state: state.boxes,
            parent_key=lambda row: row.box,
        ),
        WatchedKind(
            entity_type="box",
            table=lambda state: state.boxes,
            describe=describe,
            row_bytes=ROW_BYTES,
        ),
        WatchedKind(
            entity_type="",
            table=lambda state: state.rights,
            describe=describe_rights,
            row_bytes=ROW_BYTES,
            is_access=True,
        ),
    ),
)


def script(*texts: str, revision: int, **fields: Any) -> pb.Item:
    """Return a span of scripts."""
    return command(
        PUT, *(put_request("n", text or " ", **fields) for text in texts), revision=revision
    )


def told_script(text: str, revision: int) -> pb.Item:
    """Return an effect that carries out a script."""
    changed = effects_pb2.GrantsChanged()
    changed.permissions.streams.add().stream.name = text
    payload = effects_pb2.EffectPayload(grants_changed=changed)
    return pb.Item(effect=pb.EffectItem(revision=revision, payload=payload.SerializeToString()))


class ScriptHarness:
    """A machine of the script domain, which keeps changes up to a limit."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        """Start with an empty machine."""
        self.machine: Machine[Any] = Machine(DOMAIN)
        self.machine.changes = RecentChanges(DOMAIN, self.machine.state, 0, bytes_max)

    def apply(self, *items: pb.Item) -> pb.BatchReply:
        """Apply the items as the next logged batch."""
        return self.machine.apply(batch(self.machine.sequence + 1, *items)).reply

    def run(self, *texts: str) -> None:
        """Run scripts, each as a command and batch of its own, at the next revisions."""
        for text in texts:
            self.apply(script(text, revision=self.machine.revision + 1))


def tell(change: Change) -> Told:
    """Return a change in few words."""
    what = change.key.decode() or f"user {change.user_id}"
    if change.entity_type:
        what += "=" + change.entity.decode()
    return change.revision, KINDS[change.kind], what
