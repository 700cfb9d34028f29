"""Trouble of agents: the table of classes, output of real programs, and the reset times of limits."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from garrison.agents import trouble
from garrison.agents.acp.connection import classify_error
from garrison.agents.command_profile import CommandProfile
from garrison.agents.conversation import policy
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.policy import ConnectionEnd, NextStepKind
from garrison.agents.conversation.trouble import was_hindered
from garrison.agents.presets import Preset, find_preset
from garrison.agents.program_stream import ClaudeStream, CodexStream, ProgramState
from garrison.agents.registry import find_profile
from garrison.agents.trouble import TRANSIENT, TroubleKind, classify, find_witness, judge, read_reset, read_told
from garrison.records.api_answers import ApiAnswer

NOW = datetime(2026, 11, 28, 13, 0, tzinfo=UTC)  # a Saturday


def test_every_class_has_a_row() -> None:
    assert set(trouble.TABLE) == set(TroubleKind)


# Each as its program prints it: Claude Code, Codex, Gemini CLI, OpenCode, aider (LiteLLM), Copilot, curl and the SDKs.
SAID = [
    ('API Error: 529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "overloaded"),
    ('API Error (529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}})', "overloaded"),
    ("API Error: Repeated 529 Overloaded errors", "overloaded"),
    ("529 overloaded", "overloaded"),
    ("Error: The model is overloaded. Please try again later.", "overloaded"),
    ('{"error":{"code":503,"message":"The model is overloaded. Please try again later.","status":"UNAVAILABLE"}}',
     "overloaded"),
    ("litellm.InternalServerError: AnthropicException - Overloaded. Handle with `litellm.InternalServerError`.\n"
     "overloaded_error", "overloaded"),
    ("Selected model is at capacity. Please try a different model.", "overloaded"),
    ("ERROR: Our servers are currently overloaded. Please try again later.", "overloaded"),
    ("Claude AI usage limit reached|1795881600", "rate_limit"),
    ("Claude usage limit reached. Your limit will reset at 3pm (Europe/Berlin).", "rate_limit"),
    ("5-hour limit reached ∙ resets 3am", "rate_limit"),
    ("You've hit your session limit · resets 5:40pm (Europe/Berlin)\n/login to switch to an API account.",
     "rate_limit"),
    ("You've hit your weekly limit · resets Dec 3, 4pm (UTC)", "rate_limit"),
    ("You’ve hit your limit · resets 9pm (Europe/Berlin)", "rate_limit"),
    ("Opus weekly limit reached ∙ resets Oct 9 at 10am", "rate_limit"),
    ("ERROR: You've hit your usage limit. Upgrade to Pro (https://openai.com/chatgpt/pricing) or try again in 5 days 2 "
     "hours 3 minutes.", "rate_limit"),
    ("ERROR: You've hit your usage limit. To get more access now, ask your admin or try again at 3:28 PM.",
     "rate_limit"),
    ("ERROR: exceeded retry limit, last status: 429 Too Many Requests, request id: c4fc59ca-SJC", "rate_limit"),
    ("stream error: stream disconnected before completion: Rate limit is exceeded. Try again in 17 seconds.",
     "rate_limit"),
    ("stream disconnected before completion: Rate limit reached for gpt-5 in organization org-1 on tokens per min "
     "(TPM): Limit 30000, Used 24000, Requested 10000. Please try again in 8.4s.", "rate_limit"),
    ('✕ [API Error: {"error":{"message":"{\\n  \\"error\\": {\\n    \\"code\\": 429,\\n    \\"message\\": \\"Resource '
     'has been exhausted (e.g. check quota).\\"","code":429,"status":"Too Many Requests"}}]\n'
     "  Please wait and try again later. To increase your limits, request a quota increase through AI Studio, or\n"
     "  switch to another /auth method", "rate_limit"),
    ("[API Error: Resource has been exhausted (e.g. check quota).]", "rate_limit"),
    ("GaxiosError: Quota exceeded for quota metric 'Gemini 2.5 Pro Requests' and limit 'per day per user'\n"
     "    at Gaxios._request (/usr/lib/node_modules/x/gaxios.js:142:23)\n"
     "    at process.processTicksAndRejections (node:internal/process/task_queues:95:5) {\n  config: {\n"
     "    url: 'x',\n  },\n  code: 429,\n}\n\nNode.js v22.11.0", "rate_limit"),
    ("litellm.RateLimitError: RateLimitError: OpenAIException - Rate limit reached for gpt-4 in organization org-1\n"
     "The API provider has rate limited you. Try again later or check your quotas.", "rate_limit"),
    ("openai.RateLimitError: Error code: 429 - {'error': {'message': 'Rate limit reached', 'code': None}}",
     "rate_limit"),
    ("anthropic.RateLimitError: Error code: 429 - {'type': 'error', 'error': {'type': 'rate_limit_error'}}",
     "rate_limit"),
    ("Too Many Requests: Sorry, you've exhausted this model's rate limit. Please try a different model.", "rate_limit"),
    ("429 Sorry, you've exhausted this model's rate limit.", "rate_limit"),
    ("HTTP/1.1 429 Too Many Requests", "rate_limit"), ("curl: (22) The requested URL returned error: 429",
     "rate_limit"),
    ("rate limited, giving up\nexit status 1", "rate_limit"),
    ("Error: 429 rate limit exceeded\nnpm ERR! code ELIFECYCLE\nnpm ERR! command failed", "rate_limit"),
    ("Error code: 429 - {'error': {'message': 'You exceeded your current quota, please check your plan and billing "
     "details.', 'code': 'insufficient_quota'}}", "quota"),
    ("You exceeded your current quota, please check your plan and billing details.\n* Quota exceeded for metric: x\n"
     "Please retry in 35.1s.", "rate_limit"),
    ('API Error: 400 {"type":"error","error":{"type":"invalid_request_error","message":"You have reached your '
     'specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC."}}', "quota"),
    ("API Error: 500 Internal server error", "server"),
    ("ERROR: unexpected status 503 Service Unavailable, url: https://api.openai.com/v1/responses", "server"),
    ("litellm.ServiceUnavailableError: 503 Service unavailable", "server"),
    ("API Error: Connection error.", "network"), ("openai.APIConnectionError: Connection error.", "network"),
    ("API Error: Unable to connect to API (ECONNREFUSED)", "network"),
    ("Error: getaddrinfo ENOTFOUND api.openai.com\n    at GetAddrInfoReqWrap.onlookup (node:dns:107:26) {\n"
     "  errno: -3008,\n  code: 'ENOTFOUND',\n}", "network"),
    ("curl: (7) Failed to connect to api.anthropic.com port 443: Connection refused", "network"),
    ("curl: (6) Could not resolve host: generativelanguage.googleapis.com", "network"),
    ("stream disconnected before completion: error sending request for url (https://api.openai.com/v1/responses)",
     "network"),
    ("Credit balance is too low", "billing"), ("Error: 401 Unauthorized", "authentication"),
    ("Invalid API key · Please run /login", "authentication"),
    # not the agent's trouble: tests, compilers, its own prose, and a later line
    ("FAILED tests/test_api.py::test_rate_limit - assert 429 == 200", None),
    ("not ok 3 - answers 429 Too Many Requests", None), ("AssertionError: expected status 429, got 200", None),
    ("E   AssertionError: assert 'overloaded' in 'ok'\n1 failed, 3 passed in 0.02s", None),
    ("main.cpp:3:7: error: call of overloaded 'f(int)' is ambiguous", None),
    ("error: no matching overloaded function found", None),
    ("I made the client retry after 429 Too Many Requests.\nTypeError: x is undefined", None),
    ("API Error: 529 overloaded\nretried, and it went on\nerror: the working tree has conflicts", None),
    ("the API said 429 rate limit exceeded\n" + "a line of work\n" * 5 + "stopped", None),
    ("I read the words `rate limit exceeded` and `overloaded_error` in the file limiter.py and did nothing", None),
    ("Error: connect ECONNREFUSED 127.0.0.1:5432", None), ("2 tests failed", None), ("the network test timed out",
     None),
    ("402 garrison: budget used up: node a", None), ("Server answered HTTP 500", None), ("", None),
]


@pytest.mark.parametrize(("said", "kind"), SAID, ids=lambda value: str(value)[:60] if value else "none")
def test_the_last_output_of_a_program_is_classified(said: str, kind: str | None) -> None:
    found = find_witness(f"it works\n{said}\n")
    assert (found.kind if found else None) == kind


CORPUS = tomllib.loads(Path(__file__).with_name("troubles.toml").read_text(encoding="utf-8"))["said"]


def test_one_table_classifies_the_output_of_all_agents() -> None:
    """The same text has the same class from Claude's SDK, an ACP agent or a program."""
    wrong = []
    for each in CORPUS:
        text, kind, status, error = each["text"], each["kind"], each.get("status"), each.get("error", "")
        said = f"HTTP {status}: {text}" if status else text
        found = [classify(status, text, error)]
        if not error:
            found.append(classify_error(-32603, "Internal error", {"details": said})[0])
        if each.get("free", True) and not status:
            witness = find_witness(f"it works\n{text}\n")
            found.append(witness.kind if witness else "none")
        wrong += [(each["source"], text, found)] if set(found) != {kind} else []
    assert wrong == [] and len(CORPUS) >= 100 and len({each["kind"] for each in CORPUS}) >= 10


@pytest.mark.parametrize(("kind", "status", "error", "message", "seen"), [
    ("crash", 503, "", "<html>down</html>", "server"),
    ("server", 429, "rate_limit_error", "wait", "rate_limit"),
    ("rate_limit", 429, "insufficient_quota", "check your plan", "quota"),
    ("crash", 400, "invalid_request_error", "You have reached your specified API usage limits.", "quota"),
    ("hang", 529, "overloaded_error", "Overloaded", "overloaded"),
    ("network", 401, "authentication_error", "invalid x-api-key", "authentication"),
    ("server", 400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", "context"),
    ("crash", 402, "", "garrison: budget used up: $1 of $1", "budget"),
    ("rate_limit", None, "", "garrison: the Anthropic API cannot be reached: no connection", "network"),
    ("crash", 200, "overloaded_error", "Overloaded", "overloaded"),
    (policy.SILENT, 503, "", "", "server"), (policy.SILENT, 404, "not_found_error", "model: x", None),
    ("max_turns", 503, "", "", None), ("unknown_session", 503, "", "", None),
])
def test_the_answer_of_the_api_takes_precedence(kind: str, status: int | None, error: str, message: str,
                                                seen: str | None) -> None:
    assert judge(kind, ApiAnswer(1.0, 1.0, 1, status, error, message)) == seen


def test_network_trouble_needs_a_known_agent_or_a_host_of_a_model() -> None:
    line = "Error: connect ECONNREFUSED 10.1.2.3:8080"
    assert find_witness(line) and not find_witness(line, is_agent=False)
    assert find_witness(line, is_agent=False, hosts=("10.1.2.3:8080",))
    local = "connect ECONNREFUSED 127.0.0.1:8080"
    assert not find_witness(local) and find_witness(local, is_told=True)


def test_hostile_output_is_classified_quickly() -> None:
    for text in ("resets , at" * 20_000, "again in 1 s " * 20_000, "error " * 50_000, "((((" * 50_000,
                 "1s and " * 30_000, "\n".join(["try again at , , , at at"] * 20_000), "npm ERR! " * 30_000):
        find_witness(text)
        read_reset(text[-20_000:], NOW.timestamp())


@pytest.mark.parametrize(("said", "at"), [
    ("Claude AI usage limit reached|1795881600", "2026-11-28T16:00:00"),
    ('{"resetsAt": 1795881600}', "2026-11-28T16:00:00"), ("reset_at: 1795881600123", "2026-11-28T16:00:00"),
    ("Your limit will reset at 3pm (Europe/Berlin).", "2026-11-28T14:00:00"),
    ("usage limit reached … resets at 3pm (Europe/Berlin)", "2026-11-28T14:00:00"),
    ("resets 5:40pm (Europe/Berlin)", "2026-11-28T16:40:00"), ("limit reached ∙ resets 3am", "2026-11-29T03:00:00"),
    ("resets 12:50am (America/Los_Angeles)", "2026-11-29T08:50:00"), ("resets 12pm (UTC)", "2026-11-29T12:00:00"),
    ("resets at 14:05 UTC", "2026-11-28T14:05:00"), ("resets at 9:15 a.m. PST", "2026-11-28T17:15:00"),
    ("quota resets at midnight Pacific time", "2026-11-29T08:00:00"), ("resets tomorrow at 6am", "2026-11-29T06:00:00"),
    ("resets Mon 9am (America/New_York)", "2026-11-30T14:00:00"), ("resets Dec 3, 4pm (UTC)", "2026-12-03T16:00:00"),
    ("try again at Nov 30th, 2026 3:05 PM.", "2026-11-30T15:05:00"), ("try again at 3:28 PM.", "2026-11-28T15:28:00"),
    ("Try again Dec 1.", "2026-12-01T00:00:00"), ("try again in 2 hours", "2026-11-28T15:00:00"),
    ("try again in 5 days 2 hours 3 minutes.", "2026-12-03T15:03:00"), ("Resets in 4hr 29min", "2026-11-28T17:29:00"),
    ("try again in 35s", "2026-11-28T13:00:35"), ("Please try again in 1m23.5s.", "2026-11-28T13:01:23.500000"),
    ("Please try again in 500ms", "2026-11-28T13:00:00.500000"), ("Please retry in 35.1s.",
     "2026-11-28T13:00:35.100000"),
    ('"retryDelay": "35s"', "2026-11-28T13:00:35"), ("retry-after: 120", "2026-11-28T13:02:00"),
    ("Retry-After: 30 seconds", "2026-11-28T13:00:30"), ("retry_after_ms: 2500", "2026-11-28T13:00:02.500000"),
    ("Your quota will reset after 2h15m10s.", "2026-11-28T15:15:10"), ("Please wait 20 seconds", "2026-11-28T13:00:20"),
    ("Try again in less than a minute", "2026-11-28T13:01:00"), ("try again in an hour", "2026-11-28T14:00:00"),
    ("You will regain access on 2026-12-01 at 00:00 UTC.", "2026-12-01T00:00:00"),
    ("retry after 2026-11-28T15:00:00Z", "2026-11-28T15:00:00"),
    ("reset: 2026-11-28T15:00:00+01:00", "2026-11-28T14:00:00"),
    ("resets 1:59pm (Europe/Berlin)", "2026-11-28T12:59:00"),  # it has just passed: no wait until tomorrow
    ("try again in 6 weeks", "2026-12-05T13:00:00"), ("resets at 9/23/2028", "2026-12-05T13:00:00"),  # at most 7 days
    ("overloaded", None), ("Retrying in 3.2s", None), ("429 Too Many Requests", None), ("resets at 27:99", None),
    ("resets Feb 31, 3pm", None), ("resets at 3pm (Nowhere/Land)", "2026-11-28T15:00:00"),
])
def test_the_reset_time_of_a_limit_is_read(said: str, at: str | None) -> None:
    found = read_reset(said, NOW.timestamp(), UTC)
    assert (datetime.fromtimestamp(found, UTC).isoformat().removesuffix("+00:00") if found else None) == at
    assert found is None or found <= NOW.timestamp() + trouble.MAX_RESET


def test_a_time_without_a_zone_is_local() -> None:
    found = read_reset("resets 3pm", NOW.timestamp(), ZoneInfo("Asia/Tokyo"))  # where it is 22:00
    assert found and datetime.fromtimestamp(found, UTC).isoformat() == "2026-11-29T06:00:00+00:00"


def test_the_error_event_of_a_stream_is_classified() -> None:
    told = ProgramState()
    events = ({"type": "assistant", "error": "rate_limit", "message": {"content": []}},
              {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "resetsAt": 1795881600}},
              {"type": "result", "is_error": True, "api_error_status": 429, "result": "You've hit your session limit"})
    for body in events:
        list(ClaudeStream().read(told, body))
    assert (told.status, told.error, told.resets_at) == (429, "rate_limit", 1795881600.0)
    found = read_told(told.status, told.error, told.failure)
    assert found and found.kind == "rate_limit"
    codex = ProgramState()
    list(CodexStream().read(codex, {"type": "turn.failed", "error": {"message": "unexpected status 503 Service "
                                                                     "Unavailable, url: http://10.1.1.1/v1"}}))
    assert (found := read_told(codex.status, codex.error, codex.failure)) and found.kind == "server"
    assert read_told(None, "", "error_during_execution") is None and read_told(None, "", "error_max_turns") is None
    assert (found := read_told(400, "", "prompt is too long")) and found.kind == "context"


def test_transient_trouble_is_waited_for_and_a_broken_program_for_ten_minutes() -> None:
    for kind in (TroubleKind.OVERLOADED, TroubleKind.SERVER, TroubleKind.NETWORK, TroubleKind.RATE_LIMIT):
        endings: list[ConnectionEnd] = []
        for _ in range(200):
            at = endings[-1].at if endings else 0.0
            endings.append(ConnectionEnd(kind, at, "x"))
            decision = policy.decide_program(endings)
            pause = decision.until - at
            assert decision.step is NextStepKind.WAIT and 0 < pause <= TRANSIENT[kind].cap
            endings[-1] = ConnectionEnd(kind, decision.until, "x")
        assert pause == TRANSIENT[kind].cap and "tried 200 times, again at least every" in decision.reason
    text = "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC."
    assert classify(400, text) is TroubleKind.QUOTA, "as in a session"
    assert policy.decide([ConnectionEnd(TroubleKind.QUOTA, 0.0, text)]).step is NextStepKind.WAIT
    reset = policy.decide_program([ConnectionEnd("rate_limit", 0.0, "x", resets_at=7200.0)])
    assert (reset.until, reset.reason) == (7200.0, "rate limit: x")
    assert policy.decide_program([ConnectionEnd("rate_limit", 100.0, "x", resets_at=50.0)]).until == 130.0  # a past one
    gone = policy.decide_program([ConnectionEnd("vanished", at, "codex is gone") for at in (0.0, 86_400.0)])
    assert (gone.step, gone.reason) == (NextStepKind.WAIT, "codex is gone; waiting until it is back")
    broken = [ConnectionEnd("broken", at, "codex cannot be run") for at in (0.0, 599.0)]
    assert policy.decide_program(broken).reason == "codex cannot be run; waiting until it can, at most 10 minutes"
    over = policy.decide_program([*broken, ConnectionEnd("broken", 600.0, "codex cannot be run")])
    assert (over.step, over.reason) == (NextStepKind.FINISH, "codex cannot be run; waited for 10 minutes")


def test_an_attempt_is_hindered_by_its_last_ending(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path)
    files.make()
    assert not was_hindered(tmp_path)
    for kind, expected in (("hang", True), ("too_long", False), ("broken", True), (policy.SILENT, False)):
        files.add_ending(ConnectionEnd(kind, 1.0, "x"))
        assert was_hindered(tmp_path) is expected, kind


def test_aider_fails_if_it_gives_up_a_request_despite_exit_code_0(tmp_path: Path) -> None:
    preset = find_preset("aider")
    assert isinstance(preset, Preset)
    (tmp_path / "config.toml").write_text(preset.profile())
    profile = find_profile("aider", tmp_path)
    assert isinstance(profile, CommandProfile)
    retried = "litellm.RateLimitError: RateLimitError: slow down\nRetrying in 0.2 seconds...\n"
    assert not profile.rule.objection(f"{retried}Applied edit to a.py\nCommit 1234567 fix\n")
    gave_up = f"{retried}litellm.RateLimitError: RateLimitError: slow down\nThe API provider has rate limited you.\n"
    why = profile.rule.objection(gave_up)
    found = find_witness(f"{gave_up}agent aider: {why}")
    assert found and found.kind == "rate_limit", why
