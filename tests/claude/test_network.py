"""The real CLI through the run's proxy: its key stays outside, and what the proxy counts is what the model says."""

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
def test_the_cli_works_with_a_key_that_it_never_has(scene, mode: str) -> None:
    if mode == "bubblewrap" and not machine().bubblewrap:
        pytest.skip(machine().refusal)
    place = scene.place
    place.use_mode(mode)
    place.env["ANTHROPIC_API_KEY"] = KEY
    config = place.home / "config.toml"
    # a variable that the profile sets is the network's, too
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
    told = {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0}
    for record in scene.server.messages:
        assert record.outcome == "sent"
    usages = [Usage(100, 20, 30, 40), Usage(200, 10, 0, 0), Usage(300, 5, 1, 2)][:len(scene.server.messages)]
    for usage in usages:
        for name, count in zip(told, (usage.input, usage.output, usage.cache_read, usage.cache_write), strict=True):
            told[name] += count
    assert {name: sum(line[name] for line in lines) for name in told} == told
    assert all(line["reported"] for line in lines), "the session records them too"
    by_session = costs.total(costs.read_usage(folder / "claude" / "usage.jsonl"))
    [row] = json.loads(place.command("cost", "r1", "--json").stdout)
    assert (row["calls"], row["output"]) == (by_session.calls, by_session.output), "counted once"
    assert os.environ["GARRISON_ISOLATION"]


def test_a_budget_holds_at_the_proxy_too(scene) -> None:
    """The shell of an agent calls the model past its session, which would not know."""
    place = scene.place
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
    wait_for("the budget is told", (place.root / "spent").exists)
    wait_for("the budget is told", lambda: "402" in (place.root / "spent").read_text())
    number = int((place.root / "spent").read_text().split()[0])
    assert 2 <= number <= 5
    child.terminate()
    place.finish(child)


@pytest.mark.slow
def test_a_token_of_the_cli_s_own_log_in_goes_through_the_proxy_as_it_would_by_itself(scene) -> None:
    """What the CLI sends with a token that is worth nothing has, once the proxy has put the real one in, each header
    that the CLI sends with the real one."""
    if not machine().bubblewrap:
        pytest.skip(machine().refusal)
    place, token, seen = scene.place, "sk-ant-oat01-real-token-outside", []
    place.env = {name: value for name, value in place.env.items() if name != "ANTHROPIC_API_KEY"}
    place.env["CLAUDE_CODE_OAUTH_TOKEN"] = token
    scene.players["a"] = lambda asked: (
        say(use("Bash", command='(env; date +%N) > env')),
        say(use(REPORT, status="success", summary="done", evidence=[])), say("done"))[min(asked.step, 2)]
    config = place.home / "config.toml"
    scene.configure('login = "proxy"')
    begun = config.read_text() + f'ANTHROPIC_BASE_URL = "{scene.server.url}"\n'
    for run, mode in (("r1", "bubblewrap"), ("r2", "none"), ("r3", "bubblewrap")):
        if run == "r3":
            del place.env["CLAUDE_CODE_OAUTH_TOKEN"]
            log_in = atomic.make_directory(place.home / "claude") / ".credentials.json"
            log_in.write_text(json.dumps({"claudeAiOauth": {"accessToken": token, "expiresAt": 4e12}}))
        config.write_text(begun)
        place.use_mode(mode)
        before = len(scene.server.messages)
        child = place.launch(scene.graph(a=""), run, gate="true")
        assert place.finish(child) == 0, place.logs()
        seen.append([{name.lower(): value for name, value in record.headers.items()}
                     for record in scene.server.messages[before:]])
        assert token not in git(place.repo, "show", "main:env") or run == "r2"
    # a compressed answer would not be counted by the proxy
    own = {"host", "content-length", "x-claude-code-session-id", "x-client-request-id", "connection", "accept-encoding"}
    assert list(place.home.rglob(".credentials.json")) == [log_in]
    proxied, plain, logged_in = ([{name: value for name, value in each.items() if name not in own} for each in sent[:3]]
                      for sent in seen)
    for own, other in (*zip(proxied, plain, strict=True), *zip(logged_in, plain, strict=True)):
        assert {name: (own.get(name), other.get(name)) for name in own.keys() | other.keys()
                if own.get(name) != other.get(name)} == {}
    assert all("oauth" in each["anthropic-beta"] and "x-api-key" not in each for each in proxied)
