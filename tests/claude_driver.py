"""Runs the real SDK and CLI against a scripted model: the program that test_claude_cli.py starts in isolation.

`claude_driver.py SCENARIO FOLDER` writes what happened to FOLDER/told.json; the tests judge it. It runs in a network
namespace of its own, so nothing in here can reach a real service; `attempts` counts every try.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk

from garrison.testing import isolation
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import Fault, Turn, Usage, say, thinking, use
from support import git, make_repository, write_program

WRAPPER = '#!/bin/sh\nexec setpriv --pdeathsig TERM "$CLAUDE_CLI" "$@"\n'


class Stage:
    """Repository, wrapper and scripted model, with the client's options."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self.folder, self.server, self.tree, self.stderr = folder, server, folder / "tree", list[str]()
        make_repository(self.tree)
        self.wrapper = folder / "wrapper"
        write_program(self.wrapper, WRAPPER)
        os.environ["ANTHROPIC_BASE_URL"] = server.url
        os.environ["CLAUDE_CLI"] = str(Path(sdk.__file__).parent / "_bundled" / "claude")

    def options(self, **more: Any) -> sdk.ClaudeAgentOptions:
        given: dict[str, Any] = {
            "cwd": self.tree, "setting_sources": [], "strict_mcp_config": True, "permission_mode": "dontAsk",
            "tools": ["Bash", "Write"], "allowed_tools": ["Bash", "Write"], "cli_path": self.wrapper,
            "max_buffer_size": 32 << 20, "include_partial_messages": True, "model": "claude-sonnet-4-5",
            "system_prompt": "You are node alpha.", "stderr": self.stderr.append}
        return sdk.ClaudeAgentOptions(**given | more)


async def turn(client: sdk.ClaudeSDKClient, prompt: str) -> list[dict[str, Any]]:
    """Send one prompt; return every message as a mapping with its `kind`."""
    await client.query(prompt)
    return [plain(message) async for message in client.receive_response()]


def plain(value: Any) -> Any:
    """Return a message as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {name: plain(item) for name, item in vars(value).items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


async def work(folder: Path) -> dict[str, Any]:
    """Run a task with Bash and Write, a second prompt, a resume by id, and a resume of an unknown session."""
    tree = folder / "tree"

    def script(asked: Request) -> Turn:
        if asked.prompt != "do the task":
            return say(f"to {asked.prompt!r}", usage=Usage(10, 20, 30, 40))
        return (say(thinking("where am I?"), "I look.", use("Bash", command="pwd; echo out > made-by-bash.txt")),
                say(use("Write", file_path=str(tree / "made-by-write.txt"), content="written\n")),
                say(use("Bash", command="git add -A && git commit -qm 'Do the task' && git log --oneline | wc -l")),
                say("done"))[asked.step]

    with ModelServer(script, log=folder / "requests.jsonl") as server:
        stage, session = Stage(folder, server), str(uuid.uuid4())
        async with sdk.ClaudeSDKClient(stage.options(session_id=session)) as client:
            pid = ((await client.get_server_info()) or {})["pid"]
            told: dict[str, Any] = {"session": session, "cli": Path(f"/proc/{pid}/cmdline").read_text().split("\0"),
                                    "first": await turn(client, "do the task"), "second": await turn(client, "more")}
        calls = len(server.messages)
        async with sdk.ClaudeSDKClient(stage.options(resume=session)) as client:
            told["resumed"] = await turn(client, "after resume")
        told |= {"calls": [calls, len(server.messages)], "unknown": await unknown(stage),
                 "log": git(tree, "log", "--format=%s"), "files": git(tree, "ls-files").split(),
                 "problems": [record.problem for record in server.requests if record.problem]}
        return told | {"paths": sorted({record.path for record in server.requests}), "stderr": stage.stderr}


async def greet(folder: Path) -> dict[str, Any]:
    """Run one turn."""
    with ModelServer(lambda asked: "hello") as server:
        async with sdk.ClaudeSDKClient(Stage(folder, server).options()) as client:
            return {"said": await turn(client, "hello?")}


async def unknown(stage: Stage) -> str:
    """Return what is raised for an unknown session."""
    client = sdk.ClaudeSDKClient(stage.options(resume=str(uuid.uuid4())))
    try:
        await client.connect()
        await turn(client, "hello?")
    except sdk.ResultError as error:
        return f"ResultError {error.subtype}: {error.errors}"
    finally:
        await client.disconnect()
    return "nothing"


async def faults(folder: Path) -> dict[str, Any]:
    """Run a rate limit, a refused log-in and an interrupted silence in mid-stream, all in one session."""
    def script(asked: Request) -> Turn:
        fault = {"limited": Fault("status", 429, retry_after=1), "refused": Fault("status", 401, times=9),
                 "silent": Fault("hang", "stream")}.get(asked.prompt)
        return say(f"to {asked.prompt}, in more than one piece", faults=(fault,) if fault else ())

    with ModelServer(script) as server:
        async with sdk.ClaudeSDKClient(Stage(folder, server).options()) as client:
            told: dict[str, Any] = {name: await turn(client, name) for name in ("limited", "refused")}
            calls = len(server.messages)
            interrupted = asyncio.create_task(interrupt(client, server, calls + 1))
            told["silent"] = await turn(client, "silent")
            told |= {"interrupted": await interrupted, "after": await turn(client, "still there?")}
            told["idle"] = [len(server.requests), await asyncio.sleep(1, len(server.requests))]
        return told | {"at": [record.at for record in server.messages],
                       "faults": [record.fault for record in server.messages],
                       "idle": told["idle"] + [len(server.requests)]}


async def interrupt(client: sdk.ClaudeSDKClient, server: ModelServer, calls: int) -> float:
    """Interrupt when the model hangs; return the seconds until it took effect."""
    await asyncio.to_thread(server.wait_for, calls)
    await asyncio.sleep(0.3)  # the answer's first half is on its way
    began = time.monotonic()
    await client.interrupt()
    return time.monotonic() - began


def main() -> None:
    """Run the scenario that the command line names."""
    scenario, folder = {"work": work, "faults": faults, "greet": greet}[sys.argv[1]], Path(sys.argv[2])
    told = asyncio.run(scenario(folder))
    isolated = os.environ["GARRISON_ISOLATION"]
    told |= {"isolation": isolated, "attempts": isolation.attempts() if isolated == "namespace" else None}
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
