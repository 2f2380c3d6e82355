"""The foreign ends, each of which is built once."""

from __future__ import annotations

import pytest

from tests.foreign.languages import LANGUAGES, ForeignEnds, ForeignLanguage


@pytest.fixture(scope="session", params=LANGUAGES, ids=lambda language: language.name)
def ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ForeignEnds:
    """Build a client and a server of each language, and return their commands."""
    language: ForeignLanguage = request.param
    return language.built_in(tmp_path_factory.mktemp("foreign"))
