"""`garrison acp` as an editor meets it: a raw client, and garrison's own ACP client; no front agent is reachable."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from acp_panel import begin_session, editor
from garrison.agents.acp.client import AcpClient
from garrison.agents.acp.permissions import OfferedAnswer
from support import DEADLINE, PROGRAM, Place, git, wait_for


def test_a_prompt_starts_a_run_that_lands_without_the_editor_and_is_listed_later(place: Place) -> None:
    place.use_agent(f"{place.hold('it')}; echo it >> made.txt")
    with editor(place) as found:
        session = begin_session(found, place.repo)
        told = found.prompt(session, "make it")
        assert "It has started" in told
        run = told.split("`")[1]
        place.wait_until_held("it")
        found.child.kill()
    place.release("it")
    wait_for("the run ends", lambda: place.status(run) == "done")
    assert git(place.repo, "show", "main:made.txt") == "it"
    with editor(place) as found:
        [listed] = found.call("session/list", cwd=str(place.repo))["sessions"]
        assert (listed["sessionId"], listed["title"]) == (session, "make it")
        found.call("session/load", sessionId=session, cwd=str(place.repo), mcpServers=[])
        assert [update["content"]["text"] for update in found.updates
                if update["sessionUpdate"] == "user_message_chunk"] == ["make it"]
        assert found.calls() == {f"{run}/make_it": "completed"} and found.plan() == ["completed"]
        found.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "make it again"}])
        found.hang_up()  # the editor asks for a run, and dies
    wait_for("the other run ends", lambda: git(place.repo, "show", "main:made.txt") == "it\nit")
    with editor(place) as found:
        found.call("session/resume", sessionId=session, cwd=str(place.repo), mcpServers=[])
        assert "again" in found.prompt(session, "/why"), "it is this session's"


GRAPH = """digraph asked { flow=dag; goal="g"; start [shape=Mdiamond]; exit [shape=Msquare];
  ask [shape=hexagon, label="Which colour?"]; red [shape=box, command="echo red > c.txt"];
  blue [shape=box, command="echo blue > c.txt", approve=true]; start -> ask; ask -> red [label="Red"];
  ask -> blue [label="Blue", irreversible=true]; red -> exit; blue -> exit; }"""


def launch(place: Place) -> None:
    """Launch the graph, and wait until its gate is open."""
    path = place.root / "asked.dot"
    path.write_text(GRAPH)
    done = place.command("launch", path, "--run=r1", f"--target-dir={place.repo}", "--gate=true", "--detach",
                         "--terminal=process")
    assert done.returncode == 0, done.stderr
    assert place.command("wait", "r1").returncode == 3


@pytest.mark.traced
def test_irreversible_answers_and_approvals_need_a_typed_confirmation(place: Place) -> None:
    """An editor that grants everything decides neither."""
    launch(place)
    with editor(place) as found:
        session = begin_session(found, place.repo)
        found.grants = {"Which colour?": "Blue", "Land attempt": "Approve"}
        found.prompt(session, "/follow r1")
        assert "garrison answer --run=r1" in found.until("Blue for ask counts once you confirm it")
        assert found.prompt(session, "no") == "Nothing was changed.\n\n"
        assert "there is nothing to confirm" in found.prompt(session, "yes"), "and it is not a task"
        since = len(found.updates)
        found.prompt(session, "/status r1")
        found.until("Blue for ask counts once you confirm it", since)
        found.grants.clear()
        assert "answer recorded" in found.prompt(session, "yes")
        asked = found.until_asked("Land attempt 1")
        assert "c.txt" in json.dumps(asked["params"]["toolCall"]["content"])
        assert [each["kind"] for each in asked["params"]["options"]] == ["allow_once", "reject_once"]
        found.choose(asked, "Approve")
        found.until("Approve for blue counts once you confirm it")
        assert place.command("wait", "r1").returncode == 3, "a click alone lands nothing"
        assert "it lands" in found.prompt(session, "Yes.")
        assert "Run `r1` is over: done" in found.until("Run `r1` is over")
        assert found.calls()["r1/blue"] == "completed"
    assert "an editor 2" in json.dumps(place.journal())
    assert "through an editor 2" in place.command("why", "blue", "--all", "--run", "r1").stdout


def test_errors_are_one_line_and_neither_cancel_nor_close_stops_a_run(place: Place) -> None:
    """A question in words takes the next message."""
    place.use_agent(f"{place.hold('it')}; {shlex.join(PROGRAM)} ask-person 'Which colour?' && echo it > made.txt")
    with editor(place, "--plain") as found:
        session = begin_session(found, place.repo)
        names = {"run", "status", "follow", "why", "diff", "tell", "answer", "reject", "retry", "stop", "resume"}
        while not (listed := [each for each in found.updates if each["sessionUpdate"] == "available_commands_update"]):
            found.step()
        assert {each["name"] for each in listed[0]["availableCommands"]} == names
        for text, told in (("/stpo", "did you mean /stop?"), ("/tell", "type /tell NODE TEXT"), ("/run", "type /run ["),
                           ("/run --colour red x", "/run has no --colour"), ("/why", "there is no run yet"),
                           ("/status no-such", "there is no run no-such"),
                           ("/run --agent nobody make it", "did not start: "), ("/why", "nobody")):
            assert told in found.prompt(session, text), text
        assert "is not in a git repository" in found.prompt(begin_session(found, place.root), "make it")
        for method, params, told in (
                ("session/load", {"sessionId": "no-such", "cwd": "/", "mcpServers": []}, "there is no session no-such"),
                ("session/load", {"sessionId": "../x", "cwd": "/", "mcpServers": []}, "is not a conversation id"),
                ("session/new", {"cwd": "here", "mcpServers": []}, "cwd is not an absolute path"),
                ("session/prompt", {"sessionId": "acp-1", "prompt": []}, "is not open"),
                ("session/prompt", {"sessionId": session, "prompt": []}, "has no text")):
            assert told in found.error(method, **params)
        run = found.prompt(session, "/run --agent=double make it").split("`")[1]
        waiting = found.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "/follow"}])
        assert "still being answered" in found.error("session/prompt", sessionId=session,
                                                     prompt=[{"type": "text", "text": "hello"}])
        found.notify("session/cancel", sessionId=session)
        assert found.result_of(waiting)["result"] == {"stopReason": "cancelled"}
        found.call("session/close", sessionId=session)
        assert "is not open" in found.error("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "x"}])
        before = len(found.updates)
        found.call("session/resume", sessionId=session, cwd=str(place.repo), mcpServers=[])
        place.wait_until_held("it")
        place.release("it")
        found.until("make_it asks: Which colour?")
        assert not [each for each in found.updates[before:] if each["sessionUpdate"] == "user_message_chunk"]
        found.grants = {"make_it asks": "Answer make_it"}
        assert "answer recorded" in found.prompt(session, "blue")
        found.until(f"Run `{run}` is over: done")
        assert "it" in found.prompt(session, "/diff make_it")
    assert "an editor 2" in json.dumps(place.journal(run))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:  # an editor that died before it said anything
        done = subprocess.run([*PROGRAM, "acp", "--plain"], env=place.env, cwd=place.repo, stdin=subprocess.DEVNULL,
                              stdout=gone, stderr=subprocess.PIPE, check=False, timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (0, b"")
    (place.home / f"conversations/{session}.jsonl").write_text("{}\n")
    with editor(place, "--plain") as found:
        assert "not a conversation" in found.error("session/load", sessionId=session, cwd="/", mcpServers=[])


class Listener:
    """Listen to a session as an agent's attempt does, and allow everything."""

    def __init__(self) -> None:
        self.texts, self.asked = list[str](), list[str]()

    def on_event(self, event: Any) -> None:
        self.texts.append(str(event.get("text", "")))

    async def on_permission(self, kind: str, title: str, options: Sequence[OfferedAnswer]) -> OfferedAnswer | None:
        """Take the first option that allows."""
        self.asked.append(title)
        return next(option for option in options if option.kind == "allow_once")


def test_a_permission_of_garrisons_own_client_lands_nothing_before_it_confirms_in_words(place: Place) -> None:
    """A gate's question that an editor shows is withdrawn once it is answered elsewhere."""
    launch(place)
    with editor(place) as found:
        found.prompt(begin_session(found, place.repo), "/follow")
        asked = found.until_asked("Which colour?")
        assert place.command("answer", "ask", "Blue", "--yes", "--run", "r1").returncode == 0
        found.until_asked("Land attempt 1")
        found.choose(asked, "Red")
        assert found.calls()[asked["params"]["toolCall"]["toolCallId"]] == "completed"
    assert place.command("wait", "r1").returncode == 3
    heard = Listener()

    @asynccontextmanager
    async def started() -> AsyncIterator[AcpClient]:
        client = AcpClient([*PROGRAM, "acp", "--plain"], place.env, str(place.repo), heard, stale=60)
        try:
            await client.start()
            yield client
        finally:
            await client.close()

    async def play() -> str:
        async with started() as client:
            assert client.agent.startswith("garrison ") and client.can_resume
            session = await client.new_session(())
            for text in ("/status r1", "/follow r1", "yes", "/follow r1"):
                if text == "yes":  # the client's leave came first, and has only proposed it
                    while '"proposals":[{' not in (place.home / f"conversations/{session}.jsonl").read_text():
                        await asyncio.sleep(0.1)
                    assert place.command("wait", "r1").returncode == 3
                assert await client.turn(text) == "end_turn", client.stderr
        async with started() as again:
            await again.resume_session(session, ())
            await again.turn("/why")
        return session

    session = asyncio.run(play())
    assert any(title.startswith("blue: Land attempt 1") for title in heard.asked)
    assert "done, 1 of 2 landed" in "".join(heard.texts)
    conversation = (place.home / f"conversations/{session}.jsonl").read_text()
    assert conversation.count('"content":"/follow r1"') == 2 and '"content":"/why"' in conversation
