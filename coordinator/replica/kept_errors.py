"""Refusals in answers as the mux keeps them, decoded one at a time when read.

A decoded refusal takes about a kilobyte. Its encoded form takes a sixth of that, and the mux keeps
the encoded form in any case. An answer may have thousands of refusals, and its client may not read
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, overload

from coordinator.mux import types as mux
from coordinator.mux.replies import ERROR_OVERHEAD_BYTES
from coordinator.stages import codec
from viewstamp.api.errors.v1 import errors_pb2

# The memory of a decoded refusal, roughly.
DECODED_ERROR_BYTES: Final = 1_024


class KeptErrors(Sequence[errors_pb2.IndexedError]):
    """The refusals of a span, shared with the table of replies."""

    __slots__ = ("_encoded",)

    def __init__(self, encoded: tuple[mux.IndexedError, ...]) -> None:
        self._encoded = encoded

    def __len__(self) -> int:
        return len(self._encoded)

    def __iter__(self) -> Iterator[errors_pb2.IndexedError]:
        return map(codec.indexed_error, self._encoded)

    @overload
    def __getitem__(self, index: int) -> errors_pb2.IndexedError: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[errors_pb2.IndexedError]: ...

    def __getitem__(
        self, index: int | slice
    ) -> errors_pb2.IndexedError | Sequence[errors_pb2.IndexedError]:
        if isinstance(index, slice):
            return KeptErrors(self._encoded[index])
        return codec.indexed_error(self._encoded[index])

    @property
    def weight(self) -> int:
        """Bytes kept."""
        return sum(ERROR_OVERHEAD_BYTES + len(error.error) for error in self._encoded)


def errors_weight(errors: Sequence[errors_pb2.IndexedError]) -> int:
    """Return how many bytes the refusals keep, decoded or not."""
    if isinstance(errors, KeptErrors):
        return errors.weight
    return DECODED_ERROR_BYTES * len(errors)
