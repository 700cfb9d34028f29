"""Chat with the butler over the wire: the crew is scripted, everything else is real."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from garrison.delegation.conversation import Conversation
from garrison.delegation.models import ChatEntry
from garrison.errors import UsageError
from garrison.web import chat
from scripted_crew import ScriptedCrew, delegation, delegations
from web_support import READ, ServerEvent, Site, Stream, site


def crewed(home: Path, crew: ScriptedCrew) -> AbstractAsyncContextManager[Site]:
    """Return a server whose butler is the crew's."""
    return site(home, open_butler=lambda at, name, _run: crew.orchestrator(Conversation(at / "conversations", name)))


async def say(here: Site, message: str, conversation: str = "default") -> Stream:
    return await here.stream("/api/chat", method="POST", body={"message": message, "conversation": conversation})


def summarize(told: list[ServerEvent]) -> list[str]:
    return [f"{one.data['type']}({one.data.get('to') or one.data.get('agent', '')})" for one in told]


ORDER = ["agent_start(butler)", "agent_delegate(triage)", "agent_start(triage)", "text(triage)",
         "agent_complete(triage)", "agent_resume(butler)", "text(butler)", "agent_complete(butler)", "done()"]


@pytest.mark.smoke
async def test_an_answer_is_streamed_in_order_and_kept(tmp_path: Path) -> None:
    async with crewed(tmp_path, ScriptedCrew(delegations(delegation("triage")))) as here:
        told = await (await say(here, "what <b>waits</b>?")).rest()
        assert summarize(told) == ORDER and len({one.id for one in told}) == len(told)
        crew = (await here.get("/api/crew")).json
        assert [one["agent"] for one in crew][:2] == ["butler", "triage"] and all(one["what"] for one in crew)
        kept = (await here.get("/api/conversations/default")).json
        assert [one["role"] for one in kept["entries"]] == ["user", "assistant"] and not kept["busy"]
        assert kept["entries"][1]["delegations"][0] == {"agent": "triage", "success": True, "summary": "triage says so"}
        assert (await here.get("/api/conversations")).json[0]["first"] == "what <b>waits</b>?"

        again = await here.stream("/api/chat/default/events", after=told[2].id)
        assert [(await again.next(), one)[0] for one in told[3:]] == told[3:], "what was missed, none twice"
        second = await say(here, "and now?")
        more = await second.rest()
        assert [await again.next() for _ in more] == more, "and later events reach every client"
        again.close()
        for old in ("00000000-1", "x", told[0].id + "9", ""):
            stream = await here.stream("/api/chat/default/events", after=old)
            if old:
                first = await stream.next()
                assert first is not None and first.event == "reset"


async def test_one_message_is_answered_at_a_time(tmp_path: Path) -> None:
    """The client disconnects; the answer is finished, and sent to one that reconnects. A hung one can be cancelled."""
    crew = ScriptedCrew(delegations(delegation("triage")), triage=lambda _prompt: None)
    async with crewed(tmp_path, crew) as here:
        stream = await say(here, "one")
        first = await stream.next()
        busy = await here.post("/api/chat", {"message": "two"})
        assert busy.status == 409 and "cancel" in busy.json["message"]
        other = await say(here, "elsewhere", "monday")
        assert summarize([await other.until("message")]) == ["agent_start(butler)"], "another conversation is another"
        stream.close()
        back = await here.stream("/api/chat/default/events", after=first.id)
        assert summarize([await back.until("message") for _ in range(2)]) == [
            "agent_delegate(triage)", "agent_start(triage)"]
        assert (await here.post("/api/chat/default/cancel", {})).json["ok"]
        told = [await back.until("message") for _ in range(4)]
        assert summarize(told) == ["agent_complete(triage)", "text(butler)", "agent_complete(butler)", "done()"]
        await here.post("/api/chat/monday/cancel", {})
        await other.rest()
        assert (await here.post("/api/chat/default/cancel", {})).status == 409
        entries = (await here.get("/api/conversations/default")).json["entries"]
        assert [one["note"] for one in entries] == ["", "cancelled"]


async def test_an_invalid_message_is_refused(tmp_path: Path) -> None:
    def no_crew(place: Path, name: str, run: str) -> Any:
        raise UsageError("no crew is there")

    async with site(tmp_path, open_butler=no_crew) as here:
        for body in ({}, {"message": " "}, {"message": 1}, {"message": "x" * (chat.MESSAGE + 1)},
                     {"message": "x", "conversation": "../x"}, {"message": "x", "conversation": 1}):
            assert (await here.post("/api/chat", body)).status in (400, 404, 409), body
        assert (await here.ask("POST", "/api/chat", here.posting(READ), b'{"message": "x"}')).status == 403
        assert (await here.get("/api/conversations/..")).status in (400, 404)
        told = await (await say(here, "hello")).rest()
        assert [one.data["type"] for one in told] == ["error", "done"] and "no crew" in told[0].data["message"]


async def test_a_conversation_continued_elsewhere_is_read_again(tmp_path: Path) -> None:
    crew = ScriptedCrew()
    async with crewed(tmp_path, crew) as here:
        await (await say(here, "one")).rest()
        path = tmp_path / "conversations" / "default.jsonl"
        line = json.loads(path.read_bytes().splitlines()[0]) | {"content": "said on a terminal"}
        with path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
        await (await say(here, "two")).rest()
        assert any("said on a terminal" in prompt for _, prompt in crew.prompts)


async def test_a_long_conversation_is_read_in_pages_and_searched(tmp_path: Path) -> None:
    talk = Conversation(tmp_path / "conversations")
    for number in range(250):
        content = "Straße {a} gesperrt" if number == 31 else f"word {number}"
        talk.add(ChatEntry(role="assistant" if number % 2 else "user", content=content,
                           at=datetime(2026, 1, 1, 0, 0, 59 - number % 60, tzinfo=UTC)))  # the clock was set back
    async with crewed(tmp_path, ScriptedCrew(delegations())) as here:
        async def page(query: str) -> Any:
            return (await here.get(f"/api/conversations/default{query}")).json

        latest = await page("")
        assert [latest["entries"][at]["content"] for at in (0, -1)] == ["word 150", "word 249"], "in the file's order"
        assert (latest["total"], latest["position"], latest["newer"], latest["busy"]) == (250, 150, None, False)
        before = await page(f"?before={latest['older']}&limit=3")
        assert [one["content"] for one in before["entries"]] == ["word 147", "word 148", "word 149"]
        assert (await page(f"?after={before['newer']}&limit=1"))["entries"][0]["content"] == "word 150"
        oldest = await page("?after=&limit=500")
        assert len(oldest["entries"]) == 250 and oldest["older"] is oldest["newer"] is None
        found = await page("?q=STRASSE%20%7BA%7D")
        assert [one["content"] for one in found["entries"]] == ["Straße {a} gesperrt"] and found["total"] == 1
        assert (await page("?q=assistant"))["total"] == 0, "what is searched is what was said"
        for bad, word in (("before=1&after=2", "not both"), ("limit=0", "limit"), ("limit=501", "limit")):
            refused = await here.get(f"/api/conversations/default?{bad}")
            assert refused.status == 400 and word in refused.json["message"]
