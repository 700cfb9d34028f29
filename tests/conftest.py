"""Fixtures of all suites."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hypothesis import settings

from support import Place, make_repository

settings.register_profile("garrison", deadline=None)  # a busy machine is no counterexample
settings.load_profile("garrison")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository made once, to be copied."""
    path = tmp_path_factory.mktemp("t") / "repo"
    make_repository(path)
    return path


@pytest.fixture
def places(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Place]]:
    """Makes places; at the end each must have been left empty: no process, no tmux server."""
    made: list[Place] = []

    def make(**options: str) -> Place:
        root = tmp_path_factory.mktemp("g")
        shutil.copytree(template, root / "repo", symlinks=True)
        made.append(Place(root, **options))
        return made[-1]

    yield make
    left = [line for place in made for line in place.leave()]
    assert not left, left


@pytest.fixture
def place(places: Callable[..., Place]) -> Place:
    """One place with the plain-process terminal."""
    return places()
