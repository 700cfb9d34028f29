"""Agents whose program cannot work for now: the wait is shown, survives kills, costs nothing and ends by itself."""

from __future__ import annotations

import json
import time

from support import Node, Place, git, wait_for


def _endings(place: Place, node: str) -> list[dict[str, object]]:
    path = place.home / f"runs/r1/nodes/{node}/1/claude/endings.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _once(name: str, words: str) -> str:
    """Return a command that fails with these words, and the next time makes a file."""
    return f"if [ -f tried ]; then rm tried; echo made > made-{name}.txt; exit; fi; touch tried; echo 'I work'; {words}"


def test_an_agent_waits_for_its_api_a_limit_or_its_missing_program_and_spends_nothing(place: Place) -> None:
    over = _once("over", "echo 'API Error: 529 overloaded_error' >&2; exit 1")
    soon = _once("soon", "echo 'Rate limit reached. Please try again in 3s.'; exit 1")
    late = "echo 'Claude usage limit reached. Your limit will reset in 2 hours.'; exit 1"
    own = "echo 'the API answered 429 too many requests, so I fixed that'; echo 'error: no such file'; exit 1"
    tool = place.root / "bin" / "agent-tool"
    away = tool.with_name("away")
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n. {place.root}/lib.sh\necho by the tool > made.txt\n")
    (place.root / "lib.sh").write_text("true\n")
    tool.chmod(0o755)
    place.configure(f'[agents.tool]\nargv = ["agent-tool"]\nread = ["{place.root}"]\n')
    first = Node("first", command=f"until [ ! -e {tool} ]; do sleep 0.05; done; echo 1 > first.txt")
    graph = place.graph(Node("over", command=over), Node("soon", command=soon), Node("late", command=late),
                        Node("own", command=own), first,
                        Node("second", command="", after=("first",), attributes='agent=tool, prompt="Make it."'),
                        Node("shell", command="agent-tool", after=("first",)))
    child = place.launch(graph, "r1", "--max-rework", "0", "--max-agents", "7", gate="test -f calc.py",
                         PATH=f"{tool.parent}:{place.env['PATH']}")
    place.pid("orchestrator-first")
    tool.rename(away)
    gone = "agent-tool is no longer on the PATH; waiting until it is back"
    for name, waits in (("second", gone), ("shell", gone), ("late", "its session is waiting until ")):
        wait_for(f"{name} waits", lambda name=name, waits=waits: waits in place.command(
            "why", name, "--run", "r1").stdout)
    away.rename(tool)
    wait_for("the others have ended", lambda: "5 landed, 1 working, 1 failed" in place.command("status", "r1").stdout)
    assert [each["kind"] for name in ("over", "soon") for each in _endings(place, name)] == ["overloaded", "rate_limit"]
    assert not _endings(place, "own")  # its own words are about a limit, and its last ones are not
    place.kill_and_await("orchestrator-late")
    wait_for("it waits again", lambda: waits in place.command("status", "r1").stdout)
    (ending,) = _endings(place, "late")  # it has not run again
    assert 7000 < float(str(ending["resets_at"])) - time.time() <= 7200
    shown = place.command("status", "r1").stdout
    assert "rate limit: Claude usage limit reached. Your limit will reset in 2 hours." in shown, shown
    state = json.loads(place.command("status", "r1", "--json").stdout)
    assert '"attempt": 2' not in json.dumps(state), state
    place.command("stop", "r1")
    assert place.finish(child) != 0
    assert place.status() == "stopped", place.logs()
    for name, text in (("made-over", "made"), ("made-soon", "made"), ("made", "by the tool")):
        assert git(place.repo, "show", f"main:{name}.txt") == text
