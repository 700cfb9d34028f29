"""Runs whose agents reach the network through the run's proxy: keys, counts, budgets, refused hosts, deaths."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from garrison.records.json_io import read_lines
from garrison.sandbox.probe import machine
from proxy_support import Web
from support import Node, Place, processes, wait_for

CALL = """
import json, os, sys, urllib.error, urllib.request
def call():
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", b'{"model": "gpt-x"}',
                                     {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    return json.load(urllib.request.urlopen(request, timeout=60))
"""


def answer(_seen: Any) -> tuple[int, dict[str, str], list[bytes]]:
    body = json.dumps({"id": f"c{os.urandom(4).hex()}", "model": "gpt-x",
                       "usage": {"prompt_tokens": 1000, "completion_tokens": 10}}).encode()
    return 200, {"content-length": str(len(body)), "content-type": "application/json"}, [body]


@pytest.fixture
def api() -> Iterator[Web]:
    with Web(answer) as web:
        yield web


def prepare(place: Place, api: Web, program: str, profile: str = "") -> dict[str, str]:
    """Configure an agent that runs a Python program; return the user's variables."""
    script = place.root / "agent.py"
    script.write_text(CALL + program)
    place.configure(f"""
network = "allow"
hosts = ["example.org"]
read = ["{script}"]

[agents.caller]
argv = ["python3", "{script}"]
env = ["OPENAI_API_KEY", "OPENAI_BASE_URL"]
{profile}
""")
    return {"OPENAI_API_KEY": "sk-real-key", "OPENAI_BASE_URL": api.url}


def proxies(place: Place) -> list[int]:
    """Return the proxies of the run, without that of its preflight."""
    folder = f" {place.home}/runs/r1 "
    return [process.pid for process in processes("garrison.sandbox.proxy.process") if folder in f"{process.argv} "]


@pytest.mark.parametrize("mode", [pytest.param("none", marks=pytest.mark.slow), "bubblewrap"])
def test_a_run_calls_an_api_with_a_key_that_its_agents_never_have(place: Place, api: Web, mode: str) -> None:
    if mode == "bubblewrap" and not machine().bubblewrap:
        pytest.skip(machine().refusal)
    env = prepare(place, api, """
from pathlib import Path
assert "sk-real-key" not in str(os.environ)
Path("f").write_text(call()["model"] + call()["model"])
try:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"https": os.environ["https_proxy"]}))
    opener.open("https://evil.example/", timeout=20)
except OSError as error:
    print("refused:", error)
""")
    place.use_mode(mode)
    graph = place.graph(*(Node(name, command="", attributes="agent=caller") for name in "ab"))
    gate = 'python3 -c "import os; assert os.environ[\'http_proxy\'].startswith(\'http://127.0.0.1:\')"'
    place.run(graph, gate=gate, **env)
    assert {seen.headers["authorization"] for seen in api.seen} == {"Bearer sk-real-key"}
    assert len(api.seen) == 4
    rows = json.loads(place.command("cost", "r1", "--json").stdout)
    assert [(row["of"], row["calls"], row["input"], row["output"]) for row in rows] == [
        ("r1/a", 2, 2000, 20), ("r1/b", 2, 2000, 20)]
    wait_for("the proxy has ended", lambda: not proxies(place))
    assert "evil.example:443" in place.command("status", "r1").stdout
    assert "evil.example:443" in place.command("why", "a").stdout
    for path in place.home.rglob("*"):
        assert not path.is_file() or b"sk-real-key" not in path.read_bytes(), path


@pytest.mark.slow
def test_agents_of_one_account_wait_while_one_of_them_tries_an_api_that_is_down(place: Place) -> None:
    """If that one is killed, another tries."""
    is_out, is_hung, go_on = threading.Event(), threading.Event(), threading.Event()
    times: list[float] = []

    def play(seen: Any) -> tuple[int, dict[str, str], list[bytes]]:
        times.append(time.monotonic())
        if is_out.is_set():
            return 503, {"retry-after": "2", "content-length": "4"}, [b"down"]
        if not is_hung.is_set():
            is_hung.set()
            go_on.wait(60)
        return answer(seen)

    is_out.set()
    with Web(play) as api:
        env = prepare(place, api, """
try:
    call()
except urllib.error.HTTPError:
    sys.exit("I stop here")
open(os.path.basename(os.getcwd()) + ".txt", "w").write("made")
""")
        names = ("a", "b", "c", "d")
        graph = place.graph(*(Node(name, command="", attributes="agent=caller") for name in names))
        child = place.launch(graph, "r1", "--max-agents", "4", "--max-rework", "0", **env)
        clock = r"\d\d:\d\d"
        told = rf"API answers 503 since {clock} UTC: down; next try {clock}:\d\d UTC; 4 nodes wait"
        wait_for("four wait", lambda: re.search(told, " ".join(place.command("status", "r1").stdout.split())))
        before = len(times)
        wait_for("three trials", lambda: len(times) >= before + 3)
        trials = times[before:before + 3]
        assert min(later - earlier for earlier, later in pairwise(trials)) > 1.5, trials
        assert before <= 8, "each may call it once, and one may try it since"
        is_out.clear()
        wait_for("a trial", is_hung.is_set)
        [outage] = (place.home / "run/outages").glob("*.json")
        tries = json.loads(outage.read_text())["tries"]
        at, silent = len(times), {name for name in names if name != tries}
        assert "for the trial by " + tries in place.command("why", min(silent), "--run", "r1").stdout
        place.kill(f"orchestrator-{tries}")
        wait_for("another one tries", lambda: len(times) > at)
        go_on.set()
        assert place.finish(child) == 0, place.logs()
        assert not list((place.home / "run/outages").glob("*.json"))
        endings = [read_lines(place.home / f"runs/r1/nodes/{name}/1/claude/endings.jsonl") for name in names]
        assert {(line["kind"], line["status"]) for lines in endings for line in lines} == {("server", 503)}


def test_a_killed_proxy_is_replaced_while_its_agent_works(place: Place, api: Web) -> None:
    env = prepare(place, api, f"""
import time
from pathlib import Path
call()
Path("{place.root}/first").touch()
while not Path("{place.root}/go").exists():
    time.sleep(0.02)
Path("f").write_text(call()["model"])
""")
    child = place.launch(place.graph(Node("a", command="", attributes="agent=caller")), "r1", **env)
    wait_for("the first call", (place.root / "first").exists)
    [pid] = proxies(place)
    os.kill(pid, signal.SIGKILL)
    wait_for("another proxy", lambda: [other for other in proxies(place) if other != pid])
    (place.root / "go").touch()
    assert place.finish(child) == 0, place.logs()
    assert place.deaths() == {}
    wait_for("the proxy has ended", lambda: not proxies(place))


def test_a_budget_of_a_command_agent_ends_its_calls(place: Place, api: Web) -> None:
    env = prepare(place, api, """
for number in range(10):
    try:
        call()
    except urllib.error.HTTPError as error:
        print(number, error.code, json.load(error)["error"]["message"])
        sys.exit(9)
""", "budget = 0.15")
    graph = place.graph(Node("a", command="", attributes="agent=caller"))
    place.run(graph, "r1", "--max-rework", "0", code=1, **env)
    output = (place.home / "runs/r1/nodes/a/1/output.log").read_text()
    assert "3 402 garrison: budget used up: $0.05 of the $0.15 for this node are spent, and the next call " in output
    assert len(api.seen) == 3, "a call that may cost more than what is left is not made"


def test_a_gate_keeps_its_network_when_the_merge_processor_is_killed(place: Place, api: Web) -> None:
    env = prepare(place, api, "open('f', 'w').write('x')\n", "budget_run = 0.16")
    script = place.root / "gate.py"
    script.write_text(f"""{CALL}
import os, time
if os.path.exists("f"):
    open("{place.root}/at-gate", "w").close()
    while not os.path.exists("{place.root}/go"):
        time.sleep(0.02)
assert call()["model"] == "gpt-x"
""")
    child = place.launch(place.graph(Node("a", command="", attributes="agent=caller"), name="crew"), "r1",
                         gate=f"python3 {script}", **env)
    wait_for("the gate works", (place.root / "at-gate").exists)
    place.kill_and_await("processor-crew")
    (place.root / "go").touch()
    assert place.finish(child) == 0, place.logs()
    assert {seen.headers["authorization"] for seen in api.seen} == {"Bearer sk-real-key"}
    rows = json.loads(place.command("cost", "r1", "--json").stdout)
    assert sum(row["calls"] for row in rows) == len(api.seen) > 1, "a gate's calls count against the budget of the run"
    assert all(json.loads(seen.body)["max_completion_tokens"] < 2000 for seen in api.seen), "and are made to fit it"
    wait_for("the proxy has ended", lambda: not proxies(place))
    assert list((place.home / "usage").glob("gates/r1/*"))
    assert place.command("clean", "--run", "r1", "--yes").returncode == 0
    assert not (place.home / "usage/gates/r1").exists()
