"""Documents with faults, and what is said of them."""

from __future__ import annotations

from pathlib import Path

from viewstamp.document_tree import FILE_BYTES_MAX

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "topology.yaml"
TOPIC = "version: 1\nstreams:\n- name: s\n  topics:\n  - name: t\n    "
GROUP = TOPIC + "groups:\n    - name: g\n      "
USER = "version: 1\nusers:\n- username: bob\n  "

# Text of a document, and what is said of it.
FAULTS = [
    ("", "f: it holds no document: begin with `version: 1`"),
    ("---\n---\n", "f: it holds no document"),
    ("[]", "f:1: it must be a map with version, prune, streams, users, not a list"),
    ("version: [", "f:2: it is no YAML: "),
    ("version: \x07", "f: it is no YAML: "),
    ("streams: []", "f:1: it lacks 'version'"),
    ("version: 2", "f:1: version: it must be the number 1, not 2"),
    ("version: '1'", "f:1: version: it must be the number 1, not '1'"),
    ("version: 01", "f:1: version: it must be the number 1, not 01"),
    ("version: 1\nstreams:", "f:2: streams: it must be a list, not nothing"),
    ("version: 1\nstream: []", "f:2: stream: this key is unknown here; known are version, prune,"),
    ("version: 1\nstream: []", "do you mean streams?"),
    ("version: 1\nversion: 1", "f:2: the key 'version' stands twice, first in line 1"),
    ("version: 1\nstreams:\n- name: 12", "f:3: streams[0].name: it must be text, not 12: write "),
    ("version: 1\nstreams:\n- name: 2026-01-01", "streams[0].name: it must be text, not 2026-01"),
    ("version: 1\nstreams:\n- name: yes", "streams[0].name: it must be text, not yes"),
    ("version: 1\nstreams:\n- name: ''", "f:3: streams[0].name: The stream name has 0 bytes"),
    ('version: 1\nstreams:\n- name: "a\\eb"', "The stream name has the control character U+001B"),
    ('version: 1\n"\\e[1m": 1', "f:2: ?[1m: this key is unknown here"),
    ("version: 1\nstreams:\n- prune: true", "f:3: streams[0]: it lacks 'name'"),
    ("version: 1\nstreams:\n- name: s\n- name: s", "streams[1]: 's' stands here twice, first in"),
    (TOPIC + "partitions: -1", "f:6: streams[0].topics[0].partitions: it must be a whole number "),
    (TOPIC + "partitions: 1000001", "from 0 to 1000000, not 1000001"),
    (TOPIC + "partitions: 1_000", "from 0 to 1000000, not 1_000"),
    (TOPIC + "partitions: 0x10", "from 0 to 1000000, not 0x10"),
    (TOPIC + "partitions: 1.5", "from 0 to 1000000, not 1.5"),
    (TOPIC + "prune: yes", "f:6: streams[0].topics[0].prune: it must be true or false, not yes"),
    (TOPIC + "message_expiry: 7", "topics[0].message_expiry: it must be a duration from 1us to "),
    (TOPIC + "message_expiry: 7 d", "or never, with a unit (us, ms, s, m, h, d, w), not '7 d'"),
    (TOPIC + "message_expiry: 0s", "it must be a duration from 1us"),
    (TOPIC + "max_topic_size: 10GB", "max_topic_size: it must be a size from 1MiB to "),
    (TOPIC + "max_topic_size: 0", "or unlimited: bytes, or a unit (B, KiB, MiB, GiB, TiB), not 0"),
    (TOPIC + "segment_size: 1048577", "from 1MiB to 1GiB, a multiple of 512: bytes, or a unit"),
    (TOPIC + "segment_size: 2GiB", "segment_size: it must be a size from 1MiB to 1GiB"),
    (
        TOPIC + "segment_size: 2MiB\n    max_topic_size: 1MiB",
        "f:5: streams[0].topics[0]: max_topic_size must be at least segment_size",
    ),
    (TOPIC + "compression_algorithm: snappy", "it must be one of none, gzip, lz4, zstd, not 'sn"),
    (TOPIC + "replication_factor: 0", "replication_factor: it must be a whole number from 1 to"),
    (GROUP + "member_timeout: 5s", "groups[0].member_timeout: it must be a duration from 6s to 1h"),
    (GROUP + "member_timeout: 6500500us", "member_timeout: it must be a duration from 6s to 1h"),
    (GROUP + "offsets_retention: never", "from 1m to 3650d or forever, with a unit (ms, s, "),
    (GROUP + "assignor: rang", "it must be one of uniform, range, not 'rang'; do you mean range?"),
    (USER + "status: on", "users[0].status: it must be one of active, inactive, not on"),
    (USER + "password: x", "f:4: users[0].password: this key is unknown here"),
    (USER + "permissions:\n    global: [read_stream]", "users[0].permissions.global[0]: it must"),
    (USER + "permissions:\n    global: [read_users, read_users]", "global[1]: 'read_users' stands"),
    ("version: 1\nusers:\n- username: root", "f:3: users[0]: root belongs to no topology"),
    ("version: 1\nusers:\n- username: ed", "users[0].username: The username has 2 bytes"),
    ("version: 1\nprune: true", "f:2: prune: it must be a map with streams, users, not true"),
    ("version: &v 1\nstreams: *v", "f:2: *v is an alias: write the value out"),
    ("version: !!int 1", "f:1: tag:yaml.org,2002:int is a tag: leave it out"),
    ("? [a]\n: 1", "f:1: a key must be text"),
    ("[" * 30, "f:1: it is nested deeper than 20 levels"),
    # What the library refuses by itself, or hands over for us to refuse.
    ("[" * 100_000, "f:1: it is n"),
    (" " * (FILE_BYTES_MAX + 1), "f: it is too large: at most 4194304 bytes"),
]
