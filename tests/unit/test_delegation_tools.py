"""Tools of the specialists: every shipped one exists, a model's words are not options, preferences are kept."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from garrison.delegation.specialist_tools import COMMANDS, MAX_ANSWER, MAX_KEPT, Preferences, SpecialistTools
from garrison.delegation.specialists import Specialist, read_crew
from garrison.errors import NotFound, RecordCorrupt, UsageError


def desk(home: Path, said: str = "ok") -> tuple[SpecialistTools, list[list[str]]]:
    typed: list[list[str]] = []

    async def run(argv: Sequence[str]) -> str:
        typed.append(list(argv))
        return said
    return SpecialistTools(home, run), typed


def call(made: SpecialistTools, tool: str, /, **given: Any) -> str:
    [function] = made.of(Specialist("x", "p", tools=(tool,)))
    said = function.call(**given)

    async def wait() -> str:
        return await said if inspect.isawaitable(said) else said
    return asyncio.run(wait())


def test_every_tool_of_the_shipped_crew_exists_and_every_tool_is_used(tmp_path: Path) -> None:
    made, _ = desk(tmp_path)
    used = {function.name for one in read_crew().specialists.values() for function in made.of(one)}
    assert set(COMMANDS) <= used
    with pytest.raises(UsageError, match="fly"):
        made.of(Specialist("x", "p", tools=("fly",)))


def test_a_tool_is_a_command_as_the_user_would_type_it(tmp_path: Path) -> None:
    made, typed = desk(tmp_path)
    assert call(made, "why", name="build", run="r1") == "ok"
    assert call(made, "why", name="build") == "ok"
    assert typed == [["why", "build", "--all", "--run", "r1"], ["why", "build", "--all"]]
    made, _ = desk(tmp_path, "x" * (MAX_ANSWER + 7))
    assert call(made, "runs").endswith("… 7 characters left out")


@pytest.mark.parametrize("given", [{"run": "--home=/etc"}, {"run": ""}, {}, {"run": 7}, {"run": "a\0b"}])
def test_an_argument_that_could_be_an_option_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    made, typed = desk(tmp_path)
    with pytest.raises(UsageError):
        call(made, "stop_run", **given)
    assert typed == []


@pytest.mark.parametrize(("tool", "given", "command"), [
    ("stop_run", {"run": "r1"}, "garrison stop r1"), ("hold_node", {"node": "a"}, "garrison agents park a"),
    ("release_node", {"node": "a", "run": "r1"}, "garrison agents unpark a --run r1"),
    ("resume_run", {"run": "r1"}, "garrison resume r1 --detach"),
    ("start_run", {"task": "fix it"}, "garrison run --detach 'fix it'")])
def test_a_tool_that_changes_a_run_only_proposes_its_command(tmp_path: Path, tool: str, given: dict[str, str],
                                                             command: str) -> None:
    made, typed = desk(tmp_path)
    answer = call(made, tool, **given)
    assert answer.startswith("NOT DONE YET") and command in answer
    assert typed == []
    assert [str(one) for one in made.confirmations.take()] == [command]


def test_transcripts_are_searched_the_newest_run_first(tmp_path: Path) -> None:
    for run, text in (("r1", "old Needle\nhay"), ("r2", "new needle")):
        folder = tmp_path / "runs" / run / "nodes/build/1"
        folder.mkdir(parents=True)
        (folder / "output.log").write_text(text)
    made, _ = desk(tmp_path)
    assert call(made, "search_transcripts", text="needle").splitlines() == [
        "r2/nodes/build/1: new needle", "r1/nodes/build/1: old Needle"]
    assert "nothing" in call(made, "search_transcripts", text="gold")


def test_preferences_are_kept_changed_and_forgotten(tmp_path: Path) -> None:
    made, _ = desk(tmp_path)
    call(made, "remember_preference", key="gate", value="make test", confidence=0.5)
    call(made, "remember_preference", key="style", value="short")
    call(made, "remember_preference", key="gate", value="pytest", confidence=0.95)
    assert [one["value"] for one in json.loads(call(made, "preferences"))] == ["pytest", "short"]
    assert [one.key for one in Preferences(tmp_path).all()] == ["gate", "style"]
    assert call(made, "forget_preference", key="gate") == "forgotten"
    with pytest.raises(NotFound, match="style"):
        call(made, "forget_preference", key="gate")


def test_preferences_have_bounds_and_a_damaged_file_is_left(tmp_path: Path) -> None:
    kept = Preferences(tmp_path)
    for key, value, confidence in (("", "v", 1), ("k", "v" * 501, 1), ("k", "v", 2)):
        with pytest.raises(UsageError):
            kept.remember(key, value, confidence)
    for number in range(MAX_KEPT):
        if number in (0, MAX_KEPT - 1):
            kept.remember(f"k{number}", "v")
        else:
            body = json.loads(kept.path.read_text())
            kept.path.write_text(json.dumps(body | {f"k{number}": {"value": "v", "confidence": 1}}))
    with pytest.raises(UsageError, match="forget one"):
        kept.remember("one-more", "v")
    kept.path.write_text("[")
    with pytest.raises(RecordCorrupt):
        kept.all()
    assert kept.path.read_text() == "["
