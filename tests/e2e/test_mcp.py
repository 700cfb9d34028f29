"""`garrison mcp` as a client meets it: the official client, in both eras of the protocol, over standard input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ElicitRequestFormParams, ElicitResult, Implementation

from support import PROGRAM, Node, Place

ERAS = ("legacy", "2026-07-28")
GRAPH = """digraph asked { flow=dag; goal="g"; start [shape=Mdiamond]; exit [shape=Msquare];
  ask [shape=hexagon, label="Which colour?"]; red [shape=box, command="echo red > c.txt"];
  blue [shape=box, command="echo blue > c.txt"]; start -> ask; ask -> red [label="Red"]; ask -> blue [label="Blue"];
  red -> exit; blue -> exit; }"""


@asynccontextmanager
async def client(place: Place, era: str, *words: str, answer: str = "") -> AsyncIterator[Any]:
    """Yield a client of a server for the place's repository; `answer` is what its user says to every form."""
    async def elicit(_context: object, params: object) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        return ElicitResult(action="accept", content={"answer": answer})

    argv = [*PROGRAM, "mcp", f"--repo={place.repo}", *words]
    server = StdioServerParameters(command=argv[0], args=argv[1:], env=place.env)
    async with Client(stdio_client(server), mode=era, elicitation_callback=elicit if answer else None,
                      client_info=Implementation(name="a test", version="1")) as found:
        yield found


async def said(found: Any, tool: str, **arguments: object) -> str:
    result = await found.call_tool(tool, arguments)
    return "\n".join(part.text for part in result.content)


async def until_over(found: Any, run: str) -> str:
    since = ""
    while True:
        result = await found.call_tool("wait", {"run": run, "since": since})
        seen = result.structured_content
        if seen["is_over"]:
            return str(seen["status"])
        since = seen["since"]


@pytest.mark.parametrize("era", ERAS)
def test_a_run_from_its_start_to_landed(place: Place, era: str) -> None:
    async def play() -> None:
        async with client(place, era) as found:
            tools = {tool.name: tool for tool in (await found.list_tools()).tools}
            assert set(tools) == {"run", "status", "wait", "why", "show", "tell", "answer", "decide", "control"}
            for tool in tools.values():
                hints = tool.annotations
                assert None not in (hints.read_only_hint, hints.destructive_hint, hints.open_world_hint)
            graph = place.graph(Node("made", command="date > made.txt")).read_text()
            told = await said(found, "run", request_id="1", graph=graph, gate="true")
            run = told.split()[1]
            assert await said(found, "run", request_id="1", graph=graph, gate="true") == told, "begun once"
            assert await until_over(found, run) == "done", await said(found, "status", run=run)
            assert "landed" in await said(found, "status", run=run)
            assert "landed" in await said(found, "why", run=run, node="made")
            assert "1 of task, tasks and graph" not in await said(found, "run", request_id="2")
            for wrong, why in ((("run", {"request_id": "3", "task": "x", "repo": "/etc"}), "this server is for"),
                               (("status", {"run": "no-such"}), "there is no run no-such"),
                               (("control", {"run": run, "action": "explode"}), "action is stop"),
                               (("decide", {"run": run, "node": "made", "choice": "approve"}), "does not decide")):
                result = await found.call_tool(*wrong)
                assert result.is_error and why in result.content[0].text, result

    asyncio.run(play())


@pytest.mark.parametrize("era", ERAS)
def test_a_question_is_a_form_and_its_answer_names_the_client(place: Place, era: str) -> None:
    async def play() -> str:
        async with client(place, era, answer="Blue") as found:
            run = (await said(found, "run", request_id="q", graph=GRAPH, gate="true")).split()[1]
            assert await until_over(found, run) == "done", await said(found, "status", run=run)
            return run

    run = asyncio.run(play())
    assert (place.command("wait", run).returncode, place.status(run)) == (0, "done")
    assert "a test 1" in json.dumps(place.journal(run))


def test_who_shows_no_forms_is_told_the_command_and_wait_says_so_by_its_exit_code(place: Place) -> None:
    async def play() -> str:
        async with client(place, "legacy") as found:
            run = (await said(found, "run", request_id="q", graph=GRAPH, gate="true")).split()[1]
            while "waits for somebody" not in (told := await said(found, "wait", run=run)):
                pass
            assert "garrison answer ask" in told and run in told
            return run

    run = asyncio.run(play())  # the server is gone, the run is not
    done = place.command("wait", run)
    assert done.returncode == 3 and "Which colour?" in done.stderr
    assert place.command("wait", run, "--over", "--timeout", "0.5").returncode == 124
    assert place.command("answer", "ask", "Red", "--run", run).returncode == 0
    assert place.command("wait", run).returncode == 0
