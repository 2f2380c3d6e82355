"""A plan is carried out on a real cluster: once, again, and after changes; and passwords."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from viewstamp.api.users.v1 import users_pb2
from viewstamp.client import Client, connect
from viewstamp.cluster import LocalCluster
from viewstamp.importer import (
    Counts,
    GroupKey,
    ImportPlan,
    PasswordFile,
    PasswordFileError,
    Report,
    TopicKey,
    import_plan,
)
from viewstamp.importer.existing import TopicIds
from viewstamp.importer.users import lacks_any, with_send

EDITS = TopicKey("gate", "edits")
VIEWS = TopicKey("gate", "views")
PLAN = ImportPlan(
    source="a test",
    entries=2,
    imported_entries=2,
    topic_mentions=2,
    streams=("gate",),
    topics=(EDITS, VIEWS),
    groups=(GroupKey(*EDITS, "job"),),
    senders={"editor": (EDITS, VIEWS)},
    skipped_entries=(),
)


def numbers(report: Report) -> list[tuple[int, int, int]]:
    """Return created, updated and existing of streams, topics, groups and users."""
    return [(one.created, one.updated, one.existing) for one in report.kinds.values()]


async def permissions_of(client: Client, username: str) -> set[tuple[int, int]]:
    """Return the topics a user may send to, by stream id and topic id."""
    user = await client.users.get(username)
    return {
        (stream.stream.id, topic.topic.id)
        for stream in user.permissions.streams
        for topic in stream.topics
        if topic.send_messages
    }


async def test_importing_creates_what_is_missing_and_nothing_else(tmp_path: Path) -> None:
    """A dry run changes nothing, a run creates all, a second run recognises all, a third repairs.

    One cluster serves all four: starting one takes longer than everything else.
    """
    passwords = PasswordFile(tmp_path / "passwords.json")
    async with LocalCluster(tmp_path / "data", "127.0.0.1:0") as cluster:
        root = cluster.root_password_path.read_text().strip()
        async with await connect(cluster.address, username="root", password=root) as client:
            dry = await import_plan(client, PLAN, passwords, dry_run=True)
            assert numbers(dry) == [(1, 0, 0), (2, 0, 0), (1, 0, 0), (1, 0, 0)]
            assert [stream async for stream in client.streams.list()] == []
            assert not passwords.path.exists()

            told: list[tuple[str, int]] = []
            first = await import_plan(
                client, PLAN, passwords, progress=lambda *step: told.append(step)
            )
            assert first.succeeded
            assert numbers(first) == numbers(dry)
            assert sum(count for _, count in told) == 5
            kept = json.loads(passwords.path.read_text())
            async with await connect(
                cluster.address, username="editor", password=kept["editor"]
            ) as editor:
                assert len(await permissions_of(editor, "editor")) == 2

            again = await import_plan(client, PLAN, passwords)
            assert again.succeeded
            assert numbers(again) == [(0, 0, 1), (0, 0, 2), (0, 0, 1), (0, 0, 1)]
            assert json.loads(passwords.path.read_text()) == kept

            views = await client.topics.get(*VIEWS)
            await client.topics.delete(*VIEWS)
            repaired = await import_plan(client, PLAN, passwords)
            assert repaired.succeeded
            assert numbers(repaired) == [(0, 0, 1), (1, 0, 1), (0, 0, 1), (0, 1, 0)]
            anew = await client.topics.get(*VIEWS)
            granted = await permissions_of(client, "editor")
            assert (anew.stream_id, anew.id) in granted
            assert (views.stream_id, views.id) not in granted


def test_grants_are_added_and_none_is_taken() -> None:
    """Adding a grant to send keeps every other permission as it was."""
    held = users_pb2.Permissions()
    stream = held.streams.add(read_stream=True)
    stream.stream.id = 1
    stream.topics.add(poll_messages=True).topic.id = 10
    getattr(held, "global").read_users = True
    wanted = [TopicIds(1, 10), TopicIds(1, 11), TopicIds(2, 20)]

    result = with_send(held, wanted)

    assert lacks_any(held, wanted)
    assert not lacks_any(result, wanted)
    assert getattr(result, "global").read_users
    assert result.streams[0].read_stream
    assert result.streams[0].topics[0].poll_messages
    assert len(held.streams) == 1


def test_a_topic_that_does_not_exist_yet_lacks_its_grant() -> None:
    """In a dry run a user needs an update if a topic is still to be created."""
    assert lacks_any(users_pb2.Permissions(), [None])


def test_passwords_are_for_their_owner_alone(tmp_path: Path) -> None:
    """The file has mode 0600, keeps earlier users, and leaves no temporary file behind."""
    passwords = PasswordFile(tmp_path / "passwords.json")

    first = passwords.passwords_for(["alice"])
    second = passwords.passwords_for(["bobby"])

    assert json.loads(passwords.path.read_text()) == {**first, **second}
    assert stat.S_IMODE(passwords.path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["passwords.json"]
    assert first["alice"] != second["bobby"]


@pytest.mark.parametrize("content", ["[]", "{", None])
def test_a_file_that_holds_no_passwords_is_left_alone(tmp_path: Path, content: str | None) -> None:
    """A file of another kind, or an unwritable one, stops the import before the user."""
    path = tmp_path / ("missing/passwords.json" if content is None else "passwords.json")
    if content is not None:
        path.write_text(content)

    with pytest.raises(PasswordFileError, match=r"passwords\.json"):
        PasswordFile(path).passwords_for(["alice"])

    assert content is None or path.read_text() == content


@pytest.mark.parametrize(
    ("counts", "succeeded"),
    [
        (Counts(planned=3, created=1, updated=1, existing=1), True),
        (Counts(planned=3, created=1, existing=1), False),
        (Counts(planned=2, created=1, failures=["refused"]), False),
    ],
)
def test_a_report_must_add_up(counts: Counts, succeeded: bool) -> None:
    """An import succeeds only if every planned item is accounted for and none failed."""
    assert Report(PLAN, dry_run=False, kinds={"streams": counts}).succeeded is succeeded
