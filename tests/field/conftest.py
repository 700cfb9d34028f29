"""Worlds of the field tier."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import installed
import world
from garrison.sandbox.probe import machine
from toolchains import Missing, kit
from world import World, Worlds


@pytest.fixture
def worlds(request: pytest.FixtureRequest) -> Iterator[Worlds]:
    """Yield a maker of worlds with tools; at the end no garrison process may still run in them."""
    made: list[World] = []
    installed.install()

    def make(*tools: str, **options: object) -> World:
        if reason := world.refusal() or ("" if machine().bubblewrap else machine().refusal):
            pytest.skip(reason)
        try:
            found = kit(*tools)
        except Missing as missing:
            pytest.skip(str(missing))
        folder = Path(tempfile.mkdtemp(prefix="gf-", dir="/var/tmp"))
        request.addfinalizer(lambda: shutil.rmtree(folder, ignore_errors=True))
        made.append(World(folder, found.shown, links={**found.links, "garrison": f"{installed.FOLDER}/bin/garrison"},
                          **options))
        return made[-1]

    yield make
    left = [line for each in made for line in each.close()]
    assert not left, left
