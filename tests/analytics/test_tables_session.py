"""The Spark session starts where it can, and says in one line why where it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import analytics
from analytics import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_folder_hides_no_package() -> None:
    """From inside `tests/analytics`, `import analytics` finds the package, not this folder."""
    assert Path(analytics.__file__).parent != Path(__file__).parent
    assert Path(session.__file__).parts[-2:] == ("analytics", "session.py")


def test_session_counts_in_utc(spark: SparkSession) -> None:
    """The session has our settings: days are those of UTC whatever the machine's zone."""
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.range(3).count() == 3


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (None, "Java is missing"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is Java 11, Spark needs 17"),
        ("echo nonsense >&2", "does not say its version"),
        ("exit 1", "does not say its version"),
    ],
)
def test_unfit_java_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, complaint: str
) -> None:
    """Without a fitting Java the error is one line that says what to install."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    if script is not None:
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(session.AnalyticsError, match=complaint) as caught:
        session.check_java()
    assert "openjdk-17-jre-headless" in str(caught.value)
    assert "\n" not in str(caught.value)
