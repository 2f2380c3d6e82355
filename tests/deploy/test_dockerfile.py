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
    chain,
    copied_from_context,
    global_arguments,
    parse,
    stages,
    whole,
)
from tests.deploy.pod import ROOT, containers, flag, module, overlay, pod_spec
from tests.deploy.pod import coordinator as coordinator_of
from tools.image import distil

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
INSTRUCTIONS = parse((ROOT / "deploy" / "Dockerfile").read_text())
STAGES = stages(INSTRUCTIONS)
# Image, the stage that installs it, its lock, and the extras that it has.
IMAGES = [
    ("viewstamp", "server-packages", "requirements.lock", ["server"]),
    ("viewstamp-client", "client-packages", "requirements-client.lock", []),
    (
        "viewstamp-analytics",
        "analytics-packages",
        "requirements-analytics.lock",
        ["server", "analytics"],
    ),
]
NAMES = [name for name, *_ in IMAGES]


@pytest.fixture(name="build")
def _build() -> Stage:
    return whole(STAGES, "server-packages")


@pytest.fixture(name="runtime")
def _runtime() -> Stage:
    return whole(STAGES, "viewstamp")


@pytest.mark.parametrize("name", NAMES)
def test_images_begin_from_nothing(name: str) -> None:
    """No layer of the base, with its shell and package manager, is in an image."""
    image = whole(STAGES, name)

    assert image.base == "scratch"
    (copy,) = image.all("COPY")
    (root,) = [word.removeprefix("--from=") for word in copy.words if "--from=" in word]
    *_, last = whole(STAGES, root).all("RUN")
    assert last.words == ["python3.11", "distil.py", name, "/image"]
    assert copy.words[1:] == ["/image", "/"]
    assert image.all("RUN") == []


def test_all_stages_have_one_pinned_base() -> None:
    """The base is one exact release of the Python that the project is made for."""
    base = global_arguments(INSTRUCTIONS)["BASE"]

    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm(@sha256:[0-9a-f]{64})?", base)
    assert {chain(STAGES, stage.name)[0].base for stage in STAGES} == {"${BASE}", "scratch"}


@pytest.mark.parametrize(("stage", "lock"), [(stage, lock) for _, stage, lock, _ in IMAGES])
def test_dependencies_come_from_the_lock_with_hashes(stage: str, lock: str) -> None:
    """Every installation uses a lock with hashes, or the one wheel without any index."""
    runs = [run.words for run in whole(STAGES, stage).all("RUN")]
    locked, own = [words[4:] for words in runs if words[:4] == ["python", "-m", "pip", "install"]]

    assert "--require-hashes" in locked
    assert locked[locked.index("--requirement") + 1] == lock
    assert own == ["--no-deps", "--no-index", "--find-links", "/wheel", "viewstamp"]


def test_the_wheel_is_built_without_an_index(build: Stage) -> None:
    """What builds the wheel comes from the lock, too."""
    (wheel,) = [run.words for run in build.all("RUN") if "wheel" in run.words]

    assert {"--no-deps", "--no-build-isolation"} <= set(wheel)


def test_what_is_copied_exists_and_enters_the_context() -> None:
    """Each source of a COPY is in the repository and is not kept out of the build context."""
    context = admitted((ROOT / ".dockerignore").read_text())

    for stage in STAGES:
        for source in copied_from_context(stage):
            assert (ROOT / source).exists(), source
            assert {source.parts[0], str(source)} & context, source


def test_every_package_is_copied(build: Stage) -> None:
    """The wheel is built from each package that it is made of, and what the build reads."""
    copied = {str(source) for source in copied_from_context(build)}
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    others = {"requirements.lock", "pyproject.toml", "LICENSE"}

    assert copied == {*others, *packages}


@pytest.mark.parametrize(("stage", "name", "extras"), [(s, lock, e) for _, s, lock, e in IMAGES])
def test_what_was_uninstalled_is_not_needed(stage: str, name: str, extras: list[str]) -> None:
    """Only tools of the build are removed again, never something that the processes need."""
    (uninstall,) = [run for run in whole(STAGES, stage).all("RUN") if "uninstall" in run.words]
    removed = set(uninstall.words[uninstall.words.index("--yes") + 1 :]) - {"pip", "setuptools"}
    lock = (ROOT / name).read_text()
    reasons = {one: _wanted_by(lock, one) for one in removed}

    for one, wanted_by in reasons.items():
        wanted = {reason for reason in wanted_by if not reason.startswith("-c ")}
        assert wanted <= {"hatchling", "viewstamp (pyproject.toml)"}, (one, wanted_by)
    project = PYPROJECT["project"]
    needed = [*project["dependencies"]]
    needed += [line for extra in extras for line in project["optional-dependencies"][extra]]
    direct = {re.split(r"[<>=]", line)[0] for line in needed}
    assert not removed & direct


def _wanted_by(lock: str, name: str) -> set[str]:
    """Return which packages need a package, as the comments under its entry in the lock say."""
    (entry,) = re.findall(rf"^{name}==.*\n((?:    .*\n)+)", lock, re.MULTILINE)
    comments = [line for line in entry.splitlines() if line.startswith("    #")]
    return {line.strip(" #").removeprefix("via").strip() for line in comments} - {""}


@pytest.mark.parametrize("name", NAMES)
def test_user_is_the_pods_and_not_root(name: str) -> None:
    """The images' user is numeric, is not root, and is the one that the pod runs as."""
    security = pod_spec(overlay("local"))["securityContext"]

    user, _, group = whole(STAGES, name).last("USER").arguments.partition(":")

    assert (int(user), int(group)) == (security["runAsUser"], security["runAsGroup"])
    assert int(user) == distil.USER > 0


def test_port_is_the_coordinators(runtime: Stage) -> None:
    """The image exposes the port on which the coordinator must listen, and no other."""
    listen = flag(coordinator_of(overlay("local")), "listen")

    assert [expose.words for expose in runtime.all("EXPOSE")] == [[listen.rpartition(":")[2]]]


@pytest.mark.parametrize("name", NAMES)
def test_no_shell_stands_before_a_process(name: str) -> None:
    """Processes start directly, by name: no shell stands between them and SIGTERM."""
    image = whole(STAGES, name)
    forms = [*image.all("CMD"), *image.all("ENTRYPOINT")]

    assert forms and [form for form in forms if not form.arguments.startswith("[")] == []
    assert image.last("STOPSIGNAL").arguments == "SIGTERM"
    runs = [run.arguments for stage in STAGES for run in stage.all("RUN")]
    assert runs and [run for run in runs if not run.startswith("[")] == []


def test_entry_points(runtime: Stage) -> None:
    """Only the analytics image has one, since Spark starts pods with one word."""
    (entry,) = whole(STAGES, "viewstamp-analytics").all("ENTRYPOINT")

    assert entry.words == ["python", "-m", "analytics.container"]
    assert runtime.all("ENTRYPOINT") == whole(STAGES, "viewstamp-client").all("ENTRYPOINT") == []
    assert runtime.last("CMD").words == ["viewstamp", "--help"]


def test_commands_of_the_pod_are_in_the_image(build: Stage) -> None:
    """Every module that the pod runs or probes with lies in a copied package."""
    copied = {str(source) for source in copied_from_context(build)}
    modules = {module(container) for container in containers(overlay("production"))}

    for name in (*modules, "services.runtime.probe"):
        assert name.partition(".")[0] in copied
        assert importlib.util.find_spec(name) is not None, name
    assert PYPROJECT["project"]["scripts"].keys() == {"viewstamp"}


@pytest.mark.parametrize("name", NAMES)
def test_labels_name_image_and_version(name: str) -> None:
    """The images' version is the one in pyproject.toml."""
    labels = " ".join(label.arguments for label in whole(STAGES, name).all("LABEL"))

    assert f'org.opencontainers.image.version="{PYPROJECT["project"]["version"]}"' in labels
    assert f'org.opencontainers.image.title="{name}"' in labels


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
