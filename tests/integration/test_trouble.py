"""Stories of trouble (`tests/trouble.py`): one that does everything, and random ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import trouble


@pytest.mark.parametrize("seed", [1, 2])
def test_everything_that_happens_leaves_the_repository_as_it_has_to_be(seed: int, tmp_path: Path) -> None:
    assert trouble.Story(seed, tmp_path, trouble.EVERYTHING if seed == 1 else (), count=4).play() == []
