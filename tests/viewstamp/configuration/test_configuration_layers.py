"""Flags, variables and the file: which of them decides, and what is refused."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from coordinator.app.config import parse, program
from coordinator.base.errors import ConfigError
from viewstamp.complaints import COMPLAINTS_MAX
from viewstamp.configuration.config_file import CONFIG_BYTES_MAX
from viewstamp.configuration.program import checked

KEY: Final = "ab" * 32
PEM: Final = "-----BEGIN " + "PRIVATE KEY-----\\nMIIB\\n"
SERVICES: Final = {"users": "unix:/u", "streams": "unix:/s", "consumer_groups": "unix:/c"}
COMPLETE: Final = {"data-directory": "/data", "service": SERVICES}


def written(directory: Path, sections: Any) -> Path:
    """Write a configuration file and return its path."""
    path = directory / "viewstamp.yaml"
    path.write_text(sections if isinstance(sections, str) else yaml.safe_dump(sections))
    return path


@pytest.mark.parametrize(
    ("flag", "variable", "file"), list(itertools.product((True, False), repeat=3))
)
def test_the_first_that_has_a_value_decides(
    tmp_path: Path, flag: bool, variable: bool, file: bool
) -> None:
    """A flag stands before a variable, a variable before the file, the file before the default."""
    values = {"journal-retain-ms": 3} if file else {}
    path = written(tmp_path, {"coordinator": {**COMPLETE, **values}})
    arguments = [f"--config={path}", *(["--journal-retain-ms", "1"] if flag else [])]
    environment = {"VIEWSTAMP_COORDINATOR_JOURNAL_RETAIN_MS": "2"} if variable else {}

    retain_ms = parse(arguments, environment).retain_ms

    given = [value for value, is_there in ((1, flag), (2, variable), (3, file)) if is_there]
    assert retain_ms == (given[0] if given else 60_000)


def test_lists_replace_each_other(tmp_path: Path) -> None:
    """Several values of a variable replace those of the file, and flags replace both."""
    path = written(tmp_path, {"coordinator": COMPLETE})
    other = {"VIEWSTAMP_COORDINATOR_SERVICE": "users=unix:a,streams=unix:b, consumer_groups=unix:c"}
    flags = [f"--service={name}=unix:z" for name in SERVICES]

    assert parse([f"--config={path}"], {}).services == SERVICES
    assert parse([f"--config={path}"], other).services == dict(
        zip(SERVICES, ("unix:a", "unix:b", "unix:c"), strict=True)
    )
    assert parse([f"--config={path}", *flags], other).services == dict.fromkeys(SERVICES, "unix:z")


def test_a_switch_can_be_switched_off_again(tmp_path: Path) -> None:
    """A variable that says false beats a file that says true."""
    path = written(tmp_path, {"coordinator": {**COMPLETE, "channelz": True}})
    off = {"VIEWSTAMP_COORDINATOR_CHANNELZ": "false"}
    assert [parse([f"--config={path}"], each).channelz for each in ({}, off)] == [True, False]


def test_the_variable_of_the_file(tmp_path: Path) -> None:
    """VIEWSTAMP_CONFIG names the file where no flag does; one variable says the transport."""
    path = written(tmp_path, {"coordinator": {**COMPLETE, "transport": "wire"}})
    found = parse([], {"VIEWSTAMP_CONFIG": str(path), "VIEWSTAMP_TRANSPORT": "grpcio"})
    assert (found.data_directory, found.transport) == (Path("/data"), "grpcio")


WRONG_FILES: Final = {
    "unknown setting": (
        "coordinator:\n  journal-retain: 5\n",
        ":2: coordinator.journal-retain: there is no setting of this name: did you mean"
        " 'journal-retain-ms'?",
    ),
    "unknown section": (
        "cordinator: {}\n",
        ":1: cordinator: there is no section of this name: did",
    ),
    "no number": (
        "coordinator:\n\n  replica-id: two\n",
        ":3: coordinator.replica-id: it is 'two': give a whole number",
    ),
    "no switch": ("coordinator: {channelz: yes}\n", "it is 'yes': give true or false"),
    "no choice": ("coordinator: {log-level: loud}\n", "give one of debug, info, warning, error"),
    "a list of one": ("coordinator: {listen: [a, b]}\n", "it must be text, and a single one"),
    "one of a list": ("coordinator: {peer: 0=a}\n", "it must be a list"),
    "twice": ("coordinator:\n  listen: a\n  listen: b\n", ":3: the key 'listen' stands twice"),
    "no YAML": ("coordinator: [\n", "it is no YAML"),
    "no map": ("- coordinator\n", "it must be a map with the keys up, coordinator"),
    "no settings": ("coordinator: 5\n", "it must be a map of settings"),
    "two documents": ("coordinator: {}\n---\nup: {}\n", "it is a second document"),
    "key in place of a path": (f"coordinator: {{cluster-key: {KEY}}}\n", "it is the secret itself"),
    "PEM in place of a path": (f'coordinator: {{tls-key: "{PEM}"}}\n', "it is the secret itself"),
    "PEM in place of a certificate": (
        f'coordinator: {{tls-certificate: "{PEM}"}}\n',
        "it is the secret itself",
    ),
    "password without a scheme": (
        "coordinator: {otlp-endpoint: 'a:MIIB@c:1'}\n",
        "it holds a user or password",
    ),
    "octal": ("coordinator: {replica-id: 010}\n", "'010': give a whole number, in decimal digits"),
    "underscore": ("coordinator: {replica-id: 1_0}\n", "it is '1_0': give a whole number"),
    "foreign digits": ('coordinator: {replica-id: "\\u0661"}\n', "give a whole number"),
    "endless number": (f"coordinator: {{replica-id: {'9' * 4000}}}\n", "9…': give a whole number"),
    "no finite number": ('coordinator: {trace-ratio: "nan"}\n', "it is 'nan': give a number"),
    "too large a fraction": ("coordinator: {trace-ratio: 1e400}\n", "it is '1e400': give a number"),
    "empty path": ('coordinator: {journal-archive: ""}\n', "it is empty: give a path, or leave it"),
    "NUL": ('coordinator: {tls-key: "a\\0b"}\n', "leave out control characters"),
    "password": ("coordinator: {otlp-endpoint: 'http://a:b@c:1'}\n", "it holds a user or password"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_wrong_files(tmp_path: Path, case: str) -> None:
    """The message names file, line and what would be right; it never repeats a secret."""
    text, says = WRONG_FILES[case]
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        parse([f"--config={path}"], {})
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert KEY not in str(caught.value)
    assert "MIIB" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["http://[x", "//", "http://a:b:c"])
def test_odd_endpoints_end_no_check(tmp_path: Path, endpoint: str) -> None:
    """An endpoint that cannot be taken apart is told by the check, or by the exporter."""
    path = written(tmp_path, {"coordinator": {"otlp-endpoint": endpoint}})
    assert checked(program(), [f"--config={path}"], {})["section"] == "coordinator"


def test_blank_variables_are_refused() -> None:
    """An empty variable sets nothing; spaces are no path, which would be the current directory."""
    blank = {"VIEWSTAMP_COORDINATOR_JOURNAL_ARCHIVE": " "}
    problem = "VIEWSTAMP_COORDINATOR_JOURNAL_ARCHIVE: it is empty: give a path, or leave it out"
    assert checked(program(), [], blank)["problems"] == [problem]
    assert checked(program(), [], dict.fromkeys(blank, ""))["problems"] == []


def test_help_needs_no_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is wrong with variables and the file, a program explains its flags."""
    wrong = {"VIEWSTAMP_COORDINATOR_LISTN": "z", "VIEWSTAMP_CONFIG": "/none"}
    with pytest.raises(SystemExit) as ended:
        parse(["--help"], wrong)
    assert ended.value.code == 0
    assert "--data-directory" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{}: 1\n", "  {}: 1\n"])
def test_complaints_are_bounded(tmp_path: Path, text: str) -> None:
    """A file full of what is wrong leads to as many complaints as somebody reads."""
    lines = (text.format(f"liste{number}") for number in range(10_000))
    path = written(tmp_path, "coordinator:\n  replica-id: 0\n" + "".join(lines))
    assert len(checked(program(), [f"--config={path}"], {})["problems"]) == COMPLAINTS_MAX


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    """A file beyond every use is refused before it is parsed."""
    path = written(tmp_path, "#" * CONFIG_BYTES_MAX + "\n")
    (problem,) = checked(program(), [f"--config={path}"], {})["problems"]
    assert problem == f"{path}: it is too large: at most 262,144 bytes"


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    """A pipe to which nobody writes is refused at once; nobody waits for it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (problem,) = checked(program(), [f"--config={pipe}"], {})["problems"]
    assert "it is no regular file" in problem


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    """One start tells of each wrong key of the file and of each wrong variable."""
    path = written(tmp_path, "coordinator:\n  a: 1\n  replica-id: x\n")
    wrong = {"VIEWSTAMP_COORDINATOR_REPLICA_COUNT": "y", "VIEWSTAMP_COORDINATOR_LISTN": "z"}
    with pytest.raises(ConfigError) as caught:
        parse([f"--config={path}"], wrong)
    lines = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        f"{path}:2",
        f"{path}:3",
        "VIEWSTAMP_COORDINATOR_REPLICA_COUNT",
        "VIEWSTAMP_COORDINATOR_LISTN",
    ]
    assert "did you mean 'VIEWSTAMP_COORDINATOR_LISTEN'?" in lines[3]


def test_links_of_kubernetes_are_no_settings(tmp_path: Path) -> None:
    """Variables that Kubernetes sets for a Service `viewstamp-coordinator` are left alone."""
    path = written(tmp_path, {"coordinator": COMPLETE})
    links = ["PORT", "SERVICE_HOST", "SERVICE_PORT_GRPC", "PORT_7400_TCP_ADDR"]
    parse([f"--config={path}"], {f"VIEWSTAMP_COORDINATOR_{each}": "x" for each in links})


def test_values_that_do_not_fit_are_traced_back(tmp_path: Path) -> None:
    """A rule that a value breaks is told with the line or the variable of that value."""
    path = written(tmp_path, {"coordinator": {**COMPLETE, "journal-segment-bytes": 5}})
    line = path.read_text().splitlines().index("  journal-segment-bytes: 5") + 1
    with pytest.raises(ConfigError, match=f"--journal-segment-bytes is from {path}:{line}"):
        parse([f"--config={path}"], {})


def test_a_check_needs_no_start_of_the_rest(tmp_path: Path) -> None:
    """A check reports origins, what is not given yet, and broken rules, and opens nothing."""
    path = written(tmp_path, {"coordinator": {"replica-id": 1}})
    report = checked(program(), [f"--config={path}", "--channelz"], {})
    origins = {each["name"]: each["from"] for each in report["settings"]}
    assert origins["data-directory"] == origins["service"] == "not given yet"
    assert origins["channelz"] == "flag"
    assert origins["replica-id"] == f"{path}:2"
    assert origins["listen"] == "default"
    assert len(report["problems"]) == 1
    assert report["problems"][0].startswith("--replica-id is 1: it counts from 0")
    assert list(tmp_path.iterdir()) == [path]
