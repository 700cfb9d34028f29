"""Each test of this folder has a user of its own: a plain HOME, and garrison's home and worktrees below it."""

from __future__ import annotations

import pytest

from support import UserWorld


@pytest.fixture(autouse=True)
def user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> UserWorld:
    """The user whom this process, and what it starts, runs for."""
    made = UserWorld(tmp_path_factory.mktemp("u"))
    made.enter(monkeypatch)
    return made
