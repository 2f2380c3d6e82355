"""The repository keeps its own rules; `tests/tidy` has them, and proof that each can fail."""

from __future__ import annotations

import functools
import importlib
import itertools
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from benchmarks import limits as documented
from coordinator.mux.catalog_decisions import CatalogVerdict
from tests.tidy import (
    dead_name_rules,
    import_rules,
    name_rules,
    package_rules,
    private_rules,
    proto_rules,
    purity_rules,
    shape_rules,
    storage_rules,
    text_rules,
    transport_rules,
    weak_test_rules,
    words_rules,
)
from tests.tidy.tree import ROOT, PythonFile, TextFile, python_files, text_files
from tools import generate
from viewstamp.api.cluster.v1.cluster_service_pb2 import AlarmKind
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.texts import table

PYTHON_RULES: tuple[Callable[[PythonFile], list[str]], ...] = (
    import_rules.arrows,
    import_rules.standard_library_only,
    purity_rules.banned_imports,
    purity_rules.banned_calls,
    purity_rules.floats,
    purity_rules.unordered_iteration,
    shape_rules.function_length,
    shape_rules.file_length,
    shape_rules.public_docstrings,
    shape_rules.docstrings_of_tests,
    words_rules.no_prose,
    words_rules.has_text,
    storage_rules.second_ways_to_write,
    weak_test_rules.early_returns,
    weak_test_rules.wide_errors,
    weak_test_rules.tautologies,
    transport_rules.second_ways_to_grpc,
)
TEXT_RULES: tuple[Callable[[TextFile], list[str]], ...] = (
    text_rules.leftovers,
    text_rules.machine_paths,
    text_rules.registry_hosts,
)

# Methods that are neither a command nor a query, and why.
UNROUTED = {
    "viewstamp.api.domain.v1.DomainService.Apply": "carries batches from mux to domain service",
    "viewstamp.api.domain.v1.DomainService.Describe": "what a domain service is, asked at start",
    "viewstamp.api.domain.v1.DomainService.Normalize": "comes before the log",
    "viewstamp.api.domain.v1.DomainService.ReadSection": "a frozen section, read beside the log",
    "viewstamp.api.replication.v1.ReplicationService.Exchange": "replica to replica",
    "viewstamp.api.replication.v1.ReplicationService.Introduce": "replica to replica",
    "viewstamp.api.replication.v1.SnapshotFilesService.ReadLayer": "replica to replica",
    "viewstamp.api.replication.v1.SnapshotFilesService.ReadManifest": "replica to replica",
    "viewstamp.api.snapshots.v1.SnapshotsService.DownloadSnapshot": "sends files of one replica",
    "viewstamp.api.snapshots.v1.SnapshotsService.VerifySnapshot": "looks at files of one replica",
    "viewstamp.api.submit.v1.SubmitService.Submit": "carries commands and queries of any method",
    "viewstamp.api.watch.v1.WatchService.Watch": "a stream of changes, served from a ring",
}
# Commands that cannot be tried (`validate_only`).
NEVER_TRIED = {
    "viewstamp.api.sessions.v1.SessionsService.RegisterSession": "makes room before the log",
}
# Lists without pages.
WHOLE_LISTS = {
    "viewstamp.api.cluster.v1.ClusterService.ListAlarms": "one alarm for each kind and subject",
}


def check(violations: list[str]) -> None:
    """Fail with all violations at once, one on each line."""
    assert violations == [], "\n" + "\n".join(violations)


@functools.cache
def descriptors() -> FileDescriptorSet:
    """Return the compiled protos of this repository."""
    return generate.descriptor_set(ROOT / "protos")


@pytest.mark.parametrize("rule", PYTHON_RULES, ids=lambda rule: rule.__name__)
def test_python_follows(rule: Callable[[PythonFile], list[str]]) -> None:
    """Every hand-written Python file follows the rule."""
    check(list(itertools.chain.from_iterable(map(rule, python_files()))))


@pytest.mark.parametrize("rule", TEXT_RULES, ids=lambda rule: rule.__name__)
def test_text_follows(rule: Callable[[TextFile], list[str]]) -> None:
    """Every text file in the repository follows the rule."""
    check(list(itertools.chain.from_iterable(map(rule, text_files()))))


def test_test_files_shadow_nothing() -> None:
    """No test folder or file has a name that hides a package or another test file."""
    check(text_rules.layout_of_tests(file.path for file in text_files()))


@pytest.mark.parametrize("package", name_rules.PRODUCT)
def test_tests_of_a_package_do_not_hide_it(package: str) -> None:
    """`import coordinator` finds the package, though a folder of tests has the same name."""
    (path,) = importlib.import_module(package).__path__
    assert path == str(ROOT / package)


def test_a_class_name_means_one_thing() -> None:
    """No public class name stands twice in the installed packages, unless it is listed."""
    check(name_rules.repeated_classes(python_files()))


def test_nothing_public_is_dead() -> None:
    """Some part of the product uses each public name that the product defines."""
    check(dead_name_rules.dead_names(python_files()))


def test_tests_use_what_is_public() -> None:
    """No test or shared test code uses a private name of another class or module."""
    check(private_rules.private_uses(python_files()))


def test_no_alarm_is_dead() -> None:
    """The coordinator raises each kind of alarm, and a table row explains it to operators."""
    operations = (ROOT / "docs/operations.md").read_text()
    check(dead_name_rules.dead_alarms(AlarmKind.keys(), python_files(), operations))


def test_length_exemptions_are_needed() -> None:
    """An exemption from the length rules names a file that still exists."""
    known = {str(file.path) for file in python_files()}
    check([name for name in shape_rules.LENGTH_EXEMPTIONS if name.split("::")[0] not in known])


def test_every_text_is_raised() -> None:
    """Some code raises each text of the table; one check raises all texts of names."""
    folders = ("services", "coordinator")
    files = [file for file in python_files() if any(map(file.within, folders))]
    found = [raised for file in files for raised in words_rules.raised_in(file)]
    raised = {(each.reason, each.case) for each in found}
    verdicts = {verdict.value for verdict in CatalogVerdict if verdict.value.isupper()}
    raised |= {(Reason.Value(f"REASON_{name}"), "") for name in verdicts}
    open_cases = {each.reason for each in found if each.case is None}
    unused = table.TEXTS.keys() - table.NAMES.keys() - raised
    check(sorted(str(key) for key in unused if key[0] not in open_cases))


def test_limits_are_documented() -> None:
    """Every RPC of the protos and every limit, with its value, is in `docs/limits.md`."""
    document = documented.DOCUMENT.read_text()
    check(documented.missing(document))
    without_one = document.replace("| `StreamsService.CreateTopic` |", "|")
    assert documented.missing(without_one) == [
        "viewstamp.api.streams.v1.StreamsService.CreateTopic"
    ]
    changed = document.replace("| `PAGE_SIZE_MAX` | 1,000 |", "| `PAGE_SIZE_MAX` | 1,001 |")
    assert documented.missing(changed) == [documented.STALE]


def test_every_method_has_one_route() -> None:
    """Each method is a command or a query, unless it is listed with a reason."""
    methods = proto_rules.methods(descriptors())
    check([line for method in methods for line in proto_rules.one_route(method, UNROUTED)])
    check([name for name in UNROUTED if name not in {method.name for method in methods}])


def test_method_codes_are_unique() -> None:
    """No two methods share a code, which stands for the method in the log."""
    check(proto_rules.unique_codes(proto_rules.methods(descriptors())))


def test_shared_fields_have_their_numbers() -> None:
    """Fields that other stages read have the same number in every command."""
    methods = proto_rules.methods(descriptors())
    check([line for method in methods for line in proto_rules.shared_field_numbers(method)])


def test_every_write_can_be_tried() -> None:
    """Every command from outside has `validate_only`, unless it is listed with a reason."""
    methods = proto_rules.methods(descriptors())
    check([line for method in methods for line in proto_rules.dry_run(method, NEVER_TRIED)])


def test_every_list_has_pages() -> None:
    """Every read of a list has pages, unless it is listed with a reason."""
    methods = proto_rules.methods(descriptors())
    check([line for method in methods for line in proto_rules.paged_list(method, WHOLE_LISTS)])


def test_responses_begin_with_the_header() -> None:
    """Field 1 of every routed response is the header that the coordinator prepends."""
    methods = proto_rules.methods(descriptors())
    check([line for method in methods for line in proto_rules.response_header(method)])


def test_protos_have_no_map_fields() -> None:
    """No API message has a map, whose encoding is not canonical."""
    check(proto_rules.map_fields(descriptors()))


def test_protos_are_explained() -> None:
    """Every service, method, message and enum has a comment above it."""
    check(proto_rules.comments(descriptors()))


def test_stubs_are_what_the_protos_yield() -> None:
    """The committed stubs equal freshly generated ones."""
    check(generate.drift(generate.render(ROOT / "protos"), ROOT))


def test_protos_pass_buf_lint() -> None:
    """`buf lint` accepts the protos."""
    check(buf_lint(ROOT))


@pytest.mark.parametrize(("smaller", "larger"), [("", "-analytics"), ("-analytics", "-dev")])
def test_locks_agree(smaller: str, larger: str) -> None:
    """The next larger lock pins each package of a lock to the same version and hashes."""
    name = f"requirements{larger}.lock"
    lock = (ROOT / f"requirements{smaller}.lock").read_text()
    check(text_rules.lock_disagreements(lock, (ROOT / name).read_text(), name))


def test_locks_pin_extras() -> None:
    """The lock for development pins extras that installed packages require of each other."""
    requirements = [
        requirement
        for package in metadata.distributions()
        for requirement in package.requires or []
        if "extra ==" not in requirement
    ]
    assert requirements
    check(text_rules.unlocked_extras((ROOT / "requirements-dev.lock").read_text(), requirements))


def buf_lint(directory: Path) -> list[str]:
    """Return what `buf lint` finds in a directory that has a buf.yaml, one line each."""
    buf = Path(sys.executable).parent / "buf"
    done = subprocess.run([buf, "lint"], cwd=directory, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).splitlines()


def test_the_packages_of_the_coordinator_have_no_knots() -> None:
    """Every import follows a listed arrow, every arrow is used, and no module lies loose."""
    assert not package_rules.package_arrows(python_files())
    assert not package_rules.loose_modules(python_files())
