"""The real SDK and the real CLI it bundles, against a scripted model where no network is.

garrison's Claude agent relies on what is asserted here: if a new version of the SDK behaves differently, these tests
fail first. No key is needed; a machine that cannot isolate skips them with the reason.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from garrison.testing import isolation
from support import DEADLINE

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples" / "scripted_model" / "try"


def missing() -> str | None:
    """Return why the CLI cannot run here; None if it can."""
    found = importlib.util.find_spec("claude_agent_sdk")
    if found is None or found.origin is None:
        return "claude-agent-sdk is not installed"
    if not (Path(found.origin).parent / "_bundled" / "claude").is_file():
        return "claude-agent-sdk bundles no CLI for this platform"
    if shutil.which("setpriv") is None:
        return "the program setpriv (util-linux) is missing"
    return isolation.refusal()


pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def run(scenario: str, folder: Path, *way: str) -> dict[str, Any]:
    """Play a scenario of claude_driver.py in isolation; return its findings."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "garrison.testing.isolation", *way, "--env", f"PYTHONPATH={TESTS}", "--folder",
         folder / "isolated", "--", sys.executable, TESTS / "claude_driver.py", scenario, folder],
        capture_output=True, text=True, check=False, timeout=DEADLINE,
        env={**os.environ, "ANTHROPIC_API_KEY": "never-sent"})
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    if told["isolation"] == "namespace":
        assert told["attempts"] == 0, "something tried to reach beyond loopback"
    assert not [path for path in folder.rglob("*") if path.is_file() and b"never-sent" in path.read_bytes()]
    return told


def of(messages: list[dict[str, Any]], kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the messages of a kind with these fields."""
    return [one for one in messages if one["kind"] == kind
            and all(one.get(name) == value for name, value in fields.items())]


def blocks(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [block for one in messages if isinstance(one.get("content"), list) for block in one["content"]
            if block["kind"] == kind]


def requests(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


@pytest.mark.slow  # tests/claude see the same of whole agents
def test_tools_really_run_and_a_session_is_resumed_with_its_transcript(tmp_path: Path) -> None:
    told = run("work", tmp_path)
    assert told["problems"] == []
    assert (told["log"], told["files"]) == ("Do the task\nBegin", ["calc.py", "made-by-bash.txt", "made-by-write.txt",
                                                                   "notes.txt"])
    assert (tmp_path / "tree/made-by-write.txt").read_text() == "written\n"

    first, last = told["first"], told["first"][-1]
    assert [block["name"] for block in blocks(first, "ToolUseBlock")] == ["Bash", "Write", "Bash"]
    assert blocks(first, "ThinkingBlock")[0]["thinking"] == "where am I?"
    results = blocks(first, "ToolResultBlock")
    assert [bool(result["is_error"]) for result in results] == [False] * 3
    assert results[2]["content"].strip() == "2"
    assert (last["kind"], last["subtype"], last["is_error"], last["result"]) == ("ResultMessage", "success", False,
                                                                                "done")
    assert (last["terminal_reason"], last["session_id"]) == ("completed", told["session"])
    check_usage(told["second"])

    sent = requests(tmp_path)
    assert [len(sent[number]["body"]["messages"]) for number in range(5)] == [1, 3, 5, 7, 9]
    assert "You are node alpha." in json.dumps(sent[0]["body"]["system"])
    assert str(tmp_path / "tree") in json.dumps(sent[1]["body"]["messages"][-1]), "pwd's answer is sent"
    assert sent[0]["headers"]["x-claude-code-session-id"] == told["session"]
    assert told["calls"] == [5, 6], "a resume costs one call"
    resumed = json.dumps(sent[5]["body"]["messages"])
    assert all(words in resumed for words in ("do the task", "where am I?", "made-by-bash.txt", "to 'more'",
                                              "after resume"))
    assert told["resumed"][-1]["session_id"] == told["session"]
    assert told["unknown"].startswith("ResultError error_during_execution: ['No conversation found with session ID")
    assert {path.partition("?")[0] for path in told["paths"]} <= {"/v1/messages", "/"}
    assert any("No conversation found" in line for line in told["stderr"])
    assert f"--session-id={told['session']}" in told["cli"]
    assert told["cli"][0].endswith("_bundled/claude"), "the wrapper has become the CLI: same pid"


def check_usage(messages: list[dict[str, Any]]) -> None:
    """Check that whole usage by message id comes from stream events: the assistant message has only the first word."""
    events = [one["event"] for one in of(messages, "StreamEvent")]
    began = next(event["message"]["id"] for event in events if event["type"] == "message_start")
    ended = next(event["usage"] for event in events if event["type"] == "message_delta")
    assert {ended[name] for name in ("input_tokens", "output_tokens", "cache_read_input_tokens",
                                     "cache_creation_input_tokens")} == {10, 20, 30, 40}
    assistant = of(messages, "AssistantMessage")[0]
    assert (assistant["message_id"], assistant["usage"]["output_tokens"]) == (began, 1)
    assert messages[-1]["usage"]["output_tokens"] == 20


@pytest.mark.slow
def test_a_limit_a_refused_log_in_and_silence(tmp_path: Path) -> None:
    told = run("faults", tmp_path)
    assert told["faults"] == ["status: 429", "", "status: 401", "status: 401", "hang: stream", ""]

    retries = [one["data"] for one in of(told["limited"], "SystemMessage", subtype="api_retry")]
    assert [(one["attempt"], one["error_status"], one["error"]) for one in retries] == [(1, 429, "rate_limit")]
    assert retries[0]["retry_delay_ms"] >= 1000
    assert told["at"][1] - told["at"][0] >= 1, "retry-after is honoured"
    assert told["limited"][-1]["is_error"] is False

    retries = [one["data"] for one in of(told["refused"], "SystemMessage", subtype="api_retry")]
    assert [(one["error_status"], one["error"]) for one in retries] == [(401, "authentication_failed")]
    last = told["refused"][-1]
    assert (last["subtype"], last["is_error"], last["api_error_status"], last["terminal_reason"]) == (
        "success", True, 401, "api_error")
    assert [one["error"] for one in of(told["refused"], "AssistantMessage")] == ["authentication_failed"]

    assert told["interrupted"] < 60, "the API would be waited for much longer"
    last = told["silent"][-1]
    assert (last["subtype"], last["is_error"], last["terminal_reason"]) == ("error_during_execution", True,
                                                                            "aborted_streaming")
    assert told["after"][-1]["result"] == "to still there?, in more than one piece"
    assert len(set(told["idle"])) == 1, "an idle client makes no request"


@pytest.mark.slow
@pytest.mark.skipif(isolation.landlock_refusal() is not None, reason=str(isolation.landlock_refusal()))
def test_the_fallback_without_namespaces_runs_the_cli_too(tmp_path: Path) -> None:
    told = run("greet", tmp_path, "--by", "landlock")
    assert (told["isolation"], told["said"][-1]["result"]) == ("landlock", "hello")


def test_the_example_of_the_documentation_works() -> None:
    done = subprocess.run([EXAMPLE, sys.executable], capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["The greeting is there.", "commit: Add a greeting"]
    assert " alpha.txt | 1 +" in lines
    assert lines[-1] == "calls of the model: 4", "one of them was overloaded"
