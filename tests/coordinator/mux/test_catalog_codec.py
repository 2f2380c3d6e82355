"""Commands about snapshots in the log: every replica parses them in the same way."""

from __future__ import annotations

import pytest

from coordinator.mux import catalog_types as catalog
from coordinator.mux import types as mux
from coordinator.mux.catalog_types import RetentionClass
from coordinator.mux.types import CatalogCommand
from coordinator.stages import catalog_codec as codes
from coordinator.stages.codec import ProtobufCodec, encode_batch
from testkit.composite.chains import ROOT, TASKS
from testkit.logged_requests import decode_requests
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as pb
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame

BEGIN = catalog.BeginSnapshot(3, 5, 7)
COMPLETE = catalog.CompleteSnapshot(3, ROOT, TASKS)
FAIL = catalog.FailSnapshot(3, "late")
_described = cluster_pb2.SetClusterDescriptionRequest
PARSED: list[tuple[int, bytes, CatalogCommand]] = [
    (401, b"", catalog.CreateSnapshot(RetentionClass.LAST)),
    (
        401,
        pb.CreateSnapshotRequest(retention=pb.RETENTION_CLASS_PINNED).SerializeToString(),
        catalog.CreateSnapshot(RetentionClass.PINNED),
    ),
    (
        402,
        pb.DeleteSnapshotRequest(generation=4).SerializeToString(),
        catalog.DeleteSnapshot(4),
    ),
    (
        403,
        pb.PruneSnapshotsRequest(keep_last=1, keep_daily=2, validate_only=True).SerializeToString(),
        catalog.PruneSnapshots(1, 2, validate_only=True),
    ),
    (
        404,
        pb.SetSnapshotRetentionRequest(
            generation=4, retention=pb.RETENTION_CLASS_DAILY
        ).SerializeToString(),
        catalog.SetRetention(4, RetentionClass.DAILY),
    ),
    (
        401,
        pb.CreateSnapshotRequest(keep_for_ms=5).SerializeToString(),
        catalog.CreateSnapshot(RetentionClass.LAST, keep_for_ms=5),
    ),
    (
        404,
        pb.SetSnapshotRetentionRequest(generation=4, keep_for_ms=6).SerializeToString(),
        catalog.SetRetention(4, RetentionClass.LAST, keep_for_ms=6),
    ),
    (405, codes.begin_snapshot_request(BEGIN), BEGIN),
    (406, codes.complete_snapshot_request(COMPLETE), COMPLETE),
    (407, codes.fail_snapshot_request(FAIL), FAIL),
    (409, _described().SerializeToString(), catalog.SetDescription("")),
    (
        409,
        _described(
            description="x" * 256, expected_revision=0, validate_only=True
        ).SerializeToString(),
        catalog.SetDescription("x" * 256, 0, validate_only=True),
    ),
]


def _decoded(code: int, item: bytes) -> mux.LoggedSpan:
    """Return the one span of a logged body."""
    span = log_pb2.LoggedSpan(code=code, count=1, items=frame(item), user_id=1)
    body = log_pb2.PrepareBody(requests=[log_pb2.LoggedRequest(spans=[span])])
    return decode_requests(body.SerializeToString())[0].spans[0]


@pytest.mark.parametrize(("code", "item", "command"), PARSED)
def test_commands_are_parsed(code: int, item: bytes, command: CatalogCommand) -> None:
    """Each command arrives as it was sent, alone and as a part of a transaction."""
    assert _decoded(code, item).catalog_commands == (command,)
    part = submit_pb2.TransactRequest(parts=[submit_pb2.TransactionPart(code=code, request=item)])
    (parts,) = _decoded(mux.TRANSACT_CODE, part.SerializeToString()).parts
    assert parts[0].catalog_commands == (command,)


@pytest.mark.parametrize(
    ("text", "case"), [("x" * 257, "length"), ("é" * 129, "length"), ("a\nb", "control_character")]
)
def test_a_description_that_is_long_or_not_clean_is_refused(text: str, case: str) -> None:
    """A description that could act on a terminal, or fill a screen, never becomes state."""
    span = _decoded(409, _described(description=text).SerializeToString())
    error = errors_pb2.Error.FromString(span.refused[0].error)
    assert span.catalog_commands == (None,)
    assert (error.reason, error.case) == (errors_pb2.REASON_INVALID_OPTION, case)
    assert ("field", "description") in {(each.key, each.value) for each in error.details}


@pytest.mark.parametrize(
    ("code", "item", "message"),
    [
        (401, b"\x18\x09", "retention is 9; it must be one of RETENTION_CLASS_LAST"),
        (402, b"\xff", "its bytes are not the request message"),
        (406, b"\x2a\x02\x08\x09", "9 is not a valid stage"),
    ],
)
def test_what_does_not_parse_is_refused_in_its_place(code: int, item: bytes, message: str) -> None:
    """A command that makes no sense is a refusal in log order, never an error."""
    part = submit_pb2.TransactRequest(parts=[submit_pb2.TransactionPart(code=code, request=item)])
    (parts,) = _decoded(mux.TRANSACT_CODE, part.SerializeToString()).parts
    for span in (_decoded(code, item), parts[0]):
        (refused,) = span.refused
        error = errors_pb2.Error.FromString(refused.error)
        assert span.catalog_commands == (None,)
        assert error.reason == errors_pb2.REASON_MALFORMED_REQUEST and not error.message
        assert message in Refusal.from_error(error).message


def test_results_and_cuts_are_encoded() -> None:
    """Results are frames of their responses, and a cut is an item that names its generation."""
    codec = ProtobufCodec()
    assert codec.encode_catalog_result(catalog.CreateSnapshotResult(5)) == b"\x0a\x02\x10\x05"
    assert (
        codec.encode_catalog_result(catalog.PruneSnapshotsResult((1, 2)))
        == b"\x0a\x04\x12\x02\x01\x02"
    )
    assert codec.encode_catalog_result(catalog.CatalogDone()) == mux.EMPTY_FRAME
    batch = mux.StageBatch(mux.Stage.USERS, 1, 2, 1, (mux.CutItem(5),))
    assert encode_batch(batch).items[0].cut.generation == 5
