"""The messages of a watch joined into whole revisions."""

from __future__ import annotations

import pytest

from tests.viewstamp.client.fake_feed import stream_change
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client import ProtocolError
from viewstamp.client import revisions as revisions_module
from viewstamp.client.errors import RevisionTooLarge
from viewstamp.client.revisions import RevisionJoin


def message(complete: int, *revisions: int) -> watch_pb2.WatchResponse:
    """Return a message with a change of each revision."""
    changes = [stream_change(revision, 1) for revision in revisions]
    header = common_pb2.ResponseHeader(revision=complete)
    return watch_pb2.WatchResponse(header=header, changes=changes)


def taken(join: RevisionJoin, *messages: watch_pb2.WatchResponse) -> list[list[int]]:
    """Return the numbers of changes by whole revision, for each message."""
    return [[len(each.changes) for each in join.take(message)] for message in messages]


def test_a_revision_waits_for_the_header_that_completes_it() -> None:
    """Parts of a revision are given out together, once a header has reached it."""
    join = RevisionJoin(3)
    assert taken(join, message(3, 4), message(3, 4), message(5, 4, 5)) == [[], [], [3, 1]]
    assert join.complete_revision == 5


def test_a_header_without_changes_completes_a_revision() -> None:
    """What was sent of a revision is given out when a progress message reaches it."""
    join = RevisionJoin(3)
    assert taken(join, message(3, 4), message(4)) == [[], [1]]


def test_a_new_call_sends_the_parts_again() -> None:
    """Parts that came over a call which ended are forgotten, so that none counts twice."""
    join = RevisionJoin(3)
    assert taken(join, message(3, 4)) == [[]]
    join.begin(3)
    assert taken(join, message(3, 4), message(4, 4)) == [[], [2]]


@pytest.mark.parametrize("begun", [2, 4])
def test_a_feed_begins_where_the_last_one_ended(begun: int) -> None:
    """A first header before or behind the last complete revision is an error of the cluster."""
    join = RevisionJoin(3)
    with pytest.raises(ProtocolError, match="changes would be lost"):
        join.begin(begun)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([message(2)], "went back from 3 to 2"),
        ([message(5, 3)], "revision 3 came where 4 or later"),
        ([message(6, 5, 4)], "revision 4 came where 5 or later"),
        ([message(3, 5), message(6, 4)], "revision 4 came where 5 or later"),
    ],
)
def test_a_feed_out_of_order_is_an_error(
    messages: list[watch_pb2.WatchResponse], told: str
) -> None:
    """A change or a header that goes back is an error of the cluster, and says where."""
    join = RevisionJoin(3)
    with pytest.raises(ProtocolError, match=told):
        taken(join, *messages)


def test_a_revision_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts beyond the limit raise an error with the revision, and nothing counts as complete."""
    size = stream_change(4, 1).ByteSize()
    monkeypatch.setattr(revisions_module, "INCOMPLETE_REVISION_BYTES_MAX", 2 * size)
    join = RevisionJoin(2)
    assert taken(join, message(3, 3, 4, 4)) == [[1]]
    with pytest.raises(RevisionTooLarge, match="3 changes of revision 4"):
        join.take(message(3, 4))
    assert join.complete_revision == 3


def test_whole_revisions_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Revisions that were given out no longer count, however many there were."""
    monkeypatch.setattr(
        revisions_module, "INCOMPLETE_REVISION_BYTES_MAX", stream_change(4, 1).ByteSize()
    )
    join = RevisionJoin(0)
    parts = [message(revision - 1, revision) for revision in range(1, 20)]
    assert taken(join, *parts) == [[], *[[1]] * 18]
