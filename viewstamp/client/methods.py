"""Which method a request message belongs to: read from the API's own descriptors."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import Message

from viewstamp.routing import Method, methods_of_file


class _Methods(dict[type[Message], Method]):
    """The methods that callers may use, by the type of the request; files are read when needed."""

    def __missing__(self, request: type[Message]) -> Method:
        """Read the methods of the file that has the request. Raises TypeError if none takes it."""
        file: Any = request.DESCRIPTOR.file
        methods = methods_of_file(file)
        self.update({method.request: method for method in methods if not method.internal})
        if request not in self:
            raise TypeError(
                f"{request.__name__} is not the request of a public method; give one of the "
                "*Request messages in viewstamp.api"
            )
        return self[request]


METHODS: Final = _Methods()


def method_of(request: Message) -> Method:
    """Return the method of a request. Raises TypeError if it is no method's request."""
    return METHODS[type(request)]
