"""103 foreign graphs, run with every node succeeding: each ends, or reports exactly why not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from garrison.errors import GarrisonError
from garrison.pipeline import AutoApprove, Outcome, run
from garrison.pipeline.handlers.registry import BUILT_IN

CORPUS = Path(__file__).parents[2] / ".." / "shared" / "corpus"
FILES = sorted(CORPUS.glob("*/*.dot"))

pytestmark = pytest.mark.skipif(not FILES, reason="the corpus of foreign graphs (../shared/corpus) is not here")


def test_every_foreign_graph_runs_or_is_refused_with_a_reason() -> None:
    """What does not end has edges that only other outcomes open, loops until the budget is spent, or is unsound."""
    handlers = {name: lambda _call: Outcome("success") for name in ("*", *BUILT_IN) if name != "wait.human"}
    ends: Counter[str] = Counter()
    for path in FILES:
        try:
            result = run(path, handlers=handlers, answerer=AutoApprove())
        except GarrisonError as error:
            assert str(error).startswith(f"{path}:")
            assert "\n" not in str(error)
            ends["refused"] += 1
            continue
        ends[result.reason or result.status] += 1
        assert result.status == "success" or (result.detail and result.resumable), path
    assert ends == {"success": 88, "no_matching_edge": 11, "max_steps_exceeded": 1, "refused": 3}
