"""The start of the Claude CLI as its client sees it, with programs in its place that end or say nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

pytest.importorskip("claude_agent_sdk")

from garrison.agents.claude.client import ClaudeClient, ProcessError, build_options


@pytest.mark.parametrize(("script", "code"), [("echo broken >&2; exit 3", 3), ("exit 0", 0)])
def test_a_cli_that_ends_at_its_start_is_noticed_at_once(script: str, code: int, tmp_path: Path) -> None:
    cli = tmp_path / "cli"
    cli.write_text(f"#!/bin/sh\n{script}\n")
    cli.chmod(0o755)

    async def start() -> ProcessError:
        client = ClaudeClient(build_options(
            cwd=str(tmp_path), environment={"GARRISON_CLAUDE_CLI": str(cli)}, tools=[], functions=[], server="garrison",
            system_prompt="", model=None))
        try:
            with pytest.raises(ProcessError) as raised:
                await client.connect()
        finally:
            await client.close()
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()
        return raised.value

    began = time.monotonic()
    assert asyncio.run(start()).exit_code == code
    assert time.monotonic() - began < 10, "the SDK itself waits for a minute"
