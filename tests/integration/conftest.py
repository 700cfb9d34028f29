"""Fixtures of the integration tests: each test has its own user, with a plain HOME and garrison's home below it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from merge_support import World

from support import UserWorld
from top_support import HomeBuilder, home_builder


@pytest.fixture(autouse=True)
def user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, unsynced: None) -> UserWorld:
    """Return the user that this process and its children run as. This process syncs no file: that takes milliseconds a
    record, and only a power cut could show it."""
    made = UserWorld(tmp_path_factory.mktemp("u"))
    made.enter(monkeypatch)
    return made


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[HomeBuilder]:
    """Yield a builder of run records in `tmp_path`."""
    with home_builder(tmp_path) as made:
        yield made


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a repository with a merge queue and a gate."""
    return World(tmp_path)


@pytest.fixture
def world_of_user(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return it with this process in its repository, as its user."""
    world.user.enter(monkeypatch)
    monkeypatch.chdir(world.repo)
    return world
