"""The method of a request message."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from testkit.api_methods import methods_by_request
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client.methods import METHODS, method_of


def test_every_request_leads_to_its_method() -> None:
    """Requests of each file of the API are found, and only those of callers' methods are."""
    for request, method in methods_by_request().items():
        assert method_of(request()) == method
    assert set(METHODS) == set(methods_by_request())


@pytest.mark.parametrize("message", [streams_pb2.Stream(), users_pb2.FoundRequest()])
def test_other_messages_are_refused(message: Message) -> None:
    """An entity, or the request of an internal command, is refused, and the error says so."""
    with pytest.raises(TypeError, match=f"{type(message).__name__} is not the request of a public"):
        method_of(message)
