"""`viewstamp plan`, `apply`, `diff`, `export` and `import strimzi`, against a real replica."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.processes import ReplicaProcesses, replica
from tests.viewstamp.cli.conftest import CommandLine
from viewstamp.cli.settings import EXIT_CHANGES

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
DOCUMENT = """version: 1
streams:
- name: {stream}
  prune: true
  topics:
  - name: events
    partitions: 3
"""


@pytest.fixture(scope="module")
def processes() -> Iterator[ReplicaProcesses]:
    """A running replica."""
    with replica() as running:
        yield running


@pytest.fixture
def line(
    processes: ReplicaProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line of root, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    command = CommandLine(processes.address, tmp_path)
    command.password_file.write_text(processes.root_password())
    assert command.log_in().code == 0
    return command


def document(stream: str, change: tuple[str, str] = ("", "")) -> str:
    """Write a document of one stream, and return its path."""
    Path("topology.yaml").write_text(DOCUMENT.format(stream=stream).replace(*change, 1))
    return "topology.yaml"


def test_a_plan_says_whether_there_are_changes(line: CommandLine) -> None:
    """Exit codes tell whether something is to be done, and it is done once."""
    file = document("first")
    said = line("plan", "-f", file)
    assert (said.code, said.out.splitlines()[:3]) == (
        EXIT_CHANGES,
        ["+ stream first", "+ topic first/events", "    partitions: 3"],
    )
    assert line("diff", "-f", file).code == EXIT_CHANGES
    applied = line("apply", "-f", file)
    assert applied.code == 0
    assert "2 to create, 0 to update, 0 to delete, in one transaction\napplied at" in applied.out
    again = line("apply", "-f", file)
    assert (again.code, again.out.partition(":")[0]) == (0, "nothing to do")
    assert line("plan", "-f", file).code == 0
    assert (line("diff", "-f", file).code, line("diff", "-f", file).out) == (0, "")


def test_programs_get_documents(line: CommandLine) -> None:
    """With --json a plan, its application and a difference are objects."""
    file = document("second")
    plan = line("plan", "-f", file, "--json").data
    assert plan["counts"] == {"create": 2, "update": 0, "delete": 0}
    assert (plan["transactions"], plan["problems"]) == (1, [])
    assert plan["changes"][1] == {
        "action": "create",
        "kind": "topic",
        "path": ["second", "events"],
        "fields": [{"name": "partitions", "old": None, "new": 3}],
        "losses": [],
    }
    assert line("diff", "-f", file, "--json").data["differs"] is True
    dry = line("apply", "-f", file, "--json", "--dry-run").data
    assert (dry["dry_run"], dry["refusals"]) == (True, [])
    assert (dry["checked_as_one"], dry["unchecked_commands"]) == (True, 0)
    applied = line("apply", "-f", file, "--json").data
    assert len(applied["revisions"]) == 1
    assert [change["path"] for change in applied["changes"]] == [["second"], ["second", "events"]]
    empty: dict[str, object] = {
        "changes": [],
        "revisions": [],
        "password_file": None,
        "dry_run": False,
    }
    assert line("apply", "-f", file, "--json").data == empty


def test_deletions_are_asked_for(line: CommandLine) -> None:
    """What is deleted is asked for, and `--yes` or a yes answers."""
    line("apply", "-f", document("third"))
    file = document("third", ("events", "others"))
    assert "- topic" not in line("plan", "-f", file).out
    said = line("apply", "-f", file, "--prune", answer="n\n")
    assert (said.code, said.err[-20:]) == (2, "nothing was changed\n")
    assert "- topic third/events\n    loses the messages in 3 partitions" in said.out
    assert line("apply", "-f", file, "--prune", "--json").error["reason"] == "NOT_CONFIRMED"
    assert line("topic", "get", "third", "events").code == 0
    assert line("apply", "-f", file, "--prune", answer="y\n").code == 0
    assert line("topic", "get", "third", "events").code == 1
    fewer = document("third", ("partitions: 3", "partitions: 1"))
    assert line("apply", "-f", fewer, "--prune", "--yes").code == 0
    refused = line("apply", "-f", document("third", ("partitions: 3", "partitions: 0")), "--yes")
    assert (refused.code, refused.err.partition(": ")[2][:12]) == (1, "PLAN_REFUSED")
    assert "! topic third/events: it has 1 partition and 0 are declared" in refused.out
    shrunk = line("apply", "-f", "topology.yaml", "--allow-partition-deletion", "--yes")
    assert shrunk.code == 0


def test_a_document_without_a_scope_prunes_nothing(line: CommandLine) -> None:
    """`--prune` with a document that owns nothing is an error, not a quiet success."""
    file = document("fourth", ("  prune: true\n", ""))
    said = line("apply", "-f", file, "--prune", "--json")
    assert (said.code, said.error["reason"]) == (2, "NOTHING_TO_PRUNE")


def test_a_bad_document_is_told_line_by_line(line: CommandLine) -> None:
    """Each fault has a line on stderr; programs get them in one text."""
    file = document("fifth", ("partitions: 3", "partitions: x\n    size: 1"))
    said = line("plan", "-f", file)
    assert said.code == 2
    first, second, last = said.err.splitlines()
    assert first.startswith("topology.yaml:7: streams[0].topics[0].partitions: it must be a whole")
    assert second.startswith("topology.yaml:8: streams[0].topics[0].size: this key is unknown")
    assert last.startswith("error: INVALID_DOCUMENT: there are 2 faults")
    error = line("plan", "-f", file, "--json").error
    assert (error["reason"], len(error["message"].splitlines())) == ("INVALID_DOCUMENT", 2)
    assert line("plan", "-f", "nowhere.yaml", "--json").error["reason"] == "CANNOT_READ"


def test_an_export_is_applied_to_nothing(line: CommandLine) -> None:
    """What is exported is a document with which nothing is to be done, also from the input."""
    line("apply", "-f", document("sixth"))
    exported = line("export", "--stream", "sixth")
    assert exported.out.startswith("version: 1\nstreams:\n- name: sixth\n")
    assert line("plan", "-f", "-", answer=exported.out).code == 0
    assert line("plan", "-f", "-", answer=line("export", "--json").out).code == 0
    missing = line("export", "--stream", "nowhere", "--json")
    assert (missing.code, missing.error["reason"]) == (1, "STREAM_NOT_FOUND")
    assert json.loads(line("export", "--schema").out)["title"] == "Viewstamp topology"


def test_atomicity_can_be_demanded(line: CommandLine) -> None:
    """A plan of several transactions says so, and is refused if one is demanded."""
    topics = "".join(f"  - name: t{number}\n" for number in range(150))
    file = document("seventh", ("  - name: events\n", topics + "  - name: events\n"))
    refused = line("apply", "-f", file, "--atomic", "--json")
    assert (refused.code, refused.error["reason"]) == (1, "NOT_ATOMIC")
    assert line("apply", "-f", file, "--atomic", "--dry-run", "--json").code == 1
    dry = line("apply", "-f", file, "--dry-run")
    assert dry.code == 0
    assert dry.out.splitlines()[-3:] == [
        "not checked as one transaction: 152 commands need 2 transactions",
        "the cluster checked 1 of 152 commands by themselves; what the other 151 depend on is not"
        " there yet",
        "dry run: nothing was changed",
    ]
    applied = line("apply", "-f", file)
    assert applied.code == 0
    assert "in 2 transactions, NOT as one" in applied.out
    dry = line("apply", "-f", file, "--dry-run", "--json").data
    assert (dry["checked_as_one"], dry["unchecked_commands"]) == (False, 0)


def test_a_dry_run_checks_all_of_a_plan(line: CommandLine) -> None:
    """A plan that fits into one transaction is checked as one, so also what depends on others."""
    file = document("ninth")
    dry = line("apply", "-f", file, "--dry-run")
    assert dry.out.splitlines()[-2:] == [
        "the cluster would carry out all of it at one revision",
        "dry run: nothing was changed",
    ]
    assert line("apply", "-f", file).code == 0
    assert line("apply", "-f", file, "--dry-run").out.splitlines()[1:] == [
        "dry run: nothing was changed"
    ]


def test_a_password_file_is_checked(line: CommandLine) -> None:
    """A file that holds no passwords is named, and no user is created."""
    Path("people.yaml").write_text("version: 1\nusers: [{username: reader}]\n")
    for content, said in (
        ("[]", "it must hold a JSON object"),
        ('{"reader": "x"}', "of reader is"),
    ):
        Path("passwords.json").write_text(content)
        refused = line("apply", "-f", "people.yaml", "--password-file", "passwords.json", "--json")
        assert (refused.code, refused.error["reason"]) == (2, "BAD_PASSWORD_FILE")
        assert said in refused.error["message"]
    assert line("user", "get", "reader").code == 1


def test_resources_of_strimzi_are_imported(line: CommandLine) -> None:
    """Resources are printed as a document or applied, and what is left out is told on stderr."""
    file = str(EXAMPLES / "strimzi.yaml")
    printed = line("import", "strimzi", file, "--document", "--stream", "other")
    assert printed.out.startswith("version: 1\nstreams:\n- name: other\n")
    assert "not carried over: KafkaUser checkout: authentication tls: " in printed.err
    assert line("import", "strimzi", file, "--dry-run").out.endswith("nothing was changed\n")
    done = line("import", "strimzi", file, "--password-file", "passwords.json")
    assert done.out.endswith("passwords of new users are in passwords.json: keep it safe\n")
    assert {*json.loads(Path("passwords.json").read_text())} == {"billing", "checkout"}
    assert line("import", "strimzi", file).out.startswith("nothing to do: ")
    refused = line("import", "strimzi", "nowhere.yaml", "--json")
    assert (refused.code, refused.error["reason"]) == (2, "CANNOT_READ")


def test_a_catalogue_is_printed_as_a_document(line: CommandLine) -> None:
    """The other catalogue can be a document, too, which is applied in pieces."""
    file = str(EXAMPLES / "wikimedia_event_streams.json")
    printed = line("import", "wikimedia", file, "--document")
    said = line("plan", "-f", "-", answer=printed.out)
    assert (said.code, said.out.rpartition(": ")[2]) == (
        EXIT_CHANGES,
        "1267 to create, 0 to update, 0 to delete, in 10 transactions, NOT as one\n",
    )
