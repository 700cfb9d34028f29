"""An agent that runs as a session: its options, its messages, and its script as a model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from garrison.agents import registry
from garrison.agents.base import Function
from garrison.agents.conversation import prompts
from garrison.agents.session_agent import SessionAgent, SessionOrder
from garrison.agents.session_options import ORDER, SessionOptions
from garrison.errors import UsageError
from garrison.node.session_attempt import SessionProgram, SessionScript, next_message, result_of, tools_of
from garrison.session import Session, SessionState
from garrison.session.adapters import MAX_RESULT, ToolDispatcher
from garrison.session.claude import claude_adapters, prompt_of
from garrison.session.state import read_tiers
from garrison.values import asdict


def configure(home: Path, text: str) -> Path:
    (home / "config.toml").write_text(text)
    return home


def test_a_node_or_a_profile_makes_an_agent_a_session(tmp_path: Path) -> None:
    home = configure(tmp_path, '[agents.steady]\nkind = "session"\nof = "scripted"\ntier = "established"\n'
                               '[agents.thinker]\nkind = "session"\n')
    assert isinstance(registry.agent("scripted", home, attributes={"session": "true"}), SessionAgent)
    assert not isinstance(registry.agent("scripted", home, attributes={}), SessionAgent)
    steady = registry.agent("steady", home)
    assert isinstance(steady, SessionAgent)
    assert (steady.settings, steady.defaults) == (None, SessionOptions("established"))
    thinker = registry.agent("thinker", home)
    assert isinstance(thinker, SessionAgent)
    assert thinker.settings is not None
    assert "ANTHROPIC_API_KEY" in registry.required_variables({"thinker"}, home)


@pytest.mark.parametrize(("agent", "says", "why"), [
    ("command", {"session": "true"}, "agent command cannot run as a session; a Claude agent can"),
    ("scripted", {"session": "perhaps"}, "session='perhaps' should be true or false"),
    ("scripted", {"session": "true", "initiative": "-1"}, "initiative='-1' should be a number of model calls"),
    ("odd", {}, "agent command cannot run as a session"), ("twice", {}, "is a session of odd, which is a session")])
def test_invalid_session_options_are_refused_before_a_run(tmp_path: Path, agent: str, says: dict[str, str],
                                                      why: str) -> None:
    home = configure(tmp_path, '[agents.odd]\nkind = "session"\nof = "command"\n'
                               '[agents.twice]\nkind = "session"\nof = "odd"\n')
    with pytest.raises(UsageError, match=why):
        registry.check_node(agent, "a", says, home)
    configure(tmp_path, '[agents.odd]\nkind = "session"\nmodle = "x"\n')
    with pytest.raises(UsageError, match=r"config.toml:3: \[agents.odd\] modle is not a setting; there are tier, "):
        registry.profiles(home)


def test_the_next_message_and_the_result_follow_the_report() -> None:
    report = {"status": "failure", "summary": "no"}
    assert next_message(0, None, "do it") == "do it"
    assert next_message(1, None, "do it") == prompts.report_request()
    assert next_message(2, None, "do it") is None
    assert next_message(1, report, "do it") is None
    assert next_message(0, None, "do it", "Be quick.") == "do it\n\nBe quick."
    for turns in range(1, 4):  # a message of the user gets a turn
        assert (next_message(turns, None, "do it", "Be quick.") or "").startswith("Be quick.")
    assert next_message(1, {"status": "success"}, "do it", "Be quick.") is None
    assert result_of(None)["status"] == "fail"
    assert result_of(report) == {"status": "fail", "failure_reason": "no"}
    assert result_of({"status": "success", "summary": "yes"}) == {"status": "success", "notes": "yes"}
    half = {"status": "partial_success", "summary": "half", "preferred_label": "again"}
    assert result_of(half) == {"status": "partial_success", "notes": "half", "preferred_label": "again"}


def test_a_session_without_tools_is_refused(tmp_path: Path) -> None:
    order = SessionOrder("home", "r", "a", 1, 1, "tree", "goal", "untrusted", 0, "notes", None, None, None)
    (tmp_path / ORDER).write_text(json.dumps(asdict(order)))
    with pytest.raises(UsageError, match="tier untrusted has no tools and could not report"):
        SessionProgram(tmp_path / "prompt.md")


STEPS: list[dict[str, Any]] = [{"life": 1, "print": "a"}, {"notes": "b", "print": "c"}, {"life": 2, "print": "d"}]


def played(script: SessionScript, fails: str = "") -> tuple[list[str], Any]:
    """Return the values of a script's calls in a session, and the result of its turn."""
    made: list[str] = []

    def call(**given: Any) -> str:
        made.append(str(given.get("value", given.get("status"))))
        if given.get("value") == fails:
            raise OSError("disk")
        return "done"
    tools = {name: Function(name, "", {}, call) for name in ("print", "notes", "report_result")}

    async def scene() -> Any:
        adapters = {"llm_call": script.llm_call, "tool_dispatch": ToolDispatcher(tools, fatal=True)}
        async with Session(SessionState("s", "a", "trusted"), adapters) as session:
            return await session.send("go")
    return made, asyncio.run(scene())


def test_a_script_calls_its_steps_as_tools_except_those_of_other_incarnations() -> None:
    made, result = played(SessionScript("n", STEPS, 1))
    assert made == ["a", "b", "c", "success"]
    assert (result.response, result.tool_calls_made) == ("The script of n has ended.", 4)
    assert played(SessionScript("n", STEPS, 2))[0] == ["b", "c", "d", "success"]
    said = [{"role": "tool", "tool_call_id": "2:notes", "content": "done"}]
    assert SessionScript("n", STEPS, 2).llm_call(said, "", {})["tool_calls"][0]["id"] == "2:print"
    play = SessionScript("n", STEPS, 2).tools()["exit"].call
    assert play(value=3, life=1) == "skipped: meant for incarnation 1"
    with pytest.raises(RuntimeError, match="exit code 3"):
        play(value=3)


def test_a_tier_limits_the_tools_and_tool_errors_are_returned(tmp_path: Path) -> None:
    tiers = read_tiers()
    assert list(tools_of(tmp_path, tiers["probationary"])) == ["read", "list", "search"]
    assert "run" not in tools_of(tmp_path, tiers["established"])
    assert tools_of(tmp_path, tiers["untrusted"]) == {}
    dispatch = ToolDispatcher(tools_of(tmp_path, tiers["trusted"]))

    def call(name: str, **arguments: Any) -> str:
        return asyncio.run(dispatch([{"name": name, "arguments": arguments}], "a"))[0]
    assert json.loads(call("write", path="a.txt", text="one two"))["bytes"] == 7
    call("edit", path="a.txt", old="two", new="three")
    assert json.loads(call("read", path="a.txt"))["text"] == "one three"
    assert "contains 'four' 0 times" in call("edit", path="a.txt", old="four", new="x")
    assert call("read", path="../x").startswith("error: UsageError:")
    assert "unknown tool 'fly'; available: read, list" in call("fly")
    assert "missing" in call("read")
    assert len(call("run", command=f"yes | head -c {3 * MAX_RESULT}")) < MAX_RESULT + 100


class Claude:
    """A model's session that calls its functions within its own turn, as Claude's client does."""

    def __init__(self, spec: Any, script: list[list[tuple[str, dict[str, Any]]]], log: list[str]) -> None:
        self.functions = {one.name: one for one in spec.metadata["functions"]}
        self.script, self.log = script, log

    async def connect(self) -> None: ...

    async def close(self) -> None: ...

    async def ask(self, content: str) -> Any:
        self.log.append(content)
        for calls in self.script.pop(0):
            yield {"kind": "text", "text": "before"}
            said = await self.functions[calls[0]].call(**calls[1])
            yield {"kind": "tool_result", "text": said}
            self.log.append(f"heard {said}")
        yield {"kind": "text", "text": "after"}


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_1b_claudes_own_tool_calls_are_dispatches_of_the_graph(calls: int) -> None:
    log: list[str] = []
    asked: list[Any] = []
    search = Function("search", "", {"type": "object"}, lambda q: f"found {q}")
    script = [[("search", {"q": number}) for number in range(calls)]]

    async def scene() -> Any:
        async with claude_adapters(None, {}, {"search": search},
                                   connect=lambda spec: Claude(spec, script, log)) as adapters:
            dispatch = adapters["tool_dispatch"]

            async def counted(*given: Any) -> Any:
                asked.append(given[0])
                return await dispatch(*given)
            async with Session(SessionState("s", "a"), {**adapters, "tool_dispatch": counted}) as session:
                return await session.send("go")
    result = asyncio.run(scene())
    assert (result.response, result.tool_calls_made, len(asked)) == ("after", calls, calls)
    assert int(result.context_snapshot["llm.calls"]) == calls + 1
    assert log[1:] == [f"heard found {number}" for number in range(calls)]
    assert len([one for one in log if one.startswith("<conversation>")]) == 1, "one turn of Claude's"


def test_a_repeated_conversation_includes_calls_and_results() -> None:
    told = prompt_of([{"role": "user", "content": "go"},
                      {"role": "assistant", "content": "", "tool_calls": [
                          {"name": "read", "arguments": {"path": "a"}}]},
                      {"role": "tool", "name": "read", "content": "text"}], "reflection", {})
    assert 'assistant: called read({"path": "a"})\ntool read: text' in told
