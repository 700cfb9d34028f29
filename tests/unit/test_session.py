"""Sessions by the spike's criteria 1a to 1e and its later phase, with adapters that count their calls."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from garrison.cli.sessions import CHECKED_RUNS, check_runs
from garrison.errors import GarrisonError, NotFound, RecordCorrupt, Refused, UsageError
from garrison.pipeline import run
from garrison.pipeline.lint import lint
from garrison.pipeline.parser import parse
from garrison.session import MODES, Initiative, Session, SessionState
from garrison.session.adapters import Memory
from garrison.session.nodes import IDEMPOTENCY, KEPT_MESSAGES, MAX_SECTION, SessionNodes, build_messages
from garrison.session.session import RunFailed, shipped_graph
from garrison.session.state import Tier, apply_goal_changes, build_turn_values, is_plan_due, read_tiers
from garrison.session.store import COMPACT_BYTES, read_state, write_state
from garrison.values import asdict

NOW = datetime(2026, 1, 15, 10, 0, tzinfo=UTC)


class World:
    """Adapters that record their calls; the model gives `answers` in order, then repeats the last."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers) or [{"content": "hello"}]
        self.calls: list[tuple[str, Any]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    def count(self, name: str) -> int:
        return [one for one, _ in self.calls].count(name)

    def asked(self) -> list[tuple[list[dict[str, Any]], str, dict[str, Any]]]:
        """Return messages, mode and options of each call of the model."""
        return [given for name, given in self.calls if name == "llm_call"]

    def adapters(self, **more: Any) -> dict[str, Any]:
        def model(messages: Any, mode: str, options: Any) -> Any:
            self.calls.append(("llm_call", deepcopy((messages, mode, dict(options)))))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def tools(calls: Any, agent: str) -> list[str]:
            self.calls.append(("tool_dispatch", deepcopy(calls)))
            return [f"result of {one['name']}" for one in calls]

        def noting(name: str, gives: Any = None) -> Callable[..., Any]:
            def adapter(*arguments: Any) -> Any:
                self.calls.append((name, deepcopy(arguments)))
                return gives
            return adapter

        rest = {name: noting(name) for name in ("memory_update", "checkpoint", "route_actions", "update_goals",
                                                "emit_signal")}
        return {"llm_call": model, "tool_dispatch": tools, "memory_recall": noting("memory_recall", ["m"]),
                "background_checks": noting("background_checks", {"ok": True}), **rest, **more}

    def session(self, state: SessionState | None = None, more: dict[str, Any] | None = None, **options: Any) -> Session:
        return Session(state or SessionState("s1", "agent"), self.adapters(**more or {}), clock=lambda: NOW,
                       on_event=lambda name, data: self.events.append((name, data)), **options)


def tool(name: str = "search", id_: str = "1") -> dict[str, Any]:
    return {"tool_calls": [{"id": id_, "name": name, "arguments": {}}]}


def play(session: Session, *texts: str) -> list[Any]:
    async def scene() -> list[Any]:
        async with session:
            return [await session.send(text) for text in texts]
    return asyncio.run(scene())


def beat(session: Session, times: int = 1) -> list[Any]:
    async def scene() -> list[Any]:
        async with session:
            return [await session.heartbeat() for _ in range(times)]
    return asyncio.run(scene())


def test_1a_a_turn_goes_through_the_whole_graph() -> None:
    world = World({"content": "hello you", "thinking": ["hm"]})
    session = world.session()
    [result] = play(session, "Hello")
    assert result.response == "hello you"
    assert result.thinking == ("hm",)
    assert [name for name, _ in world.calls] == ["memory_recall", "llm_call", "memory_update", "checkpoint"]
    (messages, mode, options) = world.calls[1][1]
    assert (messages, mode) == ([{"role": "user", "content": "Hello"}], "reflection")
    assert options["memories"] == ["m"]
    assert [name for name, _ in world.events] == ["agent_started", "percept_received", "query_completed"]


@pytest.mark.parametrize("calls", [1, 3])
def test_1b_the_tool_loop_is_a_cycle(calls: int) -> None:
    world = World(*[tool()] * calls, {"content": "done"})
    [result] = play(world.session(), "look it up")
    assert (world.count("llm_call"), world.count("tool_dispatch")) == (calls + 1, calls)
    assert (result.response, result.tool_calls_made) == ("done", calls)
    told = world.calls[-3][1][0]
    assert [message["role"] for message in told] == ["user", *["assistant", "tool"] * calls]
    assert told[-1] == {"role": "tool", "content": "result of search", "tool_call_id": "1", "name": "search"}


def test_1b_max_steps_ends_an_endless_loop_and_the_checkpoint_is_kept(tmp_path: Path) -> None:
    world = World(tool())
    session = world.session(folder=tmp_path / "s1", max_steps=10)
    with pytest.raises(RunFailed, match="max_steps"):
        play(session, "look it up")
    assert session.state.turn_count == 0
    assert json.loads((tmp_path / "s1/runs/turn-1/checkpoint.json").read_text())["steps"] == 10


@pytest.mark.parametrize(("state", "mode", "calls"), [
    ({}, "reflection", 1), ({"goals": [{"id": 1}]}, "goal_pursuit", 1), ({"turn_count": 5}, "consolidation", 0),
    ({"turn_count": 5, "goals": [{"id": 1}]}, "goal_pursuit", 1),
    ({"goals": [{"id": 1, "plan": [{"done": True}, {"due": "2026-01-15T09:00:00+00:00"}]}]}, "plan_execution", 1),
    ({"goals": [{"id": 1, "plan": [{"due": "2026-01-15T11:00:00+00:00"}]}]}, "goal_pursuit", 1)])
def test_1c_the_mode_chooses_the_path(state: dict[str, Any], mode: str, calls: int) -> None:
    world = World({"content": "{}"})
    [result] = beat(world.session(SessionState("s1", "agent", **state), initiative=Initiative(interval=0)))
    assert (result.cognitive_mode, world.count("llm_call"), result.model_calls) == (mode, calls, calls)
    assert mode in MODES
    if calls:
        assert world.asked()[0][1] == mode
    told = {"agent_id": "agent", "heartbeat": 1, "mode": mode, "model_calls": calls}
    assert ("heartbeat_complete", told) in world.events


@pytest.mark.parametrize("form", ["{}", "Here it is:\n```json\n{}\n```\nThat is all."])
def test_1c_a_heartbeat_changes_goals_and_memory_and_routes_actions(form: str) -> None:
    said = {"actions": [{"do": "x"}], "goal_updates": [{"id": 1, "progress": 0.5}], "new_goals": [{"id": 2}],
            "memory_notes": ["n", "n"]}
    world = World({"content": form.replace("{}", json.dumps(said))})
    state = SessionState("s1", "agent", goals=[{"id": 1}], working_memory={"notes": ["n"]})
    session = world.session(state, initiative=Initiative(interval=0))
    [result] = beat(session)
    assert result.actions == ({"do": "x"},)
    assert session.state.goals == [{"id": 1, "progress": 0.5}, {"id": 2}]
    assert session.state.working_memory == {"notes": ["n"]}
    assert ("route_actions", ([{"do": "x"}], "agent")) in world.calls
    assert session.state.messages == []


def test_a_heartbeat_calls_the_model_only_with_initiative_and_within_its_budget() -> None:
    world = World({"content": "{}"})
    assert [one.model_calls for one in beat(world.session(), 2)] == [0, 0]
    assert world.count("llm_call") == 0
    beat(world.session(initiative=Initiative(interval=0, budget=2)), 4)
    assert world.count("llm_call") == 2


def test_every_30th_heartbeat_consolidates_identity_and_every_60th_reflects() -> None:
    for count, kinds, calls in ((28, [], 1), (29, ["identity"], 1), (59, ["identity"], 2)):
        world = World({"content": "{}"})
        beat(world.session(SessionState("s1", "a", heartbeat_count=count), initiative=Initiative(interval=0)))
        assert [given[1]["kind"] for name, given in world.calls if name == "memory_update"] == kinds
        assert world.count("llm_call") == calls


KNOWING: dict[str, Any] = {
    "goals": [{"id": "ship", "description": "ship the parser", "progress": 0.5}],
    "working_memory": {"notes": ["the grammar is LALR"], "mood": "calm"}}


def told_by(world: World, call: int = 0) -> str:
    """Return the text of the system messages of a call."""
    return "\n".join(one["content"] for one in world.asked()[call][0] if one["role"] == "system")


def test_goals_notes_memory_and_results_of_checks_reach_the_model_in_a_heartbeat() -> None:
    world = World({"content": "{}"})
    beat(world.session(SessionState("s1", "agent", **KNOWING), initiative=Initiative(interval=0)))
    told = told_by(world)
    for words in ("ship the parser", '"progress": 0.5', "the grammar is LALR", "mood: calm", "ok: true",
                  "take the next step", '"goal_updates"'):
        assert words in told, told
    options = world.asked()[0][2]
    assert options["memories"] == ["m"]
    assert options["context"]["goals"] == KNOWING["goals"]
    assert ("memory_recall", ("agent", 'ship: ship the parser {"progress": 0.5}')) in world.calls


def test_knowledge_comes_before_a_message_and_results_of_tools_after_it() -> None:
    world = World(tool(), {"content": "done"})
    play(world.session(SessionState("s1", "agent", **KNOWING)), "look it up")
    first, second = (messages for messages, _, _ in world.asked())
    assert [one["role"] for one in first] == ["system", "user"]
    assert [one["role"] for one in second] == ["system", "user", "assistant", "tool"]
    assert "ship the parser" in told_by(world) and "ship the parser" in told_by(world, 1)
    world = World(tool(), {"content": "done"})
    own = [{"role": "user", "content": "my own prompt"}]
    play(world.session(more={"build_prompt": lambda _: own}), "look it up")
    assert world.asked()[1][0][0] == own[0], "also after an adapter's own prompt"
    assert world.asked()[1][0][-1]["content"] == "result of search"
    graph = """digraph t { start [shape=Mdiamond]; done [shape=Msquare]; ask [type="session.llm_call"]
        say [type="session.format"]; start -> ask -> say -> done }"""
    world = World()
    play(world.session(SessionState("s1", "agent", **KNOWING), turn_graph=graph), "hi")
    assert "ship the parser" in told_by(world), "also in a graph without build_prompt"


def test_heartbeats_check_the_latest_runs(tmp_path: Path) -> None:
    for number in range(CHECKED_RUNS + 2):
        (tmp_path / f"runs/r{number:02}/layers").mkdir(parents=True)  # a run that has lost its records
        os.utime(tmp_path / f"runs/r{number:02}/layers", (number, number))
    checked = check_runs(tmp_path)
    assert list(checked) == [f"run r{number:02}" for number in range(2, CHECKED_RUNS + 2)]
    assert "is damaged or gone" in checked["run r11"]


def test_old_messages_are_left_out_but_never_the_current_turn() -> None:
    old = [{"role": "user", "content": str(number)} for number in range(100)]
    turn = [{"role": "user", "content": "now"}, *[{"role": "tool", "content": "r"}] * 90]
    built = build_messages({"session.messages": [*old, *turn]})
    assert built[1:] == [*old[100 - KEPT_MESSAGES:], *turn]
    assert "60 earlier messages of the conversation are left out" in built[0]["content"]
    long = build_messages({"session.working_memory": {"notes": ["x" * 9_000, "the last"]}, "session.messages": turn})
    assert len(long[0]["content"]) < MAX_SECTION + 100 and long[0]["content"].endswith("the last")


def test_memories_are_recalled_by_subject_and_survive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "s1/memory.jsonl"
    memory = Memory(path)
    for number in range(20):
        memory.update("a", {"input": f"question {number} about something", "response": "yes"})
    memory.update("a", {"input": "Which grammar has the parser?", "response": "LALR", "notes": ["build with make"]})
    memory.update("a", {"input": "Which grammar has the parser?", "response": "LALR", "notes": ["build with make"]})
    again = Memory(path)
    memory.update("a", {"input": "And now?", "response": "Done", "notes": ["build with make"]})
    assert memory.entries == [*again.entries, "And now? → Done"], "a note that the model repeats is kept once"
    assert len(again.entries) == 22, "a turn that is repeated after a crash counts once"
    assert again.recall("a", "Tell me about the parser")[-1] == "Which grammar has the parser? → LALR"
    assert again.recall("a", "How to build it?") == ["build with make"]
    assert len(again.recall("a", "something")) == 5
    assert again.recall("a", "") == []
    path.write_text("{")
    assert Memory(path).entries == []


def test_1d_a_turn_adds_two_messages_and_changes_nothing_else() -> None:
    state = SessionState("s1", "agent", "trusted", 3, [{"role": "user", "content": "old"}], {"k": [1]}, [{"id": 1}],
                         "goal_pursuit", 7)
    session = World().session(deepcopy(state))
    play(session, "Hello", "Again")
    new = session.state
    assert new.messages == [*state.messages, {"role": "user", "content": "Hello"},
                            {"role": "assistant", "content": "hello"}, {"role": "user", "content": "Again"},
                            {"role": "assistant", "content": "hello"}]
    assert (new.turn_count, new.trust_tier, new.goals, new.working_memory) == (5, "trusted", [{"id": 1}], {"k": [1]})
    changed = World().session(more={"memory_update": lambda *_: {"seen": 1}})
    play(changed, "Hello")
    assert changed.state.working_memory == {"seen": 1}, "it changes only if the graph changes it"
    assert SessionState.from_data(json.loads(json.dumps(asdict(new)))) == new


def test_1e_every_node_type_declares_its_side_effects() -> None:
    assert set(IDEMPOTENCY) == set(World().session().nodes.handlers())
    assert IDEMPOTENCY["session.tool_dispatch"] == "side_effecting"
    assert IDEMPOTENCY["session.classify"] == "read_only"


def test_1e_a_missing_adapter_is_skipped_and_a_missing_model_refused() -> None:
    session = Session(SessionState("s1", "a"), {"llm_call": lambda *_: {"content": "x"}})
    assert "memory_recall" in session.missing
    assert play(session, "Hello")[0].response == "x"
    with pytest.raises(UsageError, match="llm_call"):
        Session(SessionState("s1", "a"), {})
    with pytest.raises(UsageError, match="unknown adapter 'fly'"):
        Session(SessionState("s1", "a"), {"fly": print})


def test_1e_an_adapter_that_raises_fails_its_node_unless_the_graph_allows_it() -> None:
    def broken(*_: Any) -> Any:
        raise OSError("disk")
    world = World()
    assert play(world.session(more={"memory_recall": broken}), "Hello")[0].response == "hello"
    assert ("adapter_failed", {"node": "recall", "reason": "memory_recall: OSError: disk"}) in world.events
    session = World(RuntimeError("no model")).session()
    with pytest.raises(RunFailed, match="no model"):
        play(session, "Hello")
    assert session.state.messages == []
    with pytest.raises(RunFailed, match="it must return content or tool_calls"):
        play(World({"odd": 1}).session(), "Hello")


def test_a_blocked_input_gets_an_answer_without_the_model() -> None:
    world = World()
    results = play(world.session(SessionState("s1", "a", "untrusted")), "/rm", " ")
    assert [one.response for one in results] == ["I cannot do this: it is blocked at trust tier untrusted."] * 2
    assert world.count("llm_call") == 0
    graph = """digraph t { start [shape=Mdiamond]; done [shape=Msquare]; c [type="session.classify"]
        gate [shape=diamond]; ask [type="session.llm_call"]; say [type="session.format"]; start -> c -> gate
        gate -> done [condition="context.session.input_type=blocked"]
        gate -> ask [condition="context.session.input_type!=blocked"]; ask -> say -> done }"""
    refused, answered = play(world.session(SessionState("s1", "a", "untrusted"), turn_graph=graph), "/rm", "hi")
    assert refused.response == "I cannot do this: it is blocked at trust tier untrusted."
    assert answered.response == "hello"
    with pytest.raises(GarrisonError):
        World().session(turn_graph="")  # no text is not the shipped graph


def test_a_tool_that_the_tier_forbids_is_refused_with_a_result() -> None:
    world = World({"tool_calls": [{"id": "1", "name": "rm"}, {"id": "2", "name": "read"}]}, {"content": "ok"})
    play(world.session(SessionState("s1", "a", "probationary")), "do it")
    assert [one for name, given in world.calls if name == "tool_dispatch" for one in given] == [
        {"id": "2", "name": "read"}]
    tools = [one["content"] for one in world.calls[3][1][0] if one["role"] == "tool"]
    assert tools == ["refused: rm is not allowed at trust tier probationary", "result of read"]


def test_tiers_come_from_a_file(tmp_path: Path) -> None:
    assert set(read_tiers()) == {"untrusted", "probationary", "established", "trusted"}
    (tmp_path / "t.toml").write_text('[own]\ntool_dispatch = true\ntools = ["a"]\n')
    assert read_tiers(tmp_path / "t.toml") == {"own": Tier("own", True, ("a",))}
    (tmp_path / "t.toml").write_text("x")
    with pytest.raises(UsageError):
        read_tiers(tmp_path / "t.toml")
    with pytest.raises(UsageError, match="no trust tier"):
        Session(SessionState("s", "a", "king"), World().adapters())


def test_a_message_waits_for_a_heartbeat_and_heartbeats_do_not_accumulate() -> None:
    async def scene() -> None:
        world, gate = World({"content": "{}"}), asyncio.Event()

        async def slow(_: str) -> dict[str, Any]:
            await gate.wait()
            return {}
        session = world.session(more={"background_checks": slow})
        async with session:
            beating = asyncio.create_task(session.heartbeat())
            await asyncio.sleep(0.01)
            sending = asyncio.create_task(session.send("Hello"))
            await asyncio.sleep(0.01)
            assert await session.heartbeat() is None
            assert not sending.done()
            gate.set()
            await asyncio.gather(beating, sending)
        names = [name for name, _ in world.events]
        assert names.index("heartbeat_complete") < names.index("query_completed")
    asyncio.run(scene())


async def test_initiative_starts_heartbeats() -> None:
    world = World({"content": "{}"})
    session = world.session(initiative=Initiative(interval=0.01, budget=1))
    done = asyncio.Event()
    session.listen(lambda name, _: done.set() if name == "heartbeat_complete" else None)
    async with session:
        await asyncio.wait_for(done.wait(), 30)
    assert session.state.heartbeat_count >= 1


def test_a_session_is_restored_with_its_state(tmp_path: Path) -> None:
    session = World().session(folder=tmp_path / "s1")
    play(session, "Hello")
    kept = sorted(path.name for path in (tmp_path / "s1").iterdir())
    assert kept == ["events.jsonl", "journal.jsonl", "session.json", "session.lock"]
    again = Session.restore(tmp_path / "s1", World().adapters())
    assert again.state == session.state
    with pytest.raises(NotFound):
        read_state(tmp_path / "s2")
    (tmp_path / "s1/session.json").write_text('{"state": {"session_id": 1}}')
    with pytest.raises(RecordCorrupt):
        read_state(tmp_path / "s1")


class Killed(BaseException):
    """Simulates kill -9 in the middle of a node; the session may not catch it."""


@pytest.mark.parametrize("node", ["memory_recall", "llm_call", "tool_dispatch", "memory_update", "checkpoint"])
def test_a_turn_killed_in_a_node_is_finished_without_repeating_nodes(tmp_path: Path, node: str) -> None:
    world = World(tool(), {"content": "done"})
    with pytest.raises(BaseException):  # noqa: B017
        play(world.session(folder=tmp_path / "s1", more={node: deadly(world, node)}), "look it up")
    before = [name for name, _ in world.calls]
    assert read_state(tmp_path / "s1").turn_count == 0
    state = restored(tmp_path / "s1", world)
    assert state.turn_count == 1
    assert [one["content"] for one in state.messages] == ["look it up", "done"]
    for name in ("memory_recall", "llm_call", "tool_dispatch", "memory_update", "checkpoint"):
        assert world.count(name) == {"llm_call": 2}.get(name, 1), (name, before, world.calls)
    assert not (tmp_path / "s1/under_way.json").exists()


def deadly(world: World, name: str, number: int = 1) -> Callable[..., Any]:
    """Return the world's adapter, killed in its call of that number."""
    inner, calls = world.adapters()[name], itertools.count(1)

    def adapter(*arguments: Any) -> Any:
        if next(calls) == number:
            raise Killed
        return inner(*arguments)
    return adapter


def restored(folder: Path, world: World) -> SessionState:
    async def scene() -> SessionState:
        async with Session.restore(folder, world.adapters()) as session:
            return session.state
    return asyncio.run(scene())


def test_each_result_of_a_turn_is_recorded_once_and_survives_a_kill(tmp_path: Path) -> None:
    """The journal of a turn with many tool calls grows by each result, not by all of them each time."""
    world, said = World(*[tool()] * 25, {"content": "done"}), "x" * 5_000
    world.answers.insert(0, {"content": said})
    session = world.session(folder=tmp_path / "s1", more={"llm_call": deadly(world, "llm_call", 26)})
    with pytest.raises(BaseException):  # noqa: B017
        play(session, "first", "look it up")
    assert (tmp_path / "s1/journal.jsonl").stat().st_size < 100_000
    assert read_state(tmp_path / "s1").turn_count == 1
    assert len(restored(tmp_path / "s1", world).messages) == 4
    messages = world.asked()[-1][0]
    assert [one["role"] for one in messages] == ["user", "assistant", "user", *["assistant", "tool"] * 25]
    assert (messages[1]["content"], messages[-1]["content"]) == (said, "result of search")
    assert (tmp_path / "s1/journal.jsonl").stat().st_size == 0


def test_only_a_step_that_must_not_be_repeated_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, sync = World(tool(), {"content": "done"}), os.fdatasync

    def syncing(descriptor: int) -> None:
        world.calls.append(("sync", None))
        sync(descriptor)

    async def scene() -> None:
        async with world.session(folder=tmp_path / "s1") as session:
            monkeypatch.setattr(os, "fdatasync", syncing)
            await session.send("look it up")
            monkeypatch.undo()
    asyncio.run(scene())
    assert [name for name, _ in world.calls] == [
        "memory_recall", "llm_call", "sync", "tool_dispatch", "sync", "llm_call", "sync", "memory_update", "checkpoint",
        "sync"]


@pytest.mark.usefixtures("unsynced")
def test_a_long_journal_is_compacted_without_repeating_records(tmp_path: Path) -> None:
    folder, sizes = tmp_path / "s1", []

    async def scene() -> None:
        async with World().session(folder=folder) as session:
            for number in range(16):
                await session.send({"tool_result": "x" * (COMPACT_BYTES // 20), "number": number})
                await session.heartbeat()
                sizes.append((folder / "journal.jsonl").stat().st_size)
                assert read_state(folder) == session.state
            shutil.copy(folder / "journal.jsonl", tmp_path / "records")
    asyncio.run(scene())
    assert max(sizes) < 1.5 * COMPACT_BYTES and min(sizes[7:]) < max(sizes) / 2
    state = read_state(folder)
    shutil.copy(tmp_path / "records", folder / "journal.jsonl")  # killed within a compaction
    assert read_state(folder) == state == restored(folder, World())


def test_a_turn_of_an_earlier_version_is_finished(tmp_path: Path) -> None:
    world, folder = World(tool(), {"content": "done"}), tmp_path / "s1"
    state = SessionState("s1", "agent", messages=[{"role": "user", "content": "old"}])
    adapters = world.adapters(memory_update=deadly(world, "memory_update"))
    folder.mkdir()
    write_state(folder, state)
    (folder / "under_way.json").write_text('{"kind": "turn", "number": 1, "text": "look it up"}')
    nodes = SessionNodes(adapters, read_tiers()["established"], lambda *_: None)
    with pytest.raises(BaseException):  # noqa: B017
        run(shipped_graph("turn"), initial=build_turn_values(state, "look it up", NOW), handlers=nodes.handlers(),
            run_dir=folder / "runs/turn-1", max_steps=100, seed="s1-turn-1")
    assert [one["content"] for one in restored(folder, world).messages] == ["old", "look it up", "done"]
    assert (world.count("llm_call"), world.count("tool_dispatch"), world.count("memory_update")) == (2, 1, 1)
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "events.jsonl", "journal.jsonl", "session.json", "session.lock"]


def test_a_new_graph_applies_from_the_next_turn_and_a_broken_one_is_refused() -> None:
    world = World()
    session = world.session()

    async def scene() -> None:
        async with session:
            await session.send("one")
            session.update_graph(turn='digraph t { start [shape=Mdiamond]; done [shape=Msquare]; '
                                      'f [type="session.emit_signal", signal=hi, data_key="session.input"] '
                                      'start -> f -> done }')
            with pytest.raises(GarrisonError):
                session.update_graph(turn="digraph t { a -> b }")
            assert (await session.send("two")).response == ""
    asyncio.run(scene())
    assert world.count("llm_call") == 1
    assert ("hi", {"agent_id": "agent", "data": "two"}) in world.events


async def test_a_session_is_open_in_one_process_only(tmp_path: Path) -> None:
    async with World().session(folder=tmp_path / "s1"):
        with pytest.raises(Refused, match="in use"):
            async with World().session(folder=tmp_path / "s1"):
                pass


def test_the_mistake_of_the_spike_is_found_by_lint() -> None:
    wrong = shipped_graph("heartbeat").replace("context.session.cognitive_mode", "context.cognitive_mode")
    assert any("session.cognitive_mode" in str(one) for one in lint(parse(wrong)) if one.rule == "context_key_unknown")
    assert lint(parse(shipped_graph("heartbeat"))) == lint(parse(shipped_graph("turn"))) == []


def test_goals_change_by_id() -> None:
    assert apply_goal_changes([{"id": 1, "a": 1}], [{"id": 1, "a": 2}, {"id": 9}, 7], [{"id": 1}, {"id": 3}, "x"]) == [
        {"id": 1, "a": 2}, {"id": 3}]
    assert not is_plan_due([{"plan": [{"done": True}]}], NOW)
    assert is_plan_due([{"plan": [{"due": "2026-01-15T09:00:00"}]}], NOW)


@pytest.mark.parametrize("data", [{}, {"session_id": "s", "agent_id": "a", "odd": 1},
                                  {"session_id": "s", "agent_id": "a", "turn_count": "1"},
                                  {"session_id": "s", "agent_id": "a", "messages": [{"role": "king"}]}])
def test_an_invalid_state_is_refused(data: Any) -> None:
    with pytest.raises(UsageError, match="not the state of a session"):
        SessionState.from_data(data)
