"""The machine refuses batches out of order, and incomplete domains."""

from __future__ import annotations

from typing import Any

import pytest

from services.runtime.handlers import description_of
from services.runtime.installing import SectionInstallation
from services.runtime.machine import ApplyError, Machine
from tests.services.runtime import echo
from tests.services.runtime.echo import (
    KEEP,
    PUT,
    REVERT,
    SAVEPOINT,
    batch,
    command,
    put_request,
    query,
)
from tests.services.runtime.harness import MachineHarness
from viewstamp import framing
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.format.digest import DIGEST_BYTES
from viewstamp.limits import FEATURE_LEVEL_MAX, PREPARE_COMMANDS_MAX


@pytest.fixture
def harness() -> MachineHarness:
    """A fresh harness."""
    return MachineHarness()


@pytest.mark.parametrize("sequence", [1, 3, 4])
def test_sequence_must_be_contiguous(harness: MachineHarness, sequence: int) -> None:
    """A repeated or skipped batch is a breach of the protocol, and nothing of it is applied."""
    harness.apply(command(PUT, put_request("a")))
    if sequence == 4:
        harness.apply()
    with pytest.raises(ApplyError, match="is due"):
        harness.machine.apply(batch(sequence, command(PUT, put_request("b"))))
    assert harness.texts() == {"a": "a"}


def cut(generation: int) -> pb.Item:
    """Return a cut."""
    return pb.Item(cut=pb.CutItem(generation=generation))


CONTEXTS_OF_TWO = framing.frame_all([b"x", b"y"])
UNKNOWN_EFFECT = pb.Item(effect=pb.EffectItem(payload=b"\x2a\x00"))

BREACHES: dict[str, tuple[pb.Item, str]] = {
    "unclaimed method": (command(echo.UNCLAIMED, b""), "command code 903 is not claimed"),
    "method of another stage": (command(echo.ELSEWHERE, b""), "command code 904 is not claimed"),
    "unknown query": (query(999, b""), "query code 999 is not claimed"),
    "item of no kind": (pb.Item(), "has no kind"),
    "cut of nothing": (pb.Item(cut=pb.CutItem()), "cut 0 comes after cut 0: generations ascend"),
    "keep without savepoint": (KEEP, "no savepoint is open that could be kept"),
    "revert without savepoint": (REVERT, "no savepoint is open that could be reverted"),
    "too many": (command(PUT, count=PREPARE_COMMANDS_MAX + 1), "the gateway admits 8190"),
    "hole outside": (command(PUT, b"", refused=[1]), "index 1 is refused in a span of 1"),
    "contexts of another number": (command(PUT, b"", contexts=CONTEXTS_OF_TWO), "has 2 contexts"),
    "contexts unframed": (command(PUT, b"", contexts=b"\x0a\x7f"), "are not framed"),
    "malformed effect": (pb.Item(effect=pb.EffectItem(payload=b"\x0a\x7f")), "is malformed"),
    "unknown effect": (UNKNOWN_EFFECT, "effect stream_deleted of revision 0 has no handler"),
    "empty effect": (pb.Item(effect=pb.EffectItem()), "effect None of revision 0 has no handler"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_breaches_of_the_protocol_are_loud(harness: MachineHarness, name: str) -> None:
    """A message that no correct coordinator sends ends the machine, and the error says why."""
    item, said = BREACHES[name]
    with pytest.raises(ApplyError, match=said):
        harness.apply(item)


def test_savepoints_do_not_nest(harness: MachineHarness) -> None:
    """A second savepoint is a breach of the protocol."""
    with pytest.raises(ApplyError, match="open already"):
        harness.apply(SAVEPOINT, SAVEPOINT)


def test_cuts_ascend(harness: MachineHarness) -> None:
    """A cut that is not newer than the last one, released or not, is a breach of the protocol."""
    harness.apply(cut(4))
    with pytest.raises(ApplyError, match="cut 4 comes after cut 4"):
        harness.apply(cut(4))
    harness = MachineHarness()
    harness.apply(cut(4))
    harness.machine.freezer.release(4)
    with pytest.raises(ApplyError, match="cut 3 comes after cut 4"):
        harness.apply(cut(3))


def test_no_cut_under_a_savepoint(harness: MachineHarness) -> None:
    """Changes that may still be undone are in no snapshot."""
    with pytest.raises(ApplyError, match="cut 4 comes while a savepoint is open"):
        harness.apply(SAVEPOINT, cut(4))


def test_no_section_behind_a_batch(harness: MachineHarness) -> None:
    """A machine that has applied something does not take a section in its place."""
    installation = SectionInstallation(
        echo.DOMAIN,
        pb.InstallBegin(
            generation=1, sequence=1, section_version=7, state_digest=bytes(DIGEST_BYTES)
        ),
    )
    for _ in installation.loading():
        pass
    assert installation.installed is not None
    harness.apply(command(PUT, put_request("a")))
    with pytest.raises(ApplyError, match="before a batch, not after batch 1"):
        harness.machine.activate(installation.installed)
    assert harness.texts() == {"a": "a"}


def test_reads_outside_the_log_change_nothing(harness: MachineHarness) -> None:
    """A batch without a place in the log must not contain changes."""
    with pytest.raises(ApplyError, match="holds a command"):
        harness.machine.apply(batch(0, command(PUT, put_request("a"))))


def test_unknown_feature_level_is_refused(harness: MachineHarness) -> None:
    """A build does not guess the meaning of a level that it does not know."""
    unknown = FEATURE_LEVEL_MAX + 1
    with pytest.raises(ApplyError, match=f"feature level {unknown} is in force"):
        harness.machine.apply(pb.Batch(sequence=1, feature_level=unknown))


def test_domain_without_resolvers_says_so() -> None:
    """A resolve item at a stage that resolves nothing is a breach of the protocol."""
    fields = {name: getattr(echo.DOMAIN, name) for name in echo.DOMAIN.__dataclass_fields__}
    fields |= {"resolve": None, "resolve_grants": None}
    for grants, said in ((True, "permissions"), (False, "streams and topics")):
        machine: Machine[echo.EchoState] = Machine(echo.DOMAIN.__class__(**fields))
        with pytest.raises(ApplyError, match=f"does not resolve {said}"):
            machine.apply(batch(1, pb.Item(resolve=pb.ResolveItem(count=1, grants=grants))))


def test_describe_claims_what_has_a_handler(harness: MachineHarness) -> None:
    """Methods without a handler and methods of other stages are not claimed."""
    description = description_of(harness.machine.domain)
    service = "viewstamp.tests.echo.v1.EchoService/"
    assert list(description.methods) == [
        service + name for name in ("Put", "Remove", "Hide", "Get", "Ponder")
    ]
    assert (description.stage, description.section_version) == (3, 7)


BAD_DOMAINS: dict[str, tuple[dict[str, Any], str]] = {
    "handler without method": (
        {"commands": {**echo.DOMAIN.commands, "Putt": echo.put}},
        "command handlers that nothing in the protos calls for: Putt",
    ),
    "handler of another stage's": (
        {"commands": {**echo.DOMAIN.commands, "Elsewhere": echo.put}},
        "command handlers that nothing in the protos calls for: Elsewhere",
    ),
    "no normalizer": ({"normalizers": {}, "suffixes": {}}, "without a normalizer: Hide"),
    "unused suffix": ({"suffixes": {"Put": echo.hide_suffix}}, "suffixes that nothing"),
    "unknown bulk handler": ({"bulk": {"Get": echo.get}}, "bulk handlers that nothing"),
    "unknown effect": ({"effects": {"sun_down": echo.user_deleted}}, "effects that nothing"),
    "twice": ({"files": [echo.FILE, echo.FILE]}, "command methods share a name: "),
}


@pytest.mark.parametrize("name", BAD_DOMAINS)
def test_domain_that_is_not_whole_does_not_start(name: str) -> None:
    """Handlers that do not fit the protos are found at start, not at the first command."""
    changed, said = BAD_DOMAINS[name]
    fields = {name: getattr(echo.DOMAIN, name) for name in echo.DOMAIN.__dataclass_fields__}
    with pytest.raises(ValueError, match=said):
        Machine(echo.DOMAIN.__class__(**(fields | changed)))
