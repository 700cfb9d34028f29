"""The start of the Claude CLI as its client sees it, with programs in its place that end or say nothing."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("claude_agent_sdk")

from garrison.agents.claude.client import ClaudeClient, ClaudeSilence, ProcessError, build_options
from garrison.agents.conversation.start_watch import StartWatch
from support import write_program


def start(script: str, folder: Path, watch: StartWatch | None = None) -> Exception:
    """Return how a CLI that is this script fails to start."""
    cli = folder / "cli"
    write_program(cli, f"#!/bin/sh\n{script}\n")

    async def connect() -> Exception:
        client = ClaudeClient(build_options(
            cwd=str(folder), environment={"GARRISON_CLAUDE_CLI": str(cli)}, tools=[], functions=[], server="garrison",
            system_prompt="", model=None))
        try:
            with pytest.raises((ProcessError, ClaudeSilence)) as raised:
                await client.connect(watch)
        finally:
            await client.close()
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()
        return raised.value

    began = time.monotonic()
    error = asyncio.run(connect())
    assert time.monotonic() - began < 30, "the SDK itself waits for a minute"
    return error


@pytest.mark.parametrize(("script", "code"), [("echo broken >&2; exit 3", 3), ("exit 0", 0)])
def test_a_cli_that_ends_at_its_start_is_noticed_at_once(script: str, code: int, tmp_path: Path) -> None:
    error = start(script, tmp_path)
    assert isinstance(error, ProcessError)
    assert error.exit_code == code


def test_a_cli_that_hangs_at_its_start_is_shown_within_seconds_and_then_given_up(tmp_path: Path) -> None:
    shown: list[str] = []
    error = start("exec sleep 300", tmp_path, StartWatch(shown.append, hung=2.5))
    assert isinstance(error, ClaudeSilence)
    assert str(error).startswith("since its start the CLI has neither answered nor done anything for ")
    assert shown[0].endswith("s ago, has not answered and does nothing")
    assert int(shown[0].split()[3]) < 6
    assert shown[-1] == "", "the notice is withdrawn"


@pytest.mark.parametrize("program", [
    "while True: pass", "import socket, time; held = socket.create_connection(('127.0.0.1', {port})); time.sleep(60)",
    "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
def test_a_start_that_works_or_waits_for_others_does_not_count_as_a_hang(program: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = subprocess.Popen([sys.executable, "-c", program.format(port=server.getsockname()[1])])
        try:
            watch = StartWatch(hung=1.0)
            for _ in range(4):  # one look more than a hang takes
                time.sleep(0.2)
                assert not watch.look()
        finally:
            child.kill()
            child.wait()
