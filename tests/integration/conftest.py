"""Each test of this folder has a user of its own: a plain HOME, and garrison's home and worktrees below it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import UserWorld
from top_support import HomeBuilder, home_builder


@pytest.fixture(autouse=True)
def user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> UserWorld:
    """The user whom this process, and what it starts, runs for."""
    made = UserWorld(tmp_path_factory.mktemp("u"))
    made.enter(monkeypatch)
    return made


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[HomeBuilder]:
    """Makes records of runs in `tmp_path`."""
    with home_builder(tmp_path) as made:
        yield made
