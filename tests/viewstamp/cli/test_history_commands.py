"""`--revision` and `blame`: what was there, and who changed it, on the command line."""

from __future__ import annotations

import pytest
import yaml

from tests.viewstamp.cli.conftest import CommandLine, Said


def revision_of(said: Said) -> int:
    """Return the revision of a command."""
    assert said.code == 0, said.err
    return int(said.data["revision"])


@pytest.fixture(scope="module")
def marks() -> dict[str, int]:
    """The revision at which everything was there, once it was made."""
    return {}


@pytest.fixture
def past(real: CommandLine, marks: dict[str, int]) -> tuple[CommandLine, str]:
    """A command line at a cluster from which much is gone, and the revision before that."""
    if not marks:
        for command in (
            ("stream", "create", "gone"),
            ("topic", "create", "gone", "kept", "--partitions", "2"),
            ("group", "create", "gone", "kept", "readers"),
            ("user", "create", "leaver", "--password-file", str(real.password_file)),
        ):
            made = real(*command, "--json")
            marks["revision"] = revision_of(made)
        renamed = real("topic", "update", "gone", "kept", "--name", "named", "--json")
        marks["renamed"] = revision_of(renamed)
        marks["deleted"] = revision_of(real("stream", "delete", "gone", "--yes", "--json"))
        assert real("user", "delete", "leaver", "--yes").code == 0
    return real, str(marks["revision"])


@pytest.mark.parametrize(
    "command",
    [
        ("stream", "get", "gone"),
        ("stream", "describe", "gone"),
        ("topic", "get", "gone/kept"),
        ("topic", "list", "gone"),
        ("topic", "describe", "gone/kept"),
        ("topic", "watermarks", "gone", "kept"),
        ("topic", "placements", "gone", "kept"),
        ("group", "get", "gone", "kept", "readers"),
        ("group", "list", "gone", "kept"),
        ("group", "describe", "gone", "kept", "readers"),
        ("group", "offsets", "gone", "kept", "readers"),
        ("user", "get", "leaver"),
    ],
)
def test_what_is_gone_is_shown_as_it_was(
    past: tuple[CommandLine, str], command: tuple[str, ...]
) -> None:
    """Each reading command fails today, and shows what was there at a revision."""
    run, revision = past
    assert run(*command).code == 1
    assert run(*command, "--revision", revision).code == 0


@pytest.mark.parametrize("listed", ["stream", "user", "broker"])
def test_lists_of_a_revision(past: tuple[CommandLine, str], listed: str) -> None:
    """A list has what was there at its revision; there is nothing to follow from there."""
    run, revision = past
    then = run(listed, "list", "--revision", revision, "--json")
    now = run(listed, "list", "--json")
    names = {"stream": {"gone"}, "user": {"leaver"}, "broker": set()}[listed]
    key = "username" if listed == "user" else "name"
    gone = {each[key] for each in then.data} - {each[key] for each in now.data}
    assert gone == names
    contradictory = run(listed, "list", "--revision", revision, "--watch")
    assert (contradictory.code, "--watch and --revision" in contradictory.err) == (2, True)


def test_a_description_is_of_its_revision(past: tuple[CommandLine, str]) -> None:
    """A description of several reads says of which revision it is."""
    run, revision = past
    found = run("stream", "describe", "gone", "--revision", revision, "--json").data
    assert (found["revision"], found["last_revision"]) == (int(revision), int(revision))


def test_blame_tells_a_topic_from_its_creation(
    past: tuple[CommandLine, str], marks: dict[str, int]
) -> None:
    """A topic that got another name and is gone with its stream is told from its creation on."""
    run, _ = past
    streams = run("blame", "stream", "gone", "--json").data["changes"]
    stream_id = str(streams[0]["after"]["id"])
    found = run("blame", "topic", stream_id, "named", "--json").data
    told = [(each["kind"], each["method"].rpartition("/")[2]) for each in found["changes"]]
    assert told == [
        ("created", "CreateTopic"),
        ("updated", "UpdateTopic"),
        ("deleted", "DeleteStream"),
    ]
    assert [each["revision"] for each in found["changes"]][1:] == [
        marks["renamed"],
        marks["deleted"],
    ]
    assert found["changes"][1]["changed"] == {"name": {"before": "kept", "after": "named"}}
    assert found["next_revision"] == 0
    table = run("blame", "topic", stream_id, "named").out
    assert "name: kept -> named" in table
    assert "since the cluster began" in table


def test_blame_begins_and_ends_where_it_is_told(
    past: tuple[CommandLine, str], marks: dict[str, int]
) -> None:
    """`--limit` ends it, and says how to go on; `--from-revision` begins there."""
    run, _ = past
    first = run("blame", "stream", "gone", "--limit", "1")
    assert "CreateStream" in first.out
    assert "go on with --from-revision" in first.out
    rest = run("blame", "stream", "gone", "--from-revision", str(marks["deleted"]), "-o", "yaml")
    assert [each["kind"] for each in yaml.safe_load(rest.out)["changes"]] == ["deleted"]
    # More than any page holds, and than its field does.
    assert run("blame", "stream", "gone", "--limit", str(1 << 40), "--json").code == 0
    nothing = run("blame", "stream", "never-there")
    assert "nothing has changed it" in nothing.out


def test_what_cannot_be_told(past: tuple[CommandLine, str]) -> None:
    """Numbers that cannot be, and a name in something that was never there, are refused."""
    run, _ = past
    assert run("stream", "list", "--revision", "0").code == 2
    placed = ("blame", "topic", "gone", "named", "--placements", "--partition")
    assert run(*placed, str(1 << 40)).code == 2
    said = run("blame", "topic", "never", "there", "--json")
    assert (said.code, said.error["reason"]) == (1, "STREAM_NOT_FOUND")
