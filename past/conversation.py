"""What the process of the past does with each message of its coordinator."""

from __future__ import annotations

from coordinator.history.messages import (
    AddBlocks,
    ApplyEntries,
    AskState,
    BeginState,
    LoadState,
    PastAnswer,
    PastMessage,
    StateFailed,
    WalkEntries,
)
from coordinator.mux.entities import RestoreError
from coordinator.mux.stage import Stage
from past.blame import place_of, walked
from past.sections import ArrivingSnapshot
from past.state import ForeignEntryError, PastState
from services.runtime.installing import NewerSectionError, SectionContentsError
from viewstamp.format import FormatError
from viewstamp.format.manifest import decode_manifest

# Of a snapshot that is damaged or of another build, and of an entry that does not follow.
UNUSABLE = (
    FormatError,
    RestoreError,
    SectionContentsError,
    NewerSectionError,
    ForeignEntryError,
)


class PastConversation:
    """Holds one state at a time, and answers messages in their order."""

    def __init__(self) -> None:
        self._state = PastState()
        self._arriving: ArrivingSnapshot | None = None

    def answer(self, message: PastMessage) -> PastAnswer:
        """Carry a message out, and return how far the state is, or what was read."""
        try:
            match message:
                case BeginState():
                    self._begin(message.manifest)
                case AddBlocks():
                    self._add(message)
                case LoadState():
                    self._load()
                case ApplyEntries():
                    for entry in message.entries:
                        self._state.apply(entry, message.last_revision)
                case AskState():
                    return self._state.read(message.read)
                case WalkEntries():
                    return walked(self._state, message)
        except UNUSABLE as error:
            return StateFailed(str(error))
        return place_of(self._state)

    def _begin(self, manifest: bytes | None) -> None:
        self._state = PastState()  # the one before is freed before another one is loaded
        self._arriving = None if manifest is None else ArrivingSnapshot(decode_manifest(manifest))

    def _add(self, message: AddBlocks) -> None:
        assert self._arriving is not None, "blocks come behind a manifest"
        for layer, block in message.blocks:
            self._arriving.add(Stage(message.stage), layer, [block])

    def _load(self) -> None:
        assert self._arriving is not None, "a snapshot is loaded once it has come"
        arriving, self._arriving = self._arriving, None
        self._state = arriving.state()
