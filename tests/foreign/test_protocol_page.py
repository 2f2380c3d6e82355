"""What other languages have to know is on a page, and in the examples, as the code has it."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.foreign.verdict_tables import PAGE, with_tables
from tests.tidy.tree import ROOT
from viewstamp.client.verdicts import VERDICTS, RetryVerdict
from viewstamp.errors import reason_name

# File with the table of an example: `"NOT_PRIMARY": Reconnect,` in Go, for example.
TABLES: Final = (
    "go/refusal.go",
    "typescript/src/refusal.ts",
    "java/src/main/java/example/Verdict.java",
)
ENTRY: Final = re.compile(
    r'^\s*(?:Map\.entry\()?"?(?P<reason>[A-Z_]+)"?[:,]\s+(?:Verdict\.)?(?P<verdict>\w+)\)*[,;]?$',
    re.MULTILINE,
)


def test_the_page_has_the_tables_of_the_code() -> None:
    """The page says what our client does; `python -m tests.foreign.verdict_tables` writes it."""
    assert PAGE.read_text() == with_tables(PAGE.read_text())


@pytest.mark.parametrize("name", TABLES)
def test_examples_do_what_our_client_does(name: str) -> None:
    """An example does about each reason what our client does."""
    text = (ROOT / "examples" / name).read_text()
    entries = ((each["reason"], each["verdict"].upper()) for each in ENTRY.finditer(text))
    found = {reason: verdict for reason, verdict in entries if verdict in RetryVerdict.__members__}
    assert found == {reason_name(reason): verdict.name for reason, verdict in VERDICTS.items()}
