"""`garrison mcp` with the official client, in both eras of the protocol, over standard input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from mcp.client import Client
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    ElicitRequestFormParams,
    ElicitResult,
    EmptyResult,
    Implementation,
    Request,
    RequestParams,
    Result,
    TextContent,
)
from pydantic import Field

from garrison.records.names import Key, format_marker
from support import PROGRAM, Node, Place

ERAS = ("legacy", "2026-07-28")
GRAPH = """digraph asked { flow=dag; goal="g"; start [shape=Mdiamond]; exit [shape=Msquare];
  ask [shape=hexagon, label="Which colour?"]; red [shape=box, command="echo red > c.txt"];
  blue [shape=box, command="echo blue > c.txt"]; start -> ask; ask -> red [label="Red"]; ask -> blue [label="Blue"];
  red -> exit; blue -> exit; }"""


@asynccontextmanager
async def client(place: Place, era: str, *words: str, answer: str = "",
                 extensions: tuple[ClientExtension, ...] = (), **env: str) -> AsyncIterator[Any]:
    """Yield a client of a server for the place's repository; `answer` is its user's answer to every form."""
    async def elicit(_context: object, params: object) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        return ElicitResult(action="accept", content={"answer": answer})

    argv = [*PROGRAM, "mcp", f"--repo={place.repo}", *words]
    server = StdioServerParameters(command=argv[0], args=argv[1:], env={**place.env, **env})
    async with Client(stdio_client(server), mode=era, elicitation_callback=elicit if answer else None,
                      extensions=extensions, client_info=Implementation(name="a test", version="1")) as found:
        yield found


class Created(Result):
    """What a server answers instead of a call's result."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class Detailed(Result):
    task_id: str
    status: str
    created_at: str
    ttl_ms: int | None
    poll_interval_ms: int
    status_message: str = ""
    input_requests: dict[str, Any] = Field(default_factory=dict)
    result: dict[str, Any] = Field(default_factory=dict)


class AboutTask(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(Request[AboutTask, str]):
    method: str
    params: AboutTask


class KnowsTasks(ClientExtension):
    """A client's side of the extension; it polls by itself."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> list[ResultClaim[Any]]:
        async def resolve(created: Created, _context: object) -> CallToolResult:
            return CallToolResult(content=[TextContent(text=created.task_id)])

        return [ResultClaim(result_type="task", model=Created, resolve=resolve)]


async def ask(found: Any, method: str, task: str, kind: Any = EmptyResult, **more: Any) -> Any:
    params = AboutTask(task_id=task, **more)
    return await found.session.send_request(TaskRequest(method=method, params=params), kind)


async def until_status(found: Any, task: str, *statuses: str) -> Detailed:
    while (got := await ask(found, "tasks/get", task, Detailed)).status not in statuses:
        await asyncio.sleep(0.2)
    return got


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


@pytest.mark.parametrize("era", [pytest.param(ERAS[0], marks=pytest.mark.slow), ERAS[1]])
def test_a_run_from_its_start_to_landed(place: Place, era: str) -> None:
    async def play() -> None:
        async with client(place, era) as found:
            tools = {tool.name: tool for tool in (await found.list_tools()).tools}
            assert set(tools) == {"run", "plan", "status", "wait", "why", "show", "tell", "answer", "decide", "control"}
            for tool in tools.values():
                hints = tool.annotations
                assert None not in (hints.read_only_hint, hints.destructive_hint, hints.open_world_hint)
            graph = place.graph(Node("made", command="date > made.txt")).read_text()
            told = await said(found, "run", request_id="1", graph=graph, gate="true")
            run = told.split()[1]
            assert await said(found, "run", request_id="1", graph=graph, gate="true") == told, "started once"
            assert await until_over(found, run) == "done", await said(found, "status", run=run)
            assert "landed" in await said(found, "status", run=run)
            assert "landed" in await said(found, "why", run=run, node="made")
            assert "1 of task, tasks and graph" not in await said(found, "run", request_id="2")
            for wrong, why in ((("run", {"request_id": "3", "task": "x", "repo": "/etc"}), "this server serves"),
                               (("status", {"run": "no-such"}), "there is no run no-such"),
                               (("control", {"run": run, "action": "explode"}), "action should be stop"),
                               (("decide", {"run": run, "node": "made", "choice": "approve"}), "may not decide")):
                result = await found.call_tool(*wrong)
                assert result.is_error and why in result.content[0].text, result

    asyncio.run(play())


async def start_without_forms(place: Place) -> str:
    async with client(place, ERAS[0]) as found:
        run = (await said(found, "run", request_id="q", graph=GRAPH, gate="true")).split()[1]
        while "waits for the user" not in (told := await said(found, "wait", run=run)):
            pass
        assert "garrison answer ask" in told and run in told
        known = (await found.call_tool("status", {"run": run})).structured_content["since"]
        with pytest.raises(TimeoutError):  # nothing new has happened since
            await asyncio.wait_for(found.call_tool("wait", {"run": run, "since": known}), 1)
        return run


@pytest.mark.parametrize("era", ERAS)
def test_a_question_is_a_form_and_its_answer_names_the_client(place: Place, era: str) -> None:
    """In the older era the run is started by a client without forms: it gets the command, and so does `wait`."""
    async def play(run: str) -> str:
        async with client(place, era, answer="Blue") as found:
            run = run or (await said(found, "run", request_id="q", graph=GRAPH, gate="true")).split()[1]
            assert await until_over(found, run) == "done", await said(found, "status", run=run)
            late = await found.call_tool("answer", {"run": run, "node": "ask", "text": "Red"})
            assert late.is_error, "the question is closed"
        marker = format_marker(str(place.home), Key("runner", "blue", run), 1)
        async with client(place, era, GARRISON_LIFE=marker) as found:  # as a node's agent would start it
            assert "cannot start another run" in await said(found, "run", request_id="i", graph=GRAPH, gate="true")
        return run

    started = ""
    if era == ERAS[0]:
        started = asyncio.run(start_without_forms(place))  # the server is gone, the run is not
        done = place.command("wait", started)
        assert done.returncode == 3 and "Which colour?" in done.stderr
        assert place.command("wait", started, "--over", "--timeout", "0.5").returncode == 124
    run = asyncio.run(play(started))
    assert (place.command("wait", run).returncode, place.status(run)) == (0, "done")
    assert "a test 1" in json.dumps(place.journal(run))


@pytest.mark.traced
def test_a_run_is_a_task_for_a_client_that_knows_tasks_also_over_a_restart(place: Place) -> None:
    """`tasks/update` answers a question, `tasks/cancel` stops, and a resumed run is another task. A task that fails or
    starts nothing is completed with an error."""
    failing = place.graph(Node("broken", command="exit 3")).read_text()

    async def play() -> None:
        async with client(place, ERAS[1], answer="never asked", extensions=(KnowsTasks(),)) as found:
            task = await said(found, "run", request_id="t", graph=GRAPH, gate="true")
            assert await said(found, "run", request_id="t", graph=GRAPH, gate="true") == task, "one task"
            assert task.endswith(".1")
            in_vain = [await said(found, "run", request_id=name, graph=graph, gate="true")
                       for name, graph in (("f", failing), ("g", "digraph nothing {"))]
            await ask(found, "tasks/update", task, input_responses={"ask/0/ask#1": accept("Blue")})  # not asked yet
            asked = await until_status(found, task, "input_required")
            [(key, request)] = asked.input_requests.items()
            assert key == "ask/0/ask#1", "node, attempt and question"
            assert request["params"]["requestedSchema"]["properties"]["answer"]["enum"] == ["Red", "Blue"]
        async with client(place, ERAS[1], answer="never asked", extensions=(KnowsTasks(),)) as found:  # another server
            with pytest.raises(MCPError, match="Green"):
                await ask(found, "tasks/update", task, input_responses={key: accept("Green")})
            await ask(found, "tasks/update", task, input_responses={key: {"action": "decline"},
                                                                    "no/1/such": accept("a")})
            assert (await until_status(found, task, "input_required")).input_requests.keys() == {key}
            await ask(found, "tasks/cancel", task)
            assert (await until_status(found, task, "cancelled", "completed")).status == "cancelled"
            await ask(found, "tasks/cancel", task)  # again: it is over
            run = task.removesuffix(".1")
            second = await said(found, "control", run=run, action="resume")
            assert second == f"{run}.2"
            [key] = (await until_status(found, second, "input_required")).input_requests
            for word in ("Blue", "Red"):  # the second answer comes too late, and changes nothing
                await ask(found, "tasks/update", second, input_responses={key: accept(word)})
            done = await until_status(found, second, "completed")
            assert not done.result["isError"], done
            assert f"run {run}: done" in done.result["content"][0]["text"]
            assert (await ask(found, "tasks/get", task, Detailed)).status == "cancelled", "an end stays"
            for each in in_vain:
                ended = await until_status(found, each, "completed", "failed", "cancelled")
                assert (ended.status, ended.result["isError"]) == ("completed", True)
            for wrong in ("no-such.1", "../../x", f"{run}.9"):
                with pytest.raises(MCPError, match="there is no task"):
                    await ask(found, "tasks/get", wrong, Detailed)
        async with client(place, ERAS[1]) as found:
            with pytest.raises(MCPError, match="extension"):
                await ask(found, "tasks/get", task, Detailed)
        async with client(place, ERAS[0], extensions=(KnowsTasks(),)) as found:  # the extension is not of this era
            assert "starts; follow it with wait" in await said(found, "run", request_id="f", graph=failing, gate="true")
            with pytest.raises(MCPError):
                await ask(found, "tasks/get", in_vain[0], Detailed)

    asyncio.run(play())
    assert place.command("status", "--json").returncode == 0


def accept(answer: str) -> dict[str, object]:
    return {"action": "accept", "content": {"answer": answer}}


def test_a_goal_is_planned_once_and_started_only_with_allow_decide(place: Place) -> None:
    proposal = json.dumps({"tasks": [{"name": name, "title": f"Write {name}", "prompt": f"write {name}", "needs": [],
                                      "files": [f"{name}.txt"]} for name in ("one", "two")], "check": "both are there"})
    shell = 'n=$(basename "$(git branch --show-current)"); test $n = check_goal || echo "$n" >"$n.txt"'
    place.configure(f"""
[launch]
agent = "double"
[agents.double]
argv = ["sh", "-c", {json.dumps(shell)}]
[agents.drafts]
argv = ["sh", "-c", {json.dumps(f"echo '{proposal}'")}]
""")

    async def play() -> str:
        async with client(place, ERAS[0]) as found:
            request = {"request_id": "p", "goal": "write both", "planner": "drafts"}
            told = await said(found, "plan", **request)
            made = json.loads(told)
            assert (made["stage"], [task["node"] for task in made["tasks"]][:2]) == ("proposed", ["one", "two"])
            assert await said(found, "plan", **request) == told, "planned once"
            for more, why in (({}, "give a goal"), ({"plan": made["plan"], "approve": True}, "--allow decide"),
                              ({"goal": "write it", "planner": "nobody"}, "nobody")):
                assert why in await said(found, "plan", request_id=f"wrong {why}", **more)
        async with client(place, ERAS[1], "--allow", "decide") as found:
            made = json.loads(await said(found, "plan", request_id="b", plan=made["plan"], approve=True, gate="true"))
            assert await until_over(found, made["run"]) == "done", await said(found, "status", run=made["run"])
            return str(made["run"])

    run = asyncio.run(play())
    assert "landed" in place.command("why", run).stdout
