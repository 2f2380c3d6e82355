"""Runs a transcript: a text file of commands, each followed by what it must lead to.

A block is one or more command lines, a line `----`, and the expected trace up to an empty line.
Lines that begin with `#` tell the story. In traces a nonce is written `replica.boot`, and
checksums are left out.

    cluster N [standbys=N]    that many blank machines; the first command
    start I [base=OP]         crash I if it runs, and start it on its disk, and a snapshot at OP
    found I [wall=US]         answer its BootstrapReady
    batch I [commands=N] [wall=US]
    sync I [count=N]          complete pending journal writes
    superblock I              complete the pending superblock write
    apply I [count=N]
    deliver I J               deliver what is in flight from I to J
    duplicate I J             deliver it, and leave it in flight
    drop I J [count=N]        lose it, or the first N
    tick I ms=N               let N milliseconds pass, then tick I
    read I token=N
    forge I KIND key=value... hand I a message that nobody sent; see FORGERIES
    lose I journal|superblock edit the disk of a machine that will be started again
    lose I disk               give it an empty disk
    damage I op=N [hidden=1]  let a record rot; hidden: not even its op can be told
    stop I                    kill the process; what is sent to it is lost
    abdicate I                ask a primary to resign
    unfit I                   tell I that it is not to lead
    fit I                     tell it that it may again
    suspect I J               tell I that the process of J seems to be gone
    pass ms=N                 let time pass, unseen, while all that is under way happens at once
    settle                    let everything under way happen, unseen, then show the state
    state
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.vsr import (
    Abdicate,
    Admitted,
    Arm,
    BootstrapReady,
    CallerError,
    Commit,
    DiscardAfter,
    Dropped,
    Effect,
    Fit,
    Halted,
    Message,
    PersistPrepares,
    PersistSuperblock,
    PrepareHeader,
    ReadIndexGranted,
    ReadIndexRefused,
    ReadIndexRequested,
    Refused,
    Send,
    SendCommitted,
    SendHeld,
    SnapshotNeeded,
    StatusChanged,
    Stuck,
    Suspect,
    Unfit,
)
from coordinator.vsr.messages import (
    PARENT_OF_FIRST,
    AdmissionDurableMessage,
    AdmissionMessage,
    BlankAnswerMessage,
    BlankQueryMessage,
    CommitMessage,
    CommitOkMessage,
    CommittedGoneMessage,
    CommittedMessage,
    DoViewChangeMessage,
    PrepareMessage,
    PrepareOkMessage,
    ReadIndexReplyMessage,
    ReadIndexRequestMessage,
    RepairMessage,
    RequestAdmissionMessage,
    RequestCommittedMessage,
    RequestPrepareMessage,
    RequestStartViewMessage,
    StartViewChangeMessage,
    StartViewMessage,
)
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID, FEATURE_LEVEL, CoreCluster
from viewstamp.format.prepare import seal
from viewstamp.limits import BOOT_NONCE_BYTES, TICK_MS

SEPARATOR = "----"


@dataclass(frozen=True, slots=True)
class CoreBlock:
    """Story lines, commands, and the trace that they must give."""

    story: tuple[str, ...]
    commands: tuple[str, ...]
    expected: tuple[str, ...]


def parse(text: str) -> list[CoreBlock]:
    """Split a transcript into its blocks. A block of story alone has no commands."""
    blocks = []
    for chunk in text.strip().split("\n\n"):
        lines = chunk.splitlines()
        story = tuple(line for line in lines if line.startswith("#"))
        rest = [line for line in lines if not line.startswith("#")]
        if rest and SEPARATOR not in rest:
            raise ValueError(f"commands without {SEPARATOR}: {rest}")
        split = rest.index(SEPARATOR) if rest else 0
        blocks.append(CoreBlock(story, tuple(rest[:split]), tuple(rest[split + 1 :])))
    return blocks


def run(text: str) -> str:
    """The transcript with the traces that its commands really give."""
    runner = CoreRunner()
    chunks = []
    for block in parse(text):
        lines = list(block.story)
        if block.commands:
            trace = [line for command in block.commands for line in runner.execute(command)]
            lines += [*block.commands, SEPARATOR, *trace]
        chunks.append("\n".join(lines))
    return "\n\n".join(chunks) + "\n"


def nonce_name(nonce: bytes) -> str:
    """A boot nonce as `replica.boot`."""
    return f"{nonce[0]}.{nonce[1]}"


def nonce_of(name: str) -> bytes:
    """The boot nonce of `replica.boot`."""
    replica, boot = name.split(".")
    return bytes([int(replica), int(boot)]) + bytes(BOOT_NONCE_BYTES - 2)


def prepare_text(header: PrepareHeader) -> str:
    """An entry as op and the view that it was sequenced in."""
    return f"{header.op}/{header.view}"


def headers_text(headers: tuple[PrepareHeader, ...]) -> str:
    """Headers, each as op and view."""
    return ",".join(map(prepare_text, headers)) or "none"


def ops_text(ops: tuple[int, ...]) -> str:
    """Return the ops as text, or `none`."""
    return ",".join(map(str, ops)) or "none"


MESSAGE_TEXTS: dict[type, Callable[[Any], str]] = {
    PrepareMessage: lambda m: (
        f"prepare view={m.view} op={m.prepare.op} commit={m.prepare.header.commit}"
    ),
    PrepareOkMessage: lambda m: f"prepare_ok view={m.view} op={m.op}",
    CommitMessage: lambda m: f"commit view={m.view} commit={m.commit} round={m.read_round}",
    CommitOkMessage: lambda m: f"commit_ok view={m.view} round={m.read_round}",
    ReadIndexRequestMessage: lambda m: (
        f"read_index_request view={m.view} nonce={nonce_name(m.nonce)} token={m.token}"
    ),
    ReadIndexReplyMessage: lambda m: (
        f"read_index_reply view={m.view} nonce={nonce_name(m.nonce)} token={m.token} op={m.op}"
    ),
    BlankQueryMessage: lambda m: f"blank_query nonce={nonce_name(m.nonce)}",
    BlankAnswerMessage: lambda m: (
        f"blank_answer echo={nonce_name(m.echo)} nonce={nonce_name(m.nonce)}"
    ),
    StartViewChangeMessage: lambda m: f"start_view_change target={m.target_view}",
    DoViewChangeMessage: lambda m: (
        f"do_view_change view={m.view} log_view={m.log_view} commit={m.commit}"
        f" head={m.head_op}{'?' if m.head_uncertain else ''}"
        f" headers={headers_text(m.headers)} faulty={ops_text(m.faulty)}"
    ),
    StartViewMessage: lambda m: (
        f"start_view view={m.view} nonce={nonce_name(m.nonce)} commit={m.commit}"
        f" head={m.head_op} headers={headers_text(m.headers)}"
    ),
    RequestStartViewMessage: lambda m: (
        f"request_start_view view={m.view} nonce={nonce_name(m.nonce)}"
    ),
    RequestPrepareMessage: lambda m: f"request_prepare op={m.op}",
    RepairMessage: lambda m: f"repair {prepare_text(m.prepare.header)}",
    RequestCommittedMessage: lambda m: f"request_committed {m.first_op}..{m.last_op}",
    CommittedMessage: lambda m: f"committed {prepare_text(m.prepare.header)} commit={m.commit}",
    RequestAdmissionMessage: lambda m: f"request_admission commit={m.commit}",
    AdmissionMessage: lambda m: f"admission view={m.view} voting_view={m.voting_view}",
    AdmissionDurableMessage: lambda m: (
        f"admission_durable view={m.view} voting_view={m.voting_view}"
    ),
    CommittedGoneMessage: lambda m: (
        f"committed_gone first_held={m.first_held_op} generation={m.generation} cut={m.cut_op}"
    ),
}


def message_text(message: Message) -> str:
    """A message in one phrase."""
    return MESSAGE_TEXTS[type(message)](message)


def primary_text(primary: int | None) -> str:
    """Return the replica to ask, in refusals."""
    return "unknown" if primary is None else str(primary)


EFFECT_TEXTS: dict[type, Callable[[Any], str]] = {
    Send: lambda e: f"send to {e.to_replica}: {message_text(e.message)}",
    PersistPrepares: lambda e: f"persist prepares {','.join(str(p.op) for p in e.prepares)}",
    PersistSuperblock: lambda e: (
        f"persist superblock view={e.state.view} log_view={e.state.log_view}"
        f" commit={e.state.commit_max}"
    ),
    DiscardAfter: lambda e: f"discard after {e.op}",
    SendCommitted: lambda e: f"send committed {e.first_op}..{e.last_op} to {e.to_replica}",
    SendHeld: lambda e: f"send held {e.op} to {e.to_replica}",
    SnapshotNeeded: lambda e: (
        f"snapshot needed: generation {e.generation}, cut at {e.cut_op}, from {e.from_replica}"
    ),
    Stuck: lambda e: f"stuck at {e.op}: {e.reason}",
    Commit: lambda e: f"commit {e.op}" + ("" if e.prepare else " from journal"),
    Admitted: lambda e: (
        f"admitted op={e.op} revision={e.first_revision}"
        f" commands={e.command_count} time={e.timestamp_us}"
    ),
    Refused: lambda e: f"refused {e.reason.value} primary={primary_text(e.primary)}",
    ReadIndexGranted: lambda e: f"read {e.token} granted at op {e.op}",
    ReadIndexRefused: lambda e: (
        f"read {e.token} refused {e.reason.value} primary={primary_text(e.primary)}"
    ),
    StatusChanged: lambda e: f"status {e.status.value} view={e.view} primary={e.primary}",
    Halted: lambda e: f"halted: {e.reason}",
    BootstrapReady: lambda e: f"bootstrap ready {' '.join(map(nonce_name, e.nonces))}",
    Dropped: lambda e: f"dropped {e.rule.value}: {message_text(e.message)}",
    Arm: lambda e: "arm off" if e.at_ticks is None else f"arm {e.at_ticks * TICK_MS} ms",
}


def effect_text(effect: Effect) -> str:
    """An effect in one line."""
    return EFFECT_TEXTS[type(effect)](effect)


def forged_prepare(options: dict[str, int]) -> PrepareMessage:
    """A prepare that continues nothing, unless op 1 is asked for."""
    view = options["view"]
    prepare = seal(
        parent=PARENT_OF_FIRST if options["op"] == 1 else b"\x01" * 16,
        cluster_id=CLUSTER_ID,
        view=options.get("entry_view", view),
        op=options["op"],
        commit=0,
        first_revision=options.get("revision", options["op"]),
        command_count=1,
        feature_level=FEATURE_LEVEL,
        timestamp=1,
        body=b"forged",
    )
    return PrepareMessage(CLUSTER_ID, options["from"], view, prepare)


def forged_cluster(options: dict[str, int]) -> bytes:
    """Another cluster's id if the forgery says so."""
    return bytes(16) if options.get("foreign") else CLUSTER_ID


FORGERIES: dict[str, Callable[[dict[str, int]], Message]] = {
    "prepare": forged_prepare,
    "prepare_ok": lambda o: PrepareOkMessage(
        forged_cluster(o), o["from"], o["view"], o["op"], b"\x02" * 16
    ),
    "commit": lambda o: CommitMessage(forged_cluster(o), o["from"], o["view"], o["commit"], b"", 0),
    "commit_ok": lambda o: CommitOkMessage(forged_cluster(o), o["from"], o["view"], o["round"]),
    "read_index_request": lambda o: ReadIndexRequestMessage(
        forged_cluster(o), o["from"], o["view"], nonce_of("9.9"), o["token"]
    ),
    "read_index_reply": lambda o: ReadIndexReplyMessage(
        forged_cluster(o), o["from"], o["view"], nonce_of(f"1.{o['boot']}"), o["token"], o["op"]
    ),
    "blank_query": lambda o: BlankQueryMessage(forged_cluster(o), o["from"], nonce_of("9.9")),
    "blank_answer": lambda o: BlankAnswerMessage(
        forged_cluster(o), o["from"], nonce_of("9.9"), nonce_of("8.8")
    ),
}


class CoreRunner:
    """The cluster of one transcript, and its commands."""

    def __init__(self) -> None:
        self.cluster = CoreCluster(1)

    def execute(self, command: str) -> list[str]:
        """Carry out one command line; returns its trace."""
        verb, *words = command.split()
        plain = [word for word in words if "=" not in word]
        options = {
            name: int(value) for name, value in (word.split("=") for word in words if "=" in word)
        }
        handler: Callable[[list[str], dict[str, int]], list[str]] = getattr(self, f"do_{verb}")
        try:
            return handler(plain, options)
        except CallerError as error:
            return [f"caller error: {error}"]

    def trace(self, index: int, effects: list[Effect]) -> list[str]:
        """The effects of one step of one replica."""
        return [f"{index}: {effect_text(effect)}" for effect in effects]

    def do_cluster(self, words: list[str], options: dict[str, int]) -> list[str]:
        self.cluster = CoreCluster(int(words[0]), options.get("standbys", 0))
        return []

    def do_start(self, words: list[str], options: dict[str, int]) -> list[str]:
        index = int(words[0])
        return self.trace(index, self.cluster.start(index, options.get("base", 0)))

    def do_found(self, words: list[str], options: dict[str, int]) -> list[str]:
        index = int(words[0])
        return self.trace(index, self.cluster.found(index, options.get("wall", 1_000)))

    def do_batch(self, words: list[str], options: dict[str, int]) -> list[str]:
        index = int(words[0])
        effects = self.cluster.batch(index, options.get("commands", 1), options.get("wall", 0))
        return self.trace(index, effects)

    def do_sync(self, words: list[str], options: dict[str, int]) -> list[str]:
        index = int(words[0])
        return self.trace(index, self.cluster.sync(index, options.get("count")))

    def do_superblock(self, words: list[str], options: dict[str, int]) -> list[str]:
        index = int(words[0])
        return self.trace(index, self.cluster.sync_superblock(index))

    def do_apply(self, words: list[str], options: dict[str, int]) -> list[str]:
        index = int(words[0])
        steps = [self.cluster.apply(index) for _ in range(options.get("count", 1))]
        return [line for effects in steps for line in self.trace(index, effects)]

    def in_flight(self, words: list[str]) -> list[tuple[int, Send]]:
        """The messages under way from one replica to another."""
        source, target = map(int, words)
        return [
            item
            for item in self.cluster.network
            if (item[0], item[1].to_replica) == (source, target)
        ]

    def do_deliver(self, words: list[str], options: dict[str, int]) -> list[str]:
        trace = []
        for item in self.in_flight(words):
            effects = self.cluster.deliver(self.cluster.network.index(item))
            trace += self.trace(item[1].to_replica, effects)
        return trace

    def do_duplicate(self, words: list[str], options: dict[str, int]) -> list[str]:
        trace = []
        for item in self.in_flight(words):
            effects = self.cluster.deliver(self.cluster.network.index(item), keep=True)
            trace += self.trace(item[1].to_replica, effects)
        return trace

    def do_drop(self, words: list[str], options: dict[str, int]) -> list[str]:
        lost = self.in_flight(words)[: options.get("count")]
        for item in lost:
            self.cluster.network.remove(item)
        return [f"lost to {item[1].to_replica}: {message_text(item[1].message)}" for item in lost]

    def do_tick(self, words: list[str], options: dict[str, int]) -> list[str]:
        self.cluster.now_ticks += options["ms"] // TICK_MS
        index = int(words[0])
        return self.trace(index, self.cluster.tick(index))

    def do_read(self, words: list[str], options: dict[str, int]) -> list[str]:
        index = int(words[0])
        return self.trace(index, self.cluster.step(index, ReadIndexRequested(options["token"])))

    def do_forge(self, words: list[str], options: dict[str, int]) -> list[str]:
        index = int(words[0])
        return self.trace(index, self.cluster.receive(index, FORGERIES[words[1]](options)))

    def do_lose(self, words: list[str], options: dict[str, int]) -> list[str]:
        machine = self.cluster.machines[int(words[0])]
        if words[1] == "disk":
            machine.lose_disk()
        elif words[1] == "journal":
            machine.journal.clear()
        else:
            machine.superblock = None
        return []

    def do_damage(self, words: list[str], options: dict[str, int]) -> list[str]:
        machine = self.cluster.machines[int(words[0])]
        machine.damaged.add(options["op"])
        machine.hides_head = bool(options.get("hidden"))
        return []

    def do_stop(self, words: list[str], options: dict[str, int]) -> list[str]:
        self.cluster.stop(int(words[0]))
        return []

    def do_abdicate(self, words: list[str], options: dict[str, int]) -> list[str]:
        index = int(words[0])
        return self.trace(index, self.cluster.step(index, Abdicate("asked to")))

    def do_unfit(self, words: list[str], options: dict[str, int]) -> list[str]:
        index = int(words[0])
        return self.trace(index, self.cluster.step(index, Unfit("no space")))

    def do_fit(self, words: list[str], options: dict[str, int]) -> list[str]:
        index = int(words[0])
        return self.trace(index, self.cluster.step(index, Fit()))

    def do_suspect(self, words: list[str], options: dict[str, int]) -> list[str]:
        index, suspected = map(int, words)
        return self.trace(index, self.cluster.step(index, Suspect(suspected)))

    def do_pass(self, words: list[str], options: dict[str, int]) -> list[str]:
        self.cluster.pass_time(options["ms"])
        return self.do_state(words, options)

    def do_settle(self, words: list[str], options: dict[str, int]) -> list[str]:
        self.cluster.settle()
        return self.do_state(words, options)

    def do_state(self, words: list[str], options: dict[str, int]) -> list[str]:
        return [
            f"<replica {machine.index} is stopped>"
            if machine.index in self.cluster.stopped
            else repr(machine.replica)
            for machine in self.cluster.machines
        ]


def check_file(path: Path, *, rewrite: bool) -> None:
    """Compare a transcript with the real effects, or record them."""
    text = path.read_text(encoding="utf-8")
    actual = run(text)
    if rewrite:
        path.write_text(actual, encoding="utf-8")
        return
    assert text == actual, f"{path.name}: run with REWRITE_TRANSCRIPTS=1 and read the diff"
