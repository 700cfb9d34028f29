"""Names that `garrison why` and `agents show` accept, and their output."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.cli import resolve
from garrison.cli.agents import parse_name
from garrison.cli.resolve import run_of_node
from garrison.cli.why import resolve_work, state_words
from garrison.errors import NotFound, Refused, UsageError
from garrison.records.identity import Identity
from garrison.records.journal import Writer
from garrison.records.names import Key
from garrison.records.run import RunFiles
from garrison.records.store import Store
from garrison.supervise.decisions import ChildState, DecisionInputs
from garrison.supervise.restart import Death, Policy
from garrison.supervise.verdict import Observation, judge
from garrison.views.event_log import LoggedEvent
from garrison.views.explain import describe, describe_deaths, observation

AT = "2026-01-31T12:00:00.000000Z"


@pytest.mark.parametrize(("place", "doing", "said"), [
    ("parked", "parked by you", "parked by you"), ("parked", "parked: its agent died", "parked: its agent died"),
    ("working", "its agent is working", "working: its agent is working"), ("landed", "", "landed"),
    ("landed", "landed as 0123", "landed as 0123")])
def test_a_state_is_named_once(place: str, doing: str, said: str) -> None:
    assert state_words(place, doing) == said


def test_the_name_of_a_run_means_the_whole_run(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, "one")
    files.root.mkdir(parents=True)
    (files.root / "launch.json").write_text("{}")
    journal = Writer(files.journal, "guardian-crew#1")
    for node in ("two", "boss__in", "bossy"):
        journal.append("node", {"node": node, "status": "pending", "attempt": 1}, AT)
    journal.close()
    files.graphs.mkdir()
    (files.graphs / "boss.dot").write_text("the pipeline that boss runs")
    store = Store(tmp_path)
    assert resolve_work(store, "one", None) == ("one", [], frozenset())
    assert resolve_work(store, "two", None)[1] == ["two"]
    run, nodes, names = resolve_work(store, "boss", None)
    assert (run, nodes) == ("one", ["boss", "boss__in"])
    assert {"runner-boss__in@one", "orchestrator-boss__in@one"} <= names
    with pytest.raises(NotFound):
        resolve_work(store, "three", None)


@pytest.mark.parametrize(("words", "meant"), [
    (("runner", "a_b", None), ("runner", "a_b", None)), (("runner", "a", "r1"), ("runner", "a", "r1")),
    (("orchestrator-a-b@r1", None, None), ("orchestrator", "a-b", "r1")),
    (("runner-a", None, "r2"), ("runner", "a", "r2")),
    (("launch@r1", None, None), ("launch", "launch", "r1"))])
def test_an_identity_can_be_named_as_in_agents_list_unlike_a_node(words: tuple[str, str | None, str | None],
                                                                  meant: tuple[str, str, str | None]) -> None:
    assert parse_name(*words) == meant
    with pytest.raises(UsageError, match="role-name"):
        parse_name("add_tests", None, None)


def test_a_parked_node_is_resolved_to_the_run_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no agent in any run, and `agents park NODE` suggests `agents unpark NODE`, which must be enough."""
    store = Store(tmp_path)
    for run in ("old", "new"):
        RunFiles(tmp_path, run).attempt("a", 1).mkdir(parents=True)
        (RunFiles(tmp_path, run).root / "launch.json").write_text("{}")
        for role in ("launch", "runner"):
            key = Key(role, "a" if role == "runner" else "launch", run)
            store.update(Identity, key, lambda _, key=key: Identity("id", key.role, key.name, key.run, AT))
    alive: set[str] = set()
    monkeypatch.setattr(resolve, "is_living", lambda _store, key: key.full in alive)
    assert run_of_node(store, "a", None) == "new", "the latest if none is in progress"
    alive.add("launch@old")
    assert run_of_node(store, "a", None) == "old"
    alive.add("launch@new")
    with pytest.raises(Refused, match=r"a is in several runs.*: old \(at work\), new \(at work\)"):
        run_of_node(store, "a", None)
    alive.add("runner-a@old")
    assert run_of_node(store, "a", None) == "old"


def test_deaths_by_order_or_of_another_boot_are_not_counted() -> None:
    deaths = [Death(1, 10.0, "b", kind="order"), Death(2, 20.0, "b"), Death(3, 30.0, "other")]
    counted = describe_deaths(DecisionInputs("next_step", ChildState(), deaths, 40.0, "b", Policy()))
    assert counted.startswith("deaths counted 1 in 600 s")
    assert describe_deaths(DecisionInputs("next_step", ChildState(), deaths, 40.0, "b")) == "deaths counted 2"


@pytest.mark.parametrize(("effect", "text"), [
    ({"hold": "a", "node": "a", "text": "the API is down"}, "parked by the user: the API is down"),
    ({"hold": "processor", "text": ""}, "processor parked by the user"),
    ({"unhold": "a", "node": "a", "lives": {}}, "unparked by the user")])
def test_a_request_of_the_user_is_explained(effect: dict[str, object], text: str) -> None:
    data = {"id": "s1", "type": "GUIDANCE", "node": None, **effect}
    event = LoggedEvent(AT, "r1", "guardian", "guardian-crew@r1#1", 7, "signal", "a", "", data)
    told = describe(event)
    assert (told.text, told.about) == (text, "a")


def test_the_record_of_a_starting_incarnation_names_its_parent() -> None:
    lease = Identity("i", "runner", "a", "r1", AT, pid=70, start_ticks=7, status="starting", host="h", boot_id="b",
                     pid_ns="n")
    seen = Observation("h", "b", "n", pid_ticks=7, spawn_due=True)
    said = observation(DecisionInputs("next_step", ChildState(lease, judge(lease, seen), seen)))
    assert said == ("incarnation 1 is recorded starting; its parent: process 70 exists; "
                    "verdict lapsed: it exited during start-up")
