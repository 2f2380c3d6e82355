"""The image's contents, as far as its Dockerfile tells: no image is built here."""

from __future__ import annotations

import importlib.util
import re
import tomllib

import pytest

from tests.deploy.dockerfile import (
    DockerfileError,
    Stage,
    admitted,
    copied_from_context,
    parse,
    stages,
)
from tests.deploy.pod import ROOT, containers, flag, module, overlay, pod_spec
from tests.deploy.pod import coordinator as coordinator_of

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(name="build")
def _build() -> Stage:
    return stages(parse((ROOT / "deploy" / "Dockerfile").read_text()))[0]


@pytest.fixture(name="runtime")
def _runtime() -> Stage:
    return stages(parse((ROOT / "deploy" / "Dockerfile").read_text()))[-1]


def test_both_stages_have_one_pinned_base(build: Stage, runtime: Stage) -> None:
    """The base is one exact release of the Python that the project is made for."""
    assert build.base == runtime.base
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm(@sha256:[0-9a-f]{64})?", runtime.base)


def test_dependencies_come_from_the_lock_with_hashes(build: Stage) -> None:
    """Every installation uses the lock with hashes, or the tree itself without dependencies."""
    installs = [run.words[3:] for run in build.all("RUN") if "install" in run.words]

    assert [words[:1] for words in installs] == [["install"], ["install"]]
    locked, own = installs
    assert "--require-hashes" in locked
    assert locked[locked.index("--requirement") + 1] == "requirements.lock"
    assert own == ["install", "--no-deps", "--no-build-isolation", "."]


def test_what_is_copied_exists_and_enters_the_context(build: Stage, runtime: Stage) -> None:
    """Each source of a COPY is in the repository and is not kept out of the build context."""
    context = admitted((ROOT / ".dockerignore").read_text())
    sources = copied_from_context(build)

    assert copied_from_context(runtime) == []
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source.parts[0] in context, source


def test_every_package_is_copied(build: Stage) -> None:
    """The image holds each package that the wheel is made of, and what the build reads."""
    copied = {str(source) for source in copied_from_context(build)}
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

    assert copied == {"requirements.lock", "pyproject.toml", "LICENSE", *packages}


def test_what_was_uninstalled_is_not_needed(build: Stage) -> None:
    """Only tools of the build are removed again, never something that the processes need."""
    (uninstall,) = [run for run in build.all("RUN") if "uninstall" in run.words]
    removed = set(uninstall.words[uninstall.words.index("--yes") + 1 :]) - {"pip", "setuptools"}
    lock = (ROOT / "requirements.lock").read_text()
    reasons = {name: _wanted_by(lock, name) for name in removed}

    for name, wanted_by in reasons.items():
        assert wanted_by <= {"hatchling", "viewstamp (pyproject.toml)"}, (name, wanted_by)
    project = PYPROJECT["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    direct = {re.split(r"[<>=]", line)[0] for line in needed}
    assert not removed & direct


def _wanted_by(lock: str, name: str) -> set[str]:
    """Return which packages need a package, as the comments under its entry in the lock say."""
    (entry,) = re.findall(rf"^{name}==.*\n((?:    .*\n)+)", lock, re.MULTILINE)
    comments = [line for line in entry.splitlines() if line.startswith("    #")]
    return {line.strip(" #").removeprefix("via").strip() for line in comments} - {""}


def test_user_is_the_pods_and_not_root(runtime: Stage) -> None:
    """The image's user is numeric, is not root, and is the one that the pod runs as."""
    security = pod_spec(overlay("local"))["securityContext"]

    user, _, group = runtime.last("USER").arguments.partition(":")

    assert (int(user), int(group)) == (security["runAsUser"], security["runAsGroup"])
    assert int(user) > 0


def test_port_is_the_coordinators(runtime: Stage) -> None:
    """The image exposes the port on which the coordinator must listen, and no other."""
    listen = flag(coordinator_of(overlay("local")), "listen")

    assert [expose.words for expose in runtime.all("EXPOSE")] == [[listen.rpartition(":")[2]]]


def test_commands_need_no_shell_and_no_entry_point(runtime: Stage) -> None:
    """Processes start directly, by name: no shell stands between them and SIGTERM."""
    assert runtime.last("CMD").arguments == '["viewstamp", "--help"]'
    assert runtime.all("ENTRYPOINT") == []
    assert runtime.last("STOPSIGNAL").arguments == "SIGTERM"
    runs = [run.arguments for run in runtime.all("RUN")]
    assert runs and [run for run in runs if not run.startswith("[")] == []


def test_commands_of_the_pod_are_in_the_image(build: Stage) -> None:
    """Every module that the pod runs or probes with lies in a copied package."""
    copied = {str(source) for source in copied_from_context(build)}
    modules = {module(container) for container in containers(overlay("production"))}

    for name in (*modules, "services.runtime.probe"):
        assert name.partition(".")[0] in copied
        assert importlib.util.find_spec(name) is not None, name
    assert PYPROJECT["project"]["scripts"].keys() == {"viewstamp"}


def test_labels_name_the_version(runtime: Stage) -> None:
    """The image's version is the one in pyproject.toml."""
    version = PYPROJECT["project"]["version"]

    assert f'org.opencontainers.image.version="{version}"' in runtime.last("LABEL").arguments


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("FORM python:3.11.15 AS build\n", "no instruction"),
        ("FROM python:3.11.15\n", "AS name"),
        ("RUN true\nFROM python:3.11.15 AS build\n", "before the first FROM"),
    ],
)
def test_malformed_dockerfiles_are_refused(text: str, complaint: str) -> None:
    """The reader refuses what it does not understand, so that nothing stays unchecked."""
    with pytest.raises(DockerfileError, match=complaint):
        stages(parse(text))
