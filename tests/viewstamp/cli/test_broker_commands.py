"""Commands about brokers and placements, against a replica of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.processes import ReplicaProcesses, replica
from tests.viewstamp.cli.conftest import CommandLine
from viewstamp import limits

ENDPOINT = ("--endpoint", "internal=10.0.0.7:9000", "--storage-id", "disk")


@pytest.fixture(scope="module")
def brokers_processes() -> Iterator[ReplicaProcesses]:
    """A replica whose topics are placed: others could not report offsets there."""
    with replica() as running:
        yield running


@pytest.fixture
def line(brokers_processes: ReplicaProcesses, tmp_path: Path) -> Iterator[CommandLine]:
    """The command line of root; afterwards no stream and no broker is left."""
    made = CommandLine(brokers_processes.address, tmp_path, brokers_processes.root_password())
    assert made.log_in().code == 0
    yield made
    for kind, delete in (("stream", "delete"), ("broker", "unregister")):
        for each in made(kind, "list", "--json").data:
            assert made(kind, delete, str(each["id"]), "--yes").code == 0


def registered(line: CommandLine, name: str, *options: str) -> int:
    """Register a broker, and return its id."""
    broker_id: int = line("broker", "register", name, *ENDPOINT, *options, "--json").data[
        "broker_id"
    ]
    return broker_id


def topic(line: CommandLine, partitions: int) -> None:
    """Create orders/payments."""
    line("stream", "create", "orders")
    count = str(partitions)
    assert line("topic", "create", "orders", "payments", "--partitions", count).code == 0


def replicas(line: CommandLine) -> dict[int, list[int]]:
    """Return who has the partitions of orders/payments."""
    listed = line("topic", "placements", "orders", "payments", "--json").data
    return {each["partition"]: each["replicas"] for each in listed}


def test_a_broker_is_registered_for_its_user(line: CommandLine) -> None:
    """What was said is shown, by id or name; a dry run registers nobody."""
    assert line("broker", "list").out.startswith("no brokers yet")
    line("user", "create", "carrier", "--password-file", str(line.password_file))
    user = line("user", "get", "carrier", "--json").data["id"]
    options = ("--rack", "a", "--timeout-ms", "60000", "--user", "carrier")
    dry = line("broker", "register", "one", *ENDPOINT, *options, "--dry-run")
    assert dry.out.startswith("dry run: would have registered broker 'one' with id")
    assert line("broker", "list", "--json").data == []
    broker_id = registered(line, "one", *options)
    found = line("broker", "get", "one", "--json").data
    assert found["endpoints"] == [{"listener": "internal", "host": "10.0.0.7", "port": 9000}]
    assert (found["rack"], found["timeout_ms"], found["user_id"]) == ("a", 60_000, user)
    assert "host=10.0.0.7" in line("broker", "get", str(broker_id)).out
    assert line("broker", "list", "-o", "name").out == "one\n"
    header, row = line("broker", "list").out.splitlines()
    assert header.split()[:5] == ["id", "name", "rack", "fenced", "draining"]
    assert row.split()[:5] == [str(broker_id), "one", "a", "no", "no"]


def test_a_broker_is_drained_and_used_again(line: CommandLine) -> None:
    """Draining is a flag of the broker; a dry run and a wrong revision leave it."""
    registered(line, "one")

    def is_draining() -> bool:
        draining: bool = line("broker", "get", "one", "--json").data["draining"]
        return draining

    assert line("broker", "drain", "one", "--dry-run").code == 0
    refused = line("broker", "drain", "one", "--expected-revision", "1")
    assert (refused.code, is_draining()) == (1, False)
    assert line("broker", "drain", "one").out.startswith("drained broker one (revision ")
    assert is_draining()
    line("broker", "undrain", "one")
    assert not is_draining()


def test_a_broker_with_replicas_is_not_forgotten(line: CommandLine) -> None:
    """The refusal says where to look; without replicas it goes, after a question."""
    registered(line, "one")
    topic(line, 1)
    refused = line("broker", "unregister", "one", "--yes")
    assert (refused.code, "BROKER_IN_USE" in refused.err) == (1, True)
    assert "viewstamp topic place" in refused.err
    line("stream", "delete", "orders", "--yes")
    assert line("broker", "unregister", "one", answer="n\n").code == 2
    assert line("broker", "unregister", "one", "--dry-run").code == 0
    assert line("broker", "unregister", "one", answer="y\n").code == 0
    missing = line("broker", "get", "one")
    assert "see `viewstamp broker list`" in missing.err


def test_partitions_are_placed(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster chooses for what is not placed; people name brokers by id or name."""
    topic(line, 3)
    monkeypatch.setattr(limits, "PARTITIONS_PER_REQUEST_MAX", 2)
    assert line("topic", "placements", "orders", "payments").out.startswith("no partition is")
    one, two = registered(line, "one"), registered(line, "two")
    place = ("topic", "place", "orders/payments")
    assert line(*place, "--all", "--dry-run").out.startswith(
        "dry run: would have placed all partitions of topic"
    )
    assert replicas(line) == {}
    assert line(*place, "--partition", "1", "--replicas", f"two, {one}").code == 0
    assert line(*place, "--all").code == 0
    assert sorted(replicas(line)) == [0, 1, 2]
    assert replicas(line)[1] == [two, one]
    header, *rows = line("topic", "placements", "orders", "payments").out.splitlines()
    columns = ["partition", "leader", "leader_epoch", "replicas", "in_sync", "revision"]
    assert header.split() == columns
    assert rows[1].split()[:2] == ["1", str(two)]


def test_placements_are_changed_as_they_were_seen(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move with a revision is refused once somebody else has moved one of its partitions."""
    topic(line, 3)
    one, two = registered(line, "one"), registered(line, "two")
    place = ("topic", "place", "orders/payments")
    some = (*place, "--partition", "0", "--partition", "1", "--replicas")
    assert line(*some, "one,two", "--expected-revision", "0", "--dry-run").code == 0
    assert line(*some, "one,two", "--expected-revision", "0").code == 0
    shown = line("topic", "placements", "orders", "payments").out.splitlines()[1:]
    (seen,) = {row.split()[-1] for row in shown}
    assert line(*place, "--partition", "1", "--replicas", "two").code == 0
    for dry in ((), ("--dry-run",)):
        late = line(*some, "one", "--expected-revision", seen, *dry)
        assert (late.code, "REVISION_MISMATCH" in late.err) == (1, True)
    assert replicas(line) == {0: [one, two], 1: [two]}
    blamed = ("blame", "topic", "orders", "payments", "--placements", "--partition", "0")
    (change,) = line(*blamed, "--json").data["changes"]
    assert (change["method"].rpartition("/")[2], change["revision"]) == (
        "PlacePartitions",
        int(seen),
    )
    assert f"partition 0: replicas - -> [{one}, {two}]" in line(*blamed).out
    assert "it goes with --placements" in line(*blamed[:4], "--partition", "0").err
    monkeypatch.setattr(limits, "PARTITIONS_PER_REQUEST_MAX", 2)
    wide = line(*place, "--all", "--expected-revision", "0")
    assert (wide.code, "at most 2, and these are 3: name fewer" in wide.err) == (2, True)


def test_data_is_lost_only_by_consent(line: CommandLine) -> None:
    """A move to brokers that are not in sync needs an option, and then an answer."""
    one = registered(line, "one")
    topic(line, 1)
    two = registered(line, "two")
    move = ("topic", "place", "orders", "payments", "--partition", "0", "--replicas", "two")
    refused = line(*move)
    assert (refused.code, "REPLICAS_NOT_IN_SYNC" in refused.err) == (1, True)
    no = line(*move, "--allow-data-loss", answer="n\n")
    assert "Lose what brokers two lack of partition 0 of topic payments?" in no.err
    assert (no.code, replicas(line)) == (2, {0: [one]})
    assert line(*move, "--allow-data-loss", "--dry-run").code == 0
    assert line(*move, "--allow-data-loss", "--json").error["reason"] == "NOT_CONFIRMED"
    assert line(*move, "--allow-data-loss", "--yes").code == 0
    assert replicas(line) == {0: [two]}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("topic", "place", "s", "t"), "give one of the two"),
        (("topic", "place", "s", "t", "--all", "--partition", "1"), "give one of the two"),
        (("topic", "place", "s", "t", "--all", "--allow-data-loss"), "it goes with --replicas"),
        (
            ("broker", "register", "one", "--storage-id", "x", "--endpoint", "host:1"),
            "write LISTENER=HOST:PORT",
        ),
        (
            ("broker", "register", "one", *ENDPOINT, "--endpoint", "internal=other:1"),
            "listener 'internal' has two endpoints",
        ),
    ],
)
def test_a_call_that_cannot_be_meant_is_not_sent(
    line: CommandLine, words: tuple[str, ...], says: str
) -> None:
    """Options that do not go together are an error of usage, which says what would be right."""
    said = line(*words, "--json")
    assert (said.code, said.error["reason"]) == (2, "USAGE")
    assert says in said.error["message"]


def test_changes_of_brokers_are_watched(line: CommandLine) -> None:
    """A watch shows brokers by name, and placements by their topic."""
    registered(line, "one")
    topic(line, 2)
    first = line("broker", "get", "one", "--json").data["created_revision"]
    watched = ("watch", "--from-revision", str(first), "--count", "2")
    said = line(*watched, "--type", "broker", "--type", "placements").out.splitlines()
    assert said[0].split()[1:] == ["created", "broker", "one"]
    assert said[1].split()[1:5] == ["created", "placements", "-", "(stream"]
