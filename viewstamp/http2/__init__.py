"""HTTP/2 without input and output: what gRPC needs of RFC 9113, for both ends of a connection.

**How it is put together.** Bytes that come go to a `FrameReceiver`, which cuts frames out of them
(`frames`), checks each against a table of shapes, and gives it to the handler of its kind. Handlers
change the `Connection`, which keeps the streams (`streams`: a table says which step leads where).
What leaves goes through `Outgoing`: frames in order, data as far as the peer's windows allow.
Fields are read and written by `blocks`, decoded by `field_decoder`, and judged by `fields`.

**What a caller does.** Give `FrameReceiver.receive` what came, act on the events it returns, send
what `Connection.output` has. Return the bytes of each `DataReceived` when they are used: only then
may the peer send more.

**What goes wrong** is a value, not an exception for the caller: a fault of the peer on one stream
resets the stream and is told by `StreamReset`; one of the connection ends it, and is told by
`ConnectionFailed`. Only a caller who sends on a stream that has ended gets an exception.

**What a peer may cost us** is in `limits`: open streams, unused bytes, sizes, and how often it may
do what carries nothing. Memory of a connection is bounded by these, whatever comes.

**What is not here, on purpose:** server push, priorities (read and ignored), HTTP/1 and upgrades
from it, CONNECT, and a table for what we send: our blocks mean the same on every connection.
"""

from viewstamp.http2.blocks import write as write_block
from viewstamp.http2.blocks import write_varying
from viewstamp.http2.connection import Connection, Role
from viewstamp.http2.errors import ErrorCode, StreamClosed
from viewstamp.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    FieldsReceived,
    GoingAway,
    PingAnswered,
    QueueEmptied,
    SettingsReceived,
    StreamReset,
)
from viewstamp.http2.fields import Field, FieldSection, MessagePart
from viewstamp.http2.limits import Limits
from viewstamp.http2.receiving import FrameReceiver

__all__ = [
    "Connection",
    "ConnectionFailed",
    "DataReceived",
    "ErrorCode",
    "Event",
    "Field",
    "FieldsReceived",
    "GoingAway",
    "Limits",
    "MessagePart",
    "PingAnswered",
    "QueueEmptied",
    "FrameReceiver",
    "Role",
    "FieldSection",
    "SettingsReceived",
    "StreamClosed",
    "StreamReset",
    "write_block",
    "write_varying",
]
