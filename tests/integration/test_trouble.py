"""Stories of trouble (`tests/trouble.py`): one that does everything, and random ones."""

from __future__ import annotations

import pytest
from tests import trouble


@pytest.mark.parametrize("seed", [1, 2])
def test_everything_that_happens_leaves_the_repository_as_it_has_to_be(seed: int) -> None:
    trouble.play(seed, trouble.EVERYTHING if seed == 1 else (), count=4)
