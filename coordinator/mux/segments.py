"""One span on its way through the stages: what was refused, resolved, answered and emitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from coordinator.mux.results import check_errors, empty_frames, merge_errors
from coordinator.mux.runs import Leg, Visit
from coordinator.mux.types import (
    CommandItem,
    CommandOutcome,
    Done,
    Effect,
    EffectItem,
    Error,
    IndexedError,
    Item,
    LoggedSpan,
    MuxError,
    Outcome,
    ResolveItem,
    ResolveOutcome,
    Route,
    SpanReply,
    Stage,
)


class Segment:
    """The commands of one span, all in one run."""

    __slots__ = (
        "contexts",
        "effects",
        "first_revision",
        "is_withdrawn",
        "refusals",
        "results",
        "route",
        "session_id",
        "span",
        "timestamp",
    )

    def __init__(
        self, route: Route, span: LoggedSpan, first_revision: int, session_id: int, timestamp: int
    ) -> None:
        """Begin with the refusals from before the log."""
        check_errors(span.refused, span.count, f"logged span of code {span.code}")
        self.route = route
        self.span = span
        self.first_revision = first_revision
        self.session_id = session_id
        self.timestamp = timestamp
        self.refusals = span.refused
        # Set if the whole request was refused: no stage sees the segment.
        self.is_withdrawn = False
        self.contexts = b""
        self.results: bytes | None = None
        self.effects: dict[Stage, list[EffectItem]] = {}

    @property
    def is_open(self) -> bool:
        """Whether any command has not been refused."""
        return not self.is_withdrawn and len(self.refusals) < self.span.count

    @property
    def refused(self) -> tuple[int, ...]:
        """The indexes refused so far, ascending."""
        return tuple(error.index for error in self.refusals)

    def refuse(self, errors: Sequence[IndexedError]) -> None:
        """Add refusals of commands that were not refused before."""
        if errors:
            what = f"code {self.span.code} at revision {self.first_revision}"
            check_errors(errors, self.span.count, what)
            self.refusals = merge_errors(self.refusals, errors, what)

    def refuse_rest(self, error: Error) -> None:
        """Refuse all commands not yet refused."""
        refused = frozenset(self.refused)
        self.refuse([IndexedError(i, error) for i in range(self.span.count) if i not in refused])

    def emit(self, effects: Sequence[Effect]) -> None:
        """Take effects of this span's commands, to be handed to their stages."""
        previous = 0
        refused = frozenset(self.refused)
        for effect in effects:
            if not previous <= effect.index < self.span.count or effect.index in refused:
                raise MuxError(
                    f"code {self.span.code} emits an effect at index {effect.index} after "
                    f"{previous}; indexes must ascend, lie below {self.span.count}, not be refused"
                )
            previous = effect.index
            revision = self.first_revision + effect.index
            for stage in effect.to:
                self._check_target(stage)
                item = EffectItem(revision, effect.payload, self.timestamp)
                self.effects.setdefault(stage, []).append(item)

    def reply(self) -> SpanReply:
        """Return the span's results; only once its stages have answered."""
        results = empty_frames(self.span.count) if self.results is None else self.results
        return SpanReply(results, self.refusals)

    def standing_segments(self) -> Sequence[Segment]:
        """Return this segment: its changes stand, as far as they were not refused."""
        return (self,)

    def _check_target(self, stage: Stage) -> None:
        """Raise MuxError unless the run still visits the stage."""
        if not self.route.sends_forward(stage) and stage not in self.route.emits_backward:
            raise MuxError(
                f"code {self.span.code} of {self.route.owner.name} emits an effect to "
                f"{stage.name}; it may to later services and to what its emits_backward names"
            )


def compose(segments: Sequence[Segment], visit: Visit) -> list[tuple[Item, Segment]]:
    """Return the visit's items in revision order, each with its segment."""
    composer = _COMPOSERS[visit.leg]
    return [(item, segment) for segment in segments for item in composer(segment, visit.stage)]


def absorb(item: Item, segment: Segment, outcome: Outcome) -> None:
    """Take the answer to an item. Raises MuxError if it does not fit the item."""
    match item, outcome:
        case CommandItem(), CommandOutcome():
            segment.results = outcome.results
            segment.refuse(outcome.errors)
            segment.emit(outcome.effects)
        case ResolveItem(), ResolveOutcome():
            segment.contexts = outcome.contexts
            segment.refuse(outcome.errors)
        case EffectItem(), Done():
            pass
        case _:
            raise mismatch(item, outcome)


def mismatch(item: Item, outcome: Outcome) -> MuxError:
    """Return the error for an answer of the wrong kind."""
    return MuxError(f"a {type(item).__name__} was answered by a {type(outcome).__name__}")


def _resolve_grants(segment: Segment, stage: Stage) -> Sequence[Item]:
    """Return the item that asks streams for the ids that permissions name."""
    return (_resolve_item(segment),) if segment.is_open else ()


def _forward(segment: Segment, stage: Stage) -> Sequence[Item]:
    """Return the commands, the resolve item, or the effects for the stage."""
    if stage == segment.route.owner:
        return (_command_item(segment),) if segment.is_open else ()
    if stage == segment.route.resolve_stage:
        return (_resolve_item(segment),) if segment.is_open else ()
    return segment.effects.get(stage, ()) if stage > segment.route.owner else ()


def _backward(segment: Segment, stage: Stage) -> Sequence[Item]:
    """Return the effects that go back to the stage."""
    return segment.effects.get(stage, ()) if stage < segment.route.owner else ()


_COMPOSERS: Mapping[Leg, Callable[[Segment, Stage], Sequence[Item]]] = MappingProxyType(
    {Leg.RESOLVE_GRANTS: _resolve_grants, Leg.FORWARD: _forward, Leg.BACKWARD: _backward}
)


def _command_item(segment: Segment) -> CommandItem:
    """Return the item for the owner."""
    span = segment.span
    return CommandItem(
        code=span.code,
        first_revision=segment.first_revision,
        count=span.count,
        items=span.items,
        user_id=span.user_id,
        credential_revision=span.credential_revision,
        session_id=segment.session_id,
        timestamp=segment.timestamp,
        refused=segment.refused,
        contexts=segment.contexts,
    )


def _resolve_item(segment: Segment) -> ResolveItem:
    """Return the item for the resolving stage."""
    span = segment.span
    return ResolveItem(
        code=span.code,
        first_revision=segment.first_revision,
        count=span.count,
        items=span.items,
        user_id=span.user_id,
        credential_revision=span.credential_revision,
        gate=segment.route.gate,
        grants=segment.route.sets_grants,
        refused=segment.refused,
    )
