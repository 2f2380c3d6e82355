"""The JSON schema and the reader of documents agree, because one table makes both."""

from __future__ import annotations

import yaml
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from tests.viewstamp.topology.document_faults import EXAMPLE, FAULTS
from tests.viewstamp.topology.drawn_topologies import topologies
from viewstamp import topology
from viewstamp.topology.documents import values_of
from viewstamp.topology.model import Topology

SCHEMA = Draft202012Validator(topology.document_schema())
# Faults that a schema cannot express: docs/topology.md lists them.
READER_ALONE = (
    "stands here twice",
    "stands twice",
    "control character",
    "it must be a duration from",
    "or unlimited: bytes, or a unit",
    "it must be a size from",
    "max_topic_size must be at least segment_size",
    "root belongs to no topology",
    "The username has 2 bytes",
    "it must be the number 1, not 01",
    "not 1_000",
    "not 0x10",
    "is an alias",
    "is a tag",
    "not yes",
    "'read_users' stands",
)


@settings(max_examples=40)
@given(topologies())
def test_what_is_written_is_read_again(wanted: Topology) -> None:
    """A topology is the same after it was written and read, and the schema takes it."""
    assert topology.parsed(topology.dumped(wanted)) == [wanted]
    assert [*SCHEMA.iter_errors(values_of(wanted))] == []


def test_the_schema_is_one() -> None:
    """The schema follows its own specification, and takes the example."""
    Draft202012Validator.check_schema(SCHEMA.schema)
    assert [*SCHEMA.iter_errors(yaml.safe_load(EXAMPLE.read_text()))] == []


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    """A fault that the schema lets pass is one of those that it cannot express."""
    passed = []
    refused = 0
    for text, said in FAULTS:
        try:
            values = yaml.safe_load(text) if len(text) < 10_000 else None
        except yaml.YAMLError:
            continue
        if not isinstance(values, dict):
            continue
        if SCHEMA.is_valid(values):
            passed.append(said)
        else:
            refused += 1
    assert refused > 15
    assert [said for said in passed if not any(part in said for part in READER_ALONE)] == []
