"""Output for programs: values as JSON or YAML, whole or one of many.

YAML shows the same values as JSON, and only it loads a library.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Final

# No text is folded: a line is as long as what stands in it.
YAML_LINE_CHARACTERS: Final = 1 << 30


class OutputFormat(Enum):
    """How a command prints what it has found or done."""

    table = "table"
    json = "json"
    yaml = "yaml"
    name = "name"


def document(output: OutputFormat, value: Any) -> str:
    """Return a document of JSON values, in several lines."""
    if output is OutputFormat.yaml:
        return _yaml(value)
    return json.dumps(value, indent=2, ensure_ascii=False)


def document_line(output: OutputFormat, value: Any) -> str:
    """Return one document of many: a line of JSON, or YAML behind a line of three dashes."""
    if output is OutputFormat.yaml:
        return f"---\n{_yaml(value)}"
    return json.dumps(value, ensure_ascii=False)


def _yaml(value: Any) -> str:
    # Imported late: most commands print no YAML.
    import yaml

    # By way of JSON, so that both have the same types: no tuples, and keys that are text.
    same = json.loads(json.dumps(value))
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(
        same, Dumper=dumper, sort_keys=False, allow_unicode=True, width=YAML_LINE_CHARACTERS
    )
    return text.removesuffix("\n").removesuffix("\n...")
