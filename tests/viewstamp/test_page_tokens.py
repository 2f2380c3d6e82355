"""Page tokens belong to one list."""

from __future__ import annotations

import base64

import pytest

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import NAME_BYTES_MAX
from viewstamp.paging import BEFORE_ALL_IDS, BEFORE_ALL_NAMES, PagedList

TOPICS = PagedList("ListTopics", 7)
OTHERS = {
    "another method": PagedList("ListStreams"),
    "same parent": PagedList("ListUsers", 7),
    "another parent": PagedList("ListTopics", 8),
    "no parent": PagedList("ListTopics"),
    "one parent more": PagedList("ListTopics", 7, 0),
}


@pytest.mark.parametrize("id_", [0, 1, 2**64 - 1])
def test_a_token_of_an_id_leads_back(id_: int) -> None:
    """A list finds the id in its own token, and begins before all others without one."""
    assert PagedList("ListTopics", 7).id_after(TOPICS.id_token(id_)) == id_
    assert TOPICS.id_after("") == BEFORE_ALL_IDS


@pytest.mark.parametrize("name", ["", "x", "é", "n" * NAME_BYTES_MAX])
def test_a_token_of_a_name_leads_back(name: str) -> None:
    """A list finds the name in its own token, however long, and begins before all without one."""
    assert TOPICS.name_after(TOPICS.name_token(name)) == name
    assert TOPICS.name_after("") == BEFORE_ALL_NAMES


@pytest.mark.parametrize("other", OTHERS)
def test_a_token_of_another_list_is_refused(other: str) -> None:
    """A token of another list is not called malformed, and the refusal gives the right form."""
    for refused in (
        lambda: OTHERS[other].id_after(TOPICS.id_token(1)),
        lambda: OTHERS[other].name_after(TOPICS.name_token("n")),
    ):
        with pytest.raises(Refusal, match="start again with an empty token") as caught:
            refused()
        assert caught.value.reason == Reason.REASON_MALFORMED_REQUEST
        assert caught.value.details["field"] == "page_token"


def test_tokens_of_older_builds_are_refused() -> None:
    """Tokens of older builds had the key alone: their holders begin again."""
    id_token = base64.urlsafe_b64encode((1).to_bytes(8, "big")).decode()
    with pytest.raises(Refusal, match="an older build"):
        TOPICS.id_after(id_token)
    name_token = base64.urlsafe_b64encode(b"some name").decode()
    with pytest.raises(Refusal, match="an older build"):
        TOPICS.name_after(name_token)
