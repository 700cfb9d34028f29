"""Delegation without models: schemas, states, times, contexts, crews, classification, and the order of events.

The stories' own numbers: 2.3.1 and 2.3.2 (who works), 2.3.3 (what a specialist gets), 2.3.5 (the conversation is kept).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from garrison.agents.graph import AgentFailure
from garrison.delegation import prompts as classify
from garrison.delegation.butler import AgentOrchestrator, TextStream
from garrison.delegation.confirmations import Confirmations
from garrison.delegation.conversation import Conversation
from garrison.delegation.models import (
    TRANSITIONS,
    AgentResult,
    AgentState,
    ChatTurn,
    DelegationContext,
    DelegationRequest,
    OrderBroken,
    Preference,
    check_transition,
)
from garrison.delegation.models import EventSequence as Numbers
from garrison.delegation.specialists import Crew, read_crew
from garrison.errors import ForbiddenTransition, GarrisonError, NotFound, RecordCorrupt, Refused, UsageError
from garrison.records.json_io import extract_object
from scripted_crew import CREW, NOW, ScriptedCrew, ScriptedSession, delegation, delegations, summarize

# ---- 2.3.1, 2.3.2: who works


@pytest.mark.parametrize(("intent", "agent"), [
    ("triage", "triage"), ("schedule", "scheduler"), ("draft", "communicator"), ("search", "navigator"),
    ("learn", "preference_learner")])
def test_2_3_1_and_2_the_butler_lets_the_specialist_of_the_intent_work(intent: str, agent: str) -> None:
    scripted = ScriptedCrew(delegations(delegation(intent)))
    [events] = scripted.run("What needs me?")
    assert summarize(events) == ["agent_start(butler)", f"agent_delegate(butler>{agent})",
                                 f"agent_start({agent})", f"text({agent})", f"agent_complete({agent})",
                                 "agent_resume(butler)", "text(butler)", "agent_complete(butler)", "done()"]
    assert [event.id for event in events] == list(range(1, 10))
    assert scripted.sessions == ["butler", agent, "butler"], "no other agent; the butler classifies itself"
    assert f"{agent} says so" in scripted.prompts[-1][1], "the butler folds the result in"
    assert scripted.last.graph.get_control_relationships() == {"butler": sorted(CREW.specialists)}
    assert "Agent 'butler' (delegates to you)" in scripted.told[agent], "each specialist knows its director"
    assert "Control Hierarchy" not in scripted.told["butler"]


def test_several_specialists_work_side_by_side_and_one_resume_follows_the_last() -> None:
    scripted = ScriptedCrew(delegations(delegation("triage"), delegation("search"), delegation("triage")))
    [events] = scripted.run("What failed, and where is it in the code?")
    kinds = summarize(events)
    assert kinds[:5] == ["agent_start(butler)", "agent_delegate(butler>triage)", "agent_start(triage)",
                         "agent_delegate(butler>navigator)", "agent_start(navigator)"]
    assert kinds.count("agent_resume(butler)") == 1
    assert max(kinds.index("agent_complete(triage)"), kinds.index("agent_complete(navigator)")) < kinds.index(
        "agent_resume(butler)")
    assert kinds.count("agent_delegate(butler>triage)") == 1, "the same intent twice is one delegation"


# ---- 2.3.3: what a specialist gets


def test_2_3_3_the_context_has_entities_times_preferences_and_history() -> None:
    scripted = ScriptedCrew(delegations(
        delegation("triage", relevantEntities=["urgent nodes"], timeConstraints="last 24 hours")))
    scripted.classified.insert(0, delegations())
    scripted.run("Hello", "Show what died in demo-1 in the last 24 hours, see src/app.py",
               known=lambda: ("demo-1", "demo-2"),
               preferences=lambda: [Preference(key="style", value="short", confidence=0.9)])
    given = scripted.context_of("triage")
    assert given["parentAgent"] == "butler"
    assert given["targetAgent"] == "triage"
    assert given["relevantEntities"] == ["urgent nodes", "src/app.py", "demo-1"]
    assert given["timeConstraints"] == "last 24 hours"
    assert given["intervals"] == [{"words": "last 24 hours", "start": "2026-01-14T10:00:00Z",
                                   "end": "2026-01-15T10:00:00Z"}]
    assert given["userPreferences"] == [{"key": "style", "value": "short", "confidence": 0.9}]
    assert [turn["content"] for turn in given["conversationHistory"]] == ["Hello", "Here is what I know."]
    assert given["originalUserMessage"].startswith("Show what died")
    assert given["delegationReasoning"] == "triage knows"


def test_a_context_that_is_too_large_loses_its_oldest_history_but_no_message_entity_or_time() -> None:
    history = [ChatTurn(role="user", content=f"{number} " + "x" * 400) for number in range(100)]
    wanted = DelegationRequest(intent="delegate_triage", reasoning="r", relevant_entities=("e",),
                               time_constraints="today")
    given = classify.build_context("triage", wanted, "m" * 3000, history, NOW)
    assert classify.context_tokens(given) <= classify.MAX_TOKENS
    assert given.history_cut + len(given.conversation_history) == 100
    assert given.conversation_history[-1].content.startswith("99 ")
    one_more = given.model_copy(update={"history_cut": given.history_cut - 1, "conversation_history": tuple(
        history[given.history_cut - 1:])})
    assert classify.context_tokens(one_more) > classify.MAX_TOKENS, "no more was cut than had to be"
    wanted = DelegationRequest(intent="delegate_triage", reasoning="r", relevant_entities=("e" * 3000,),
                               time_constraints="today")
    preferences = [Preference(key=f"k{number}", value="v" * 300, confidence=number / 100) for number in range(60)]
    given = classify.build_context("triage", wanted, "m" * 20_000, [ChatTurn(role="user", content="old")], NOW,
                                   preferences=preferences)
    assert (len(given.original_user_message), given.relevant_entities[0]) == (20_000, "e" * 3000)
    assert given.time_constraints == "today"
    assert given.conversation_history == ()
    assert given.user_preferences == ()


# ---- 2.3.5: the conversation is kept


def test_2_3_5_two_turns_are_four_entries_with_the_delegation_between(tmp_path: Path) -> None:
    scripted = ScriptedCrew(delegations(delegation("triage")))
    scripted.classified.insert(0, delegations())
    [alone, _] = scripted.run("Hello", "Check my runs", conversation=Conversation(tmp_path, "c1"))
    assert summarize(alone) == ["agent_start(butler)", "text(butler)", "agent_complete(butler)", "done()"]
    assert scripted.sessions == ["butler", "butler", "triage"], "it answers alone what needs no specialist"
    history = Conversation(tmp_path, "c1").entries
    assert history == scripted.last.get_conversation_history()
    assert [(one.role, one.content) for one in history] == [
        ("user", "Hello"), ("assistant", "Here is what I know."),
        ("user", "Check my runs"), ("assistant", "Here is what I know.")]
    [kept] = history[3].delegations
    assert kept.context.target_agent == kept.result.agent_type == "triage"
    assert kept.result.success


def test_a_torn_last_line_is_left_out_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    ScriptedCrew().run("Hello", conversation=Conversation(tmp_path, "c1"))
    path = tmp_path / "c1.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"role": "us')
    assert len(Conversation(tmp_path, "c1").entries) == 2
    assert path.read_bytes() == whole
    path.write_bytes(b"[]\n" + whole)
    with pytest.raises(RecordCorrupt):
        Conversation(tmp_path, "c1")
    with pytest.raises(UsageError):
        Conversation(tmp_path, "../c1")


# ---- what goes wrong


@pytest.mark.parametrize("fate", [AgentFailure("invalid key", 401), None])
def test_a_specialist_that_fails_or_hangs_is_a_result_and_the_order_holds(fate: Exception | None) -> None:
    crew = Crew(CREW.butler, {"triage": CREW.specialists["triage"].__class__(
        "triage", "x", "delegate_triage", timeout=60.0 if fate else 0.05)})
    scripted = ScriptedCrew(delegations(delegation("triage")), crew, triage=lambda _: fate)
    [events] = scripted.run("What died?")
    assert summarize(events) == ["agent_start(butler)", "agent_delegate(butler>triage)", "agent_start(triage)",
                                 "agent_complete(triage)", "agent_resume(butler)", "text(butler)",
                                 "agent_complete(butler)", "done()"]
    assert [event.success for event in events if event.type == "agent_complete"] == [False, True]
    [kept] = scripted.last.get_conversation_history()[1].delegations
    assert not kept.result.success
    assert ("invalid key" if fate else "no answer within") in kept.result.summary
    assert set(scripted.last.states.values()) == {AgentState.IDLE}


def test_an_unreadable_classification_is_requested_once_more_and_then_the_butler_answers_with_a_note() -> None:
    scripted = ScriptedCrew(delegations(delegation("triage")))
    scripted.classified.insert(0, delegations(delegation("fly")))
    scripted.run("What died?")
    assert "no specialist has the intent 'delegate_fly'" in scripted.prompts[1][1]
    assert "triage" in scripted.sessions
    scripted = ScriptedCrew("I would rather talk.")
    [events] = scripted.run("What died?")
    assert summarize(events) == ["agent_start(butler)", "text(butler)", "text(butler)", "agent_complete(butler)",
                                 "done()"]
    assert "could not choose a specialist" in events[1].content, "the user sees it"
    assert "could not be read" in events[1].content
    assert "could not be read" in scripted.last.get_conversation_history()[1].note


@pytest.mark.parametrize(("failure", "texts", "success"), [
    (AgentFailure("I cannot help with that", error="refusal"), [
        "I could not choose a specialist, so I answer alone: the classification failed: I cannot help with that.\n\n",
        "Hello."], True),
    (AgentFailure("run `garrison login`", needs_person=True), ["no answer: run `garrison login`"], False)])
def test_a_model_that_refuses_to_classify_is_reported_and_a_missing_log_in_once(failure: AgentFailure, texts: list[str],
                                                                                success: bool) -> None:
    [events] = ScriptedCrew(butler=lambda prompt: failure if prompt.startswith("CLASSIFY") else "Hello.").run("Hi")
    assert [event.content for event in events if event.type == "text"] == texts
    assert [event.success for event in events if event.type == "agent_complete"] == [success]


def test_only_a_new_session_of_the_butler_gets_the_conversation(tmp_path: Path) -> None:
    first, second = ScriptedCrew(), ScriptedCrew()
    first.run("My name is Ann", conversation=Conversation(tmp_path))
    second.run("Who am I?", "Really?", conversation=Conversation(tmp_path))
    asked = [text for name, text in second.prompts if text.startswith("ANSWER")]
    assert ["user: My name is Ann" in text for text in asked] == [True, False]


def test_a_butler_that_fails_reports_the_results() -> None:
    def butler(prompt: str) -> Any:
        return delegations(delegation("triage")) if prompt.startswith("CLASSIFY") else AgentFailure("no credit", 402)
    scripted = ScriptedCrew(butler=butler)
    [events] = scripted.run("What died?")
    assert summarize(events)[-3:] == ["text(butler)", "agent_complete(butler)", "done()"]
    assert "triage says so" in events[-3].content
    assert not events[-2].success


def test_tools_and_tokens_are_counted_and_data_is_read() -> None:
    def triage(_: str) -> Any:
        return [{"kind": "tool", "name": "mcp__desk__runs", "id": "1", "input": {}},
                {"kind": "tool_result", "id": "1", "text": "r1"},
                {"kind": "text", "text": 'Two died.\n```json\n{"summary": "two died", "data": {"n": 2}}\n```'},
                {"kind": "result", "usage": {"input_tokens": 5, "output_tokens": 7}}]
    scripted = ScriptedCrew(delegations(delegation("triage")), triage=triage)
    scripted.run("What died?")
    [kept] = scripted.last.get_conversation_history()[1].delegations
    assert kept.result == AgentResult(agent_type="triage", success=True, summary="two died", data={"n": 2},
                                      tools_used=("runs",), tokens_used=12)


async def test_messages_of_one_conversation_wait_for_one_another_and_invalid_ones_start_no_agent() -> None:
    scripted = ScriptedCrew()
    async with AgentOrchestrator(CREW, connect=lambda spec: ScriptedSession(spec, scripted)) as desk:
        await asyncio.gather(*(desk.handle_user_message(f"m{number}") for number in range(3)))
        assert [one.role for one in desk.get_conversation_history()] == ["user", "assistant"] * 3
        given = DelegationContext(target_agent="x", original_user_message="m", delegation_reasoning="r")
        with pytest.raises(NotFound, match="triage"):
            await desk.spawn_sub_agent("butler", given)
        assert (await desk.spawn_sub_agent("triage", given)).summary == "triage says so"
        with pytest.raises(UsageError):
            await desk.handle_user_message("  ")


def test_no_agent_is_started_for_a_message_whose_client_has_left() -> None:
    scripted = ScriptedCrew(delegations(delegation("triage")))

    async def scene() -> list[str]:
        async with scripted.orchestrator() as desk:
            asked = asyncio.create_task(desk.handle_user_message("What needs me?"))
            while not scripted.sessions:
                await asyncio.sleep(0)
        started = list(scripted.sessions)
        await asyncio.gather(asked, return_exceptions=True)
        assert scripted.sessions == started
        return [name for name in desk.graph.nodes if desk.graph.get_agent_status(name)["is_running"]]
    assert asyncio.run(scene()) == []


# ---- what the user has to confirm


def proposing() -> tuple[ScriptedCrew, Confirmations, list[list[str]]]:
    """Return a crew whose scheduler proposes to stop a run, its confirmations, and the commands that were executed."""
    executed: list[list[str]] = []

    async def run(words: Any) -> str:
        executed.append(list(words))
        return "r1 is stopped"
    confirm = Confirmations(run)

    def scheduler(_: str) -> str:
        return confirm.propose(["stop", "r1"]) and "I propose to stop r1."
    return ScriptedCrew(delegations(delegation("schedule")), scheduler=scheduler), confirm, executed


def test_a_command_that_stops_a_run_needs_a_confirmation_and_no_model(tmp_path: Path) -> None:
    scripted, confirm, executed = proposing()
    [events] = scripted.run("Stop r1", confirm=confirm, conversation=Conversation(tmp_path, "c1"))
    assert executed == []
    assert events[-3].content.endswith("Answer `yes`; any other answer drops it.\n    garrison stop r1")
    assert events[-3].proposals == ("garrison stop r1",)
    started = len(scripted.sessions)
    [agreed, again] = scripted.run("Yes.", "yes", confirm=confirm, conversation=Conversation(tmp_path, "c1"))
    assert executed == [["stop", "r1"]], "a later process knows the proposal, and a second yes does nothing"
    assert [event.content for event in agreed if event.type == "text"] == ["`garrison stop r1`: r1 is stopped"]
    assert summarize(agreed) == ["agent_start(butler)", "text(butler)", "agent_complete(butler)", "done()"]
    assert "agent_delegate(butler>scheduler)" in summarize(again)
    assert started == 3, "the confirmation needs no model"


def test_a_no_drops_a_proposal_without_a_model(tmp_path: Path) -> None:
    scripted, confirm, executed = proposing()
    scripted.run("Stop r1", confirm=confirm, conversation=Conversation(tmp_path, "c1"))
    started = len(scripted.sessions)
    [dropped] = scripted.run("No.", confirm=confirm, conversation=Conversation(tmp_path, "c1"))
    assert [event.content for event in dropped if event.type == "text"] == ["Nothing was changed."]
    assert len(scripted.sessions) == started
    assert executed == []


@pytest.mark.parametrize("answer", ["no", "yes, but first tell me what runs", "stop r2"])
def test_any_other_answer_drops_a_proposal(answer: str) -> None:
    scripted, confirm, executed = proposing()
    scripted.classified = [delegations(delegation("schedule")), delegations()]
    scripted.run("Stop r1", answer, "yes", confirm=confirm)
    assert executed == []


def test_a_confirmed_command_that_fails_is_reported() -> None:
    async def refuse(_: Any) -> str:
        raise Refused("no run r1")
    confirm = Confirmations(refuse)
    confirm.propose(["stop", "r1"])
    confirm.propose(["stop", "r1"])
    assert asyncio.run(confirm.carry_out(confirm.take())) == ("`garrison stop r1` failed: no run r1", False)
    assert confirm.take() == ()


# ---- parts without sessions


def test_an_answer_is_streamed_while_it_is_written_and_only_once() -> None:
    pieces: list[str] = []
    stream = TextStream(pieces.append)
    for number in range(30):
        stream.receive({"kind": "partial", "text": f"{number:02} "})
    assert pieces and "".join(pieces) == "".join(f"{number:02} " for number in range(28))
    whole = "".join(f"{number:02} " for number in range(30)) + "end"
    stream.receive({"kind": "text", "text": whole})
    assert "".join(pieces) == whole
    stream.receive({"kind": "partial", "text": "a stream that breaks\n"})
    stream.receive({"kind": "text", "text": "another answer"})
    assert "".join(pieces[-2:]) == "a stream that breaks\n\nanother answer"


@pytest.mark.parametrize(("said", "shown"), [
    ('It died.\n\n```json\n{"summary": "s", "data": {"pid": 3}}\n```\n', "It died."),
    ('```json\n{"summary": "It died at noon."}\n```', "It died at noon."),
    ('{"runs": ["r1", "r2"], "dead": {"a": 1}}', "- runs: r1, r2\n- dead: a 1"),
    ("{not json} after all", "{not json} after all"), ("an array [1, 2]", "an array [1, 2]"),
    ('As it is:\n```json\n{"a": 1}\n```\nand more', 'As it is:\n```json\n{"a": 1}\n```\nand more')])
def test_the_json_for_the_butler_is_not_shown(said: str, shown: str) -> None:
    assert classify.readable(said).strip() == shown.strip()
    for step in (1, 7, len(said)):
        pieces: list[str] = []
        stream = TextStream(pieces.append)
        for at in range(0, len(said), step):
            stream.receive({"kind": "partial", "text": said[at:at + step]})
        stream.receive({"kind": "text", "text": said})
        stream.finish()
        assert "".join(pieces).strip() == shown, step


def test_idle_sessions_end_and_the_next_message_starts_them_with_the_conversation() -> None:
    crew = ScriptedCrew()

    async def scene() -> None:
        async with crew.orchestrator(idle=0.01) as butler:
            await butler.handle_user_message("one")
            assert butler.graph.sessions.is_running("butler")
            while butler.graph.sessions.is_running("butler"):
                await asyncio.sleep(0.005)
            texts = [event async for event in butler.stream("and now?", "run r1, node work")]
            assert texts[-1].type == "done"
    asyncio.run(scene())
    last = crew.prompts[-1][1]
    assert last.startswith("ANSWER") and "user: one" in last and "and now?\n\n(asked from the page of run r1" in last


def test_only_the_listed_states_follow_each_other() -> None:
    for old in AgentState:
        for new in AgentState:
            if new in TRANSITIONS[old]:
                assert check_transition("a", old, new) is new
            else:
                with pytest.raises(ForbiddenTransition):
                    check_transition("a", old, new)


def test_events_out_of_order_are_refused() -> None:
    numbers = Numbers()
    with pytest.raises(OrderBroken):
        numbers.event("text", NOW, agent="butler", content="x")
    numbers.event("agent_start", NOW, agent="butler")
    numbers.event("agent_delegate", NOW, from_="butler", to="triage")
    for kind, fields in (("agent_resume", {"agent": "butler"}), ("done", {}), ("agent_start", {"agent": "butler"}),
                         ("text", {"agent": "butler", "content": "x"}), ("text", {"agent": "scheduler"}),
                         ("text", {"agent": "triage", "content": "x"}), ("agent_start", {"agent": "scheduler"})):
        with pytest.raises(OrderBroken):
            numbers.event(kind, NOW, **fields)
    assert numbers.last_id == 2
    numbers.event("agent_start", NOW, agent="triage")
    with pytest.raises(OrderBroken):
        numbers.event("agent_start", NOW, agent="triage")
    assert numbers.event("text", NOW, agent="triage", content="a\nb").as_sse() == (
        'id: 4\ndata: {"id":4,"type":"text","timestamp":"2026-01-15T10:00:00Z","agent":"triage","content":"a\\nb"}\n\n')


def test_models_read_both_spellings_and_refuse_unknown_fields() -> None:
    body = {"agentType": "triage", "success": True, "summary": "s", "tokensUsed": 3}
    known = AgentResult(agent_type="triage", success=True, summary="s", tokens_used=3)
    assert AgentResult.model_validate(body) == known
    assert AgentResult.model_validate(body).as_json()["tokensUsed"] == 3
    for wrong in ({**body, "extra": 1}, {"agentType": "x"}):
        with pytest.raises(ValidationError):
            AgentResult.model_validate(wrong)
    with pytest.raises(ValidationError):
        Preference(key="k", value="v", confidence=1.5)


@pytest.mark.parametrize("said", ["nothing", '{"delegations": 3}', '{"delegations": [{"intent": "x"}]}'])
def test_a_classification_is_checked(said: str) -> None:
    with pytest.raises(classify.Unreadable):
        classify.parse_classification(said, CREW)


@pytest.mark.parametrize("form", ["Sure:\n```json\n{}\n```", "As {you} said {}, so {be it}.", "{ {} }", '{"a": 1} {}'])
def test_text_around_the_object_does_no_harm(form: str) -> None:
    empty = {"relevantEntities": None, "timeConstraints": None}
    found = classify.parse_classification(form.replace("{}", delegations(delegation("draft", **empty))), CREW)
    assert found.delegations == (DelegationRequest(intent="delegate_draft", reasoning="draft knows"),), "null is none"


@pytest.mark.parametrize(("said", "found"), [
    ("", None), ("[1]", None), ("{" * 100_000, None), ('{"a": ' * 100_000, None), ('x {y} {"a": {"b": "}"}} z', {
        "a": {"b": "}"}})])
def test_an_object_is_found_in_any_text(said: str, found: Any) -> None:
    assert extract_object(said) == found


# ---- the crew's files


def test_the_crew_of_a_home_replaces_the_shipped_one(tmp_path: Path) -> None:
    assert tuple(CREW.specialists) == ("triage", "scheduler", "communicator", "navigator", "preference_learner")
    (tmp_path / "delegation.toml").write_text(
        '[butler]\ntext = "You serve."\n[agents.cook]\nprompt = "cook.md"\nmodel = "haiku"\ntools = ["runs"]\n')
    (tmp_path / "cook.md").write_text("You cook.")
    crew = read_crew(tmp_path)
    assert (crew.names, crew.specialists["cook"].intent) == (("butler", "cook"), "delegate_cook")
    assert (crew.specialists["cook"].prompt, crew.specialists["cook"].model) == ("You cook.", "haiku")
    assert crew.of_intent("delegate_triage") is None


@pytest.mark.parametrize(("text", "why"), [
    ("x = 1", "delegation.toml:1: garrison reads no table or key x; there are butler, agents"),
    ("[butler]\ntext = 'x'", "at least one specialist"), ("=", "is not TOML: Invalid"),
    ("[butler]\ntext='x'\n[agents.butler]\ntext='y'", "the butler cannot be a specialist"),
    ("[butler]\ntext='x'\n[agents.a]\n", "give prompt"), ("[butler]\ntext='x'\n[agents.a]\nprompt='no.md'", "no.md"),
    ("[butler]\ntext='x'\n[agents.a]\ntext='y'\ncolour='red'",
     r"delegation.toml:5: \[agents.a\] colour is not a setting; there are intent, about, "),
    ("[butler]\ntext='x'\n[agents.a]\ntext='y'\ntimeout='5'", "timeout='5' should be seconds above 0"),
    ("[butler]\ntext='x'\n[agents.a]\ntext='y'\ntimeout=0", "delegation.toml:5: .* should be seconds above 0"),
    ("[butler]\ntext='x'\n[agents.a]\ntext='y'\nintent='i'\n[agents.b]\ntext='y'\nintent='i'",
     r"delegation.toml:\d: .*two specialists")])
def test_an_invalid_crew_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "delegation.toml").write_text(text)
    with pytest.raises(GarrisonError, match=why) as caught:
        read_crew(tmp_path)
    assert "\n" not in str(caught.value)


# ---- giving up


@pytest.mark.parametrize("hangs", ["triage", "butler"])
def test_an_abandoned_message_ends_gracefully_and_the_next_is_answered(hangs: str, tmp_path: Path) -> None:
    """Also 2.3.5: the conversation notes it and continues."""
    first = [True]

    def hang(prompt: str) -> str | None:
        if prompt.startswith("CLASSIFY"):
            return delegations(delegation("triage"))
        return None if first[0] else "now I can"

    scripted = ScriptedCrew(delegations(delegation("triage")), **{hangs: hang})
    kept = Conversation(tmp_path)

    async def scene() -> list[list[Any]]:
        async with scripted.orchestrator(kept) as desk:
            assert not await desk.cancel(), "no message is in progress"
            events: list[Any] = []
            async for event in desk.stream("what waits?"):
                events.append(event)
                if event.type == ("agent_delegate" if hangs == "triage" else "agent_resume"):
                    asyncio.get_running_loop().call_later(0.02, lambda: asyncio.ensure_future(desk.cancel()))
            first[0] = False
            assert set(desk.states.values()) == {AgentState.IDLE}
            return [events, [event async for event in desk.stream("and now?")]]

    given_up, answered = asyncio.run(scene())
    end = ["text(butler)", "agent_complete(butler)", "done()"]
    middle = ["agent_start(triage)", "agent_complete(triage)"] if hangs == "triage" else [
        "agent_start(triage)", "text(triage)", "agent_complete(triage)", "agent_resume(butler)"]
    assert summarize(given_up) == ["agent_start(butler)", "agent_delegate(butler>triage)", *middle, *end]
    assert given_up[-2].success is False and answered[-2].success is True
    assert [(one.role, one.note) for one in kept.entries] == [
        ("user", ""), ("assistant", "cancelled"), ("user", ""), ("assistant", "")]
