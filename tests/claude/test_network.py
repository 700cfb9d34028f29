"""The real CLI through the run's proxy: its key stays outside, and the proxy counts the model's tokens."""

from __future__ import annotations

import json
import os

import pytest

from garrison.records import atomic, costs
from garrison.records.json_io import read_lines
from garrison.sandbox.probe import machine
from garrison.testing.turn import Usage, say, use
from support import git, wait_for

REPORT = "mcp__garrison__report_result"
KEY = "sk-ant-fake-outside"


@pytest.mark.parametrize("mode", [pytest.param("none", marks=pytest.mark.slow), "bubblewrap"])
def test_the_cli_works_with_a_key_that_it_never_has(scene, place, mode: str) -> None:
    if mode == "bubblewrap" and not machine().bubblewrap:
        pytest.skip(machine().refusal)
    place.use_mode(mode)
    place.env["ANTHROPIC_API_KEY"] = KEY
    config = place.home / "config.toml"
    rights = '[sandbox]\nnetwork = "allow"\nhosts = ["example.org"]\n'  # without a sandbox it is open by default
    config.write_text(config.read_text().replace("[sandbox]\n", rights)
                      + f'ANTHROPIC_BASE_URL = "{scene.server.url}"\n\n[sandbox.gate]\nnetwork = "open"\n')
    scene.players["a"] = lambda asked: (
        say(use("Bash", command='echo "$ANTHROPIC_API_KEY $ANTHROPIC_BASE_URL $HTTPS_PROXY" > keys'),
            usage=Usage(100, 20, 30, 40)),
        say(use(REPORT, status="success", summary="done", evidence=[]), usage=Usage(200, 10, 0, 0)),
        say("done", usage=Usage(300, 5, 1, 2)))[min(asked.step, 2)]
    child = scene.launch(scene.graph(a=""))
    assert place.finish(child) == 0, place.logs()
    key, url, proxy = git(place.repo, "show", "main:keys").split()
    assert KEY not in key
    assert key.startswith("sk-ant-api03-garrison-")
    assert url == f"{proxy}/anthropic"
    assert KEY not in json.dumps([record.headers for record in scene.server.requests])
    folder = scene.folder("a").parent
    lines = read_lines(folder / "network" / "usage.jsonl")
    assert {record.outcome for record in scene.server.messages} == {"sent"}
    usages = [(100, 20, 30, 40), (200, 10, 0, 0), (300, 5, 1, 2)][:len(scene.server.messages)]
    counted = [sum(line[name] for line in lines) for name in ("input", "output", "cache_read", "cache_write")]
    assert counted == [sum(counts) for counts in zip(*usages, strict=True)]
    assert all(line["reported"] for line in lines), "the session records them as well"
    by_session = costs.total(costs.read_usage(folder / "claude" / "usage.jsonl"))
    [row] = json.loads(place.command("cost", "r1", "--json").stdout)
    assert (row["calls"], row["output"]) == (by_session.calls, by_session.output), "counted once"
    assert os.environ["GARRISON_ISOLATION"]


def test_the_proxy_enforces_the_budget_for_calls_outside_the_session(scene, place) -> None:
    """The shell of an agent calls the model; its session does not know of it."""
    scene.configure("budget = 0.5")
    config = place.home / "config.toml"
    config.write_text(config.read_text() + '\n[sandbox.gate]\nnetwork = "open"\n')
    script = place.root / "spend.py"
    script.write_text("""
import os, urllib.error, urllib.request
for number in range(20):
    request = urllib.request.Request(
        os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages",
        b'{"model": "claude-opus-4", "max_tokens": 10, "messages": [], "system": "agent of node spender"}',
        {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "user-agent": "claude-cli/9.9"})
    try:
        urllib.request.urlopen(request, timeout=20).read()
    except urllib.error.HTTPError as error:
        print(number, error.code, error.read().decode())
        break
""")
    scene.players["spender"] = lambda _asked: say("more", usage=Usage(30_000, 0, 0, 0))
    scene.players["a"] = lambda asked: (
        say(use("Bash", command=f"python3 {script} > {place.root}/spent; echo x > f"), usage=Usage(10, 1, 0, 0)),
        say(use(REPORT, status="success", summary="done", evidence=[]), usage=Usage(10, 1, 0, 0)),
        say("done"))[min(asked.step, 2)]
    child = scene.launch(scene.graph(a=""))
    wait_for("a call is refused", lambda: (place.root / "spent").exists()
             and "402" in (place.root / "spent").read_text())
    number = int((place.root / "spent").read_text().split()[0])
    assert 2 <= number <= 5
    child.terminate()
    place.finish(child)


@pytest.mark.slow
def test_a_log_in_goes_through_the_proxy_as_the_cli_sends_it_by_itself(scene) -> None:
    """Once the proxy has put in the real token or key, a request has each header that the CLI sends by itself with the
    same log-in: so `login = "proxy"` is the default."""
    if not machine().bubblewrap:
        pytest.skip(machine().refusal)
    place, token, key, seen = scene.place, "sk-ant-oat01-real-token-outside", "sk-ant-api03-real-key-outside", []
    place.env = {name: value for name, value in place.env.items() if name != "ANTHROPIC_API_KEY"}
    scene.players["a"] = lambda asked: (
        say(use("Bash", command='(env; date +%N) > env')),
        say(use(REPORT, status="success", summary="done", evidence=[])), say("done"))[min(asked.step, 2)]
    config = place.home / "config.toml"
    original = config.read_text() + f'ANTHROPIC_BASE_URL = "{scene.server.url}"\n'
    file = atomic.make_directory(place.home / "claude") / ".credentials.json"
    log_in = {"accessToken": token, "refreshToken": "r", "expiresAt": 4e12, "subscriptionType": "max",
              "scopes": ["user:inference", "user:profile"]}
    for run, mode in (("r1", "bubblewrap"), ("r2", "none"), ("r3", "bubblewrap"), ("r4", "bubblewrap"), ("r5", "none")):
        file.unlink(missing_ok=True)
        if run in ("r1", "r2"):
            file.write_text(json.dumps({"claudeAiOauth": log_in}))
        elif run == "r3":
            place.env["CLAUDE_CODE_OAUTH_TOKEN"] = token
        else:  # a log-in to the Console; by itself the CLI has the key in its variable, in no file that it shares
            place.env.pop("CLAUDE_CODE_OAUTH_TOKEN", None)
            (file.parent / ".claude.json").write_text(json.dumps({"primaryApiKey": key}))
            if run == "r5":
                place.env["ANTHROPIC_API_KEY"] = key
        config.write_text(original)
        place.use_mode(mode)
        before = len(scene.server.messages)
        child = place.launch(scene.graph(a=""), run, gate="true")
        assert place.finish(child) == 0, place.logs()
        seen.append([{name.lower(): value for name, value in record.headers.items()}
                     for record in scene.server.messages[before:]])
        printed = git(place.repo, "show", "main:env")
        assert (token not in printed and key not in printed) or mode == "none"
        assert list(place.home.rglob(".credentials.json")) in ([], [file]) or mode == "none"
    # a compressed answer would not be counted by the proxy
    own = {"host", "content-length", "x-claude-code-session-id", "x-client-request-id", "connection", "accept-encoding"}
    filed, by_itself, given, of_console, by_key = (
        [{name: value for name, value in each.items() if name not in own} for each in sent[:3]] for sent in seen)
    for ours, other in (*zip(filed, by_itself, strict=True), *zip(given, by_itself, strict=True),
                        *zip(of_console, by_key, strict=True)):
        assert {name: (ours.get(name), other.get(name)) for name in ours.keys() | other.keys()
                if ours.get(name) != other.get(name)} == {}
    assert all("oauth" in each["anthropic-beta"] for each in filed)
    assert not any("oauth" in each["anthropic-beta"] for each in of_console)
