"""Notifications: which are due when, how the command is built, and that each is sent at least once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from garrison.agents.outages import Outage
from garrison.config import NotifyConfig
from garrison.ends import End
from garrison.errors import UsageError
from garrison.merge.state import QueueState
from garrison.pipeline.questions import OpenWait, options_of
from garrison.pipeline.questions import Question as GateQuestion
from garrison.records import atomic
from garrison.records.events import AgentQuestion
from garrison.records.journal import Entry
from garrison.run import webhook
from garrison.run.launcher_policy import ParkedName
from garrison.run.notifications import (
    Notification,
    Notifier,
    deliveries,
    due_notifications,
    find_waits,
    has_services,
    hold,
    is_quiet,
    minute_of_day,
    notify_argv,
    open_notifications,
    send_held,
)
from garrison.run.state import NodeState, RunState, from_snapshot, replay_run, to_snapshot
from garrison.system.clock import iso
from garrison.system.command import Job
from garrison.system.environment import NOTIFY_URLS, child_environment
from garrison.tables import Table
from garrison.values import asdict

ALL = NotifyConfig(("tell", "{text}"), on=("escalate", "question", "failed", "done", "stopped"))
STATE = RunState("running", nodes={"a": NodeState("active"), "b": NodeState("validated")},
                 questions={"a": AgentQuestion("q1", "Which?")})
PARKED = [ParkedName("s1", "a", "6 deaths")]


def test_a_question_and_a_parked_name_are_due_once() -> None:
    first = due_notifications(STATE, PARKED, set(), ALL)
    assert [(one.event, one.text, one.node) for one in first] == [
        ("escalate", "a is parked: 6 deaths", "a"), ("question", "a asks: Which?", "a")]
    assert due_notifications(STATE, PARKED, {one.key for one in first}, ALL) == []


def test_work_that_waits_for_approval_is_due_like_a_question_once_an_attempt() -> None:
    def record(seq: int, kind: str, **data: Any) -> Entry:
        return Entry(seq, 1, "t", "2026-01-31T12:00:00.000000Z", kind, data)

    def waits(seq: int, attempt: int) -> list[Entry]:
        return [record(seq, "node", node="a", status="active", attempt=attempt),
                record(seq + 1, "node", node="a", status="impl_complete", attempt=attempt),
                record(seq + 2, "signal", id=f"s{seq}", type="NEEDS_REVIEW", node="a", attempt=attempt)]

    records = [record(1, "run", status="running"), record(2, "node", node="a", status="pending", attempt=1)]
    first = replay_run([*records, *waits(3, 1)])
    due = due_notifications(first, [], set(), ALL)
    assert [(one.event, one.text, one.node) for one in due] == [
        ("question", "a waits for you: approve or reject attempt 1 (garrison review a)", "a")]
    assert due_notifications(from_snapshot(to_snapshot(first)), [], {one.key for one in due}, ALL) == []
    again = replay_run([*records, *waits(3, 1), *waits(6, 2)])
    assert len(due_notifications(again, [], {one.key for one in due}, ALL)) == 1, "the next attempt has other work"
    landed = again.apply(record(9, "node", node="a", status="validated", attempt=2))
    assert due_notifications(landed, [], set(), ALL) == []


def test_each_end_of_a_run_is_due_with_the_number_of_landed_nodes() -> None:
    ended = RunState("failed", "a: red", nodes=STATE.nodes)
    due = due_notifications(ended, [], set(), ALL, "failed")
    assert [one.text for one in due] == ["run failed, 1 of 2 landed: a: red"]
    assert due_notifications(ended, [], set(), ALL) == [], "only once the launcher ends with it"

    def entry(seq: int, status: str) -> Entry:
        return Entry(seq, 1, "t", "2026-01-31T12:00:00.000000Z", "run", {"status": status})

    ended = replay_run([entry(1, "running"), entry(2, "failed")])
    sent = {one.key for one in due_notifications(ended, [], set(), ALL, "failed")}
    assert due_notifications(ended, [], sent, ALL, "failed") == []
    again = from_snapshot(to_snapshot(ended)).apply(entry(3, "running")).apply(entry(4, "failed"))
    assert [one.event for one in due_notifications(again, [], sent, ALL, "failed")] == ["failed"]


class _Command:
    """A notify command that ends when a test lets it."""

    ended = False

    def poll(self, _now: float) -> End | None:
        return End(0, False, 1.0) if self.ended else None


def test_only_a_notification_whose_command_has_ended_counts_as_sent(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """After the death of a launcher while the first is sent, its successor sends the second as well."""
    started: list[_Command] = []

    def start(*_: Any, **__: Any) -> _Command:
        started.append(_Command())
        return started[-1]

    monkeypatch.setattr(Job, "start", start)
    told: list[str] = []
    notifier = Notifier(ALL, "r1", {}, tmp_path / "notify.log", lambda one: told.append(one.key))
    for key in ("one", "two", "one"):
        notifier.add(Notification(key, "failed", key))
    notifier.poll(0.0)
    assert (len(started), told, notifier.busy) == (1, [], True)
    started[0].ended = True
    notifier.poll(1.0)
    assert (len(started), told) == (2, ["one"])
    started[1].ended = True
    notifier.poll(2.0)
    assert (told, notifier.busy) == (["one", "two"], False)


@pytest.mark.parametrize("config", [NotifyConfig(), NotifyConfig((), on=ALL.on), NotifyConfig(("tell",), on=())])
def test_nothing_is_due_without_a_command_or_an_event(config: NotifyConfig) -> None:
    assert due_notifications(STATE, PARKED, set(), config, "failed") == []


def test_a_text_from_outside_never_becomes_another_word_or_placeholder() -> None:
    notice = Notification("k", "question", "a asks: {run}; $(rm -rf /)\n\x1b[31m", "a")
    argv = notify_argv(NotifyConfig(("say", "{text}", "--tag={event}/{node}@{run}", "{other}")), "r1", notice)
    assert argv[0] == "say"
    assert argv[1].startswith("a asks: {run}；")  # it looks the same, and no shell executes it
    assert not set(argv[1]) & set("$`\"'\\;&|<>()")
    assert "\x1b" not in argv[1]
    assert "\n" not in argv[1]
    assert argv[2:] == ["--tag=question/a@r1", "{other}"]


@pytest.mark.parametrize(("table", "wrong"), [
    ("x", "should be a table"),
    ({"comand": []}, r"\[notify\] comand is not a setting; did you mean command"),
    ({"command": "notify-send"}, "should be a list of strings"),
    ({"on": ["escalated"]}, "'escalated'.* should be a list of events among escalate, "),
    ({"timeout": 0}, "timeout=0 should be seconds above 0 and at most 600"), ({"timeout": True}, "timeout"),
    ({"command": ["sh", "-c", "say {text}"]}, "GARRISON_NOTIFY_TEXT"),
    ({"command": ["env", "A=1", "bash", "-lc", "say {text}"]}, "would run what an agent writes"),
    ({"command": ["python3", "-c", "print('{text}')"]}, "in a script"),
])
def test_a_wrong_table_is_refused(table: Any, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        Table("config.toml", table, ("notify",)).read(NotifyConfig)


def test_an_open_gate_is_a_question_and_a_wait_for_a_signal_is_none() -> None:
    def gate(place: str, signal: str = "") -> OpenWait:
        return OpenWait(place, "human", GateQuestion(place, "ask", "Land it?"), signal, at=f"t{place}")

    state = RunState("running", waits={"ask#1": gate("ask#1"), "wait#1": gate("wait#1", "GO")})
    due = due_notifications(state, [], set(), ALL)
    assert [(one.event, one.text, one.node) for one in due] == [("question", "ask waits for you: Land it?", "ask")]
    again = RunState("running", waits={"ask#2": gate("ask#2")})
    assert due_notifications(again, [], {one.key for one in due}, ALL), "reached again in a loop"


def test_command_and_webhook_send_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One source, one list of events; a failure of one way does not delay the other."""
    both = NotifyConfig(("tell", "{text}"), "https://hook.example/x", ("question",))
    due = due_notifications(STATE, PARKED, set(), both)
    assert due == open_notifications(STATE, PARKED, ("question",)) and [one.event for one in due] == ["question"]
    assert [one.name for one in deliveries(both, "r1", due[0])] == ["command", "webhook"]
    assert deliveries(both, "r1", due[0])[0].argv[-1] == "a asks: Which?"
    assert "hook.example" not in " ".join(deliveries(both, "r1", due[0])[1].argv), "its address may have a secret"
    assert due_notifications(STATE, PARKED, set(), NotifyConfig((), "https://hook.example/x", ("question",))) == due
    started: list[Any] = []
    inputs: list[str] = []

    def start(argv: list[str], **_: Any) -> _Command:
        inputs.append(Path(argv[3]).read_text())
        if "tell" in argv:
            raise OSError("no such program")
        started.append(argv)
        return _Command()

    monkeypatch.setattr(Job, "start", start)
    monkeypatch.setattr(_Command, "ended", True)
    told: list[str] = []
    notifier = Notifier(both, "r1", {}, tmp_path / "notify.log", lambda one: told.append(one.key))
    notifier.add(due[0])
    notifier.poll(0.0)
    notifier.poll(1.0)
    assert inputs[1].startswith("https://hook.example/x\n{") and inputs[0].startswith("{")
    assert started and told == [due[0].key] and not notifier.busy


def test_the_webhook_sends_json_and_follows_no_redirect() -> None:
    got: list[tuple[str, str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, self.headers["content-type"], body))
            self.send_response({"/ok": 204, "/moved": 302}.get(self.path, 500))
            self.send_header("location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        answers = [webhook.send(address + path, b"{}") for path in ("/ok", "/moved", "/bad")]
        runs = [subprocess.run([sys.executable, "-P", "-m", "garrison.run.webhook"], input=f"{address}{path}\n{{}}",
                               text=True, capture_output=True, check=False) for path in ("/ok", "/bad")]
        server.shutdown()
        thread.join()
    assert got == [(path, "application/json", b"{}") for path in ("/ok", "/moved", "/bad", "/ok", "/bad")]
    assert answers[0] == "" and "302" in answers[1] and "500" in answers[2]
    assert [(each.returncode, each.stderr) for each in runs] == [(0, ""), (1, f"{answers[2]}\n")]
    assert "cannot be reached" in webhook.send(address, b"{}")


@pytest.mark.parametrize("address", ["hook.example", "file:///etc/passwd", "https://", 3, "https://a b"])
def test_a_webhook_must_be_an_address(address: object) -> None:
    with pytest.raises(UsageError, match="should be an address that starts with https"):
        Table("config.toml", {"webhook": address}, ("notify",)).read(NotifyConfig)
    assert Table("c",
                 {"webhook": "https://hook.example/x?y=1"}).read(NotifyConfig).webhook == "https://hook.example/x?y=1"


def test_an_agent_that_waits_for_longer_than_a_moment_is_reported_once(tmp_path: Path) -> None:
    def write(node: str, *endings: dict[str, Any], waits: bool = True) -> None:
        folder = atomic.make_directory(tmp_path / node / "claude")
        (folder / "endings.jsonl").write_text("".join(json.dumps({"reason": "Overloaded", **each}) + "\n"
                                                      for each in endings))
        (folder / "waiting").write_text("until 12:00") if waits else None

    names = ("short", "long", "limit", "asks", "works", "done")
    state = RunState("running", nodes={name: NodeState("active", attempt=1) for name in names[:-1]})
    write("short", {"kind": "overloaded", "at": 990.0})
    write("long", *({"kind": kind, "at": at} for kind, at in (
        ("network", 100.0), ("overloaded", 700.0), ("overloaded", 990.0))))
    write("limit", {"kind": "rate_limit", "at": 999.0, "resets_at": 8000.0})
    write("asks", {"kind": "question", "at": 100.0})
    write("works", {"kind": "overloaded", "at": 100.0}, waits=False)
    config = NotifyConfig(("tell", "{text}"))
    found = find_waits(state, lambda node, _attempt: tmp_path / node, config, 1000.0, QueueState)
    due = due_notifications(state, [], set(), config, waits=found)
    assert [(one.key, one.event, one.text) for one in due] == [
        ("wait:long:1:700", "wait", "long waits and continues by itself: API overloaded: Overloaded"),
        ("wait:limit:1:999", "wait", "limit waits and continues by itself: rate limit: Overloaded")]
    assert not due_notifications(state, [], {one.key for one in due}, config, waits=found)
    assert not find_waits(state, lambda node, _attempt: tmp_path / node, NotifyConfig(), 1000.0, QueueState)
    for name in ("short", "long", "asks"):
        (tmp_path / name / "claude" / "outage.json").write_text(json.dumps(asdict(
            Outage("server", "503 down", 36_120.0, 36_130.0, 36_190.0, status=503))))
    found = find_waits(state, lambda node, _attempt: tmp_path / node, config, 36_300.0, QueueState)
    assert [(one.key, one.text) for one in due_notifications(state, [], {"wait:limit:1:999"}, config, waits=found)] == [
        ("wait:server:36120", "short waits and continues by itself: API answers 503 since 10:02 UTC: down")]


def test_what_delays_nodes_or_the_queue_for_a_minute_is_reported_once_for_all(tmp_path: Path) -> None:
    gone = "the target branch main is gone from /r"
    state = RunState("running", nodes={"a": NodeState("active", attempt=1), "b": NodeState("active", attempt=1),
                                       "c": NodeState("impl_complete", attempt=2)})
    queue = QueueState(hindrance=gone, hindered_at=iso(100.0))
    config = NotifyConfig(("tell", "{text}"))

    def waits(now: float) -> list[tuple[str, str]]:
        return [(wait.node, wait.what)
                for wait in find_waits(state, lambda node, _attempt: tmp_path / node, config, now, lambda: queue)]

    assert (waits(150.0), waits(161.0)) == ([], [("c", gone)])
    for name in ("a", "b"):
        path = atomic.make_directory(tmp_path / name) / "hindered-runner"
        path.write_text(f"{gone}\n")
        os.utime(path, (100.0, 100.0))
    assert waits(161.0) == [("a", gone)]
    queue.hindrance = ""
    assert waits(161.0) == [("a", gone)]


def test_services_are_notified_like_a_command_and_a_question_has_the_answers_of_its_buttons(tmp_path: Path) -> None:
    none = NotifyConfig(on=("question",))
    assert not has_services(tmp_path, none, {}) and due_notifications(STATE, [], set(), none) == []
    assert has_services(tmp_path, NotifyConfig(urls_file="/x"), {}) and has_services(tmp_path, none, {NOTIFY_URLS: "x"})
    gate = OpenWait("ask#1", "human", GateQuestion("ask#1", "ask", "Land?", options_of([("Yes", "a"), ("No", "b")])),
                    at="t", deadline="2026-01-31T12:00:00.000000Z")
    [due] = due_notifications(RunState("running", waits={"ask#1": gate}), [], set(), none, services=True)
    assert (due.question, due.options, due.until) == ("ask#1", ("Yes", "No"), "2026-01-31T12:00:00.000000Z")
    assert [each.name for each in deliveries(none, "r1", due, tmp_path)] == ["services"]
    assert child_environment({NOTIFY_URLS: "x", "GARRISON_HOME": "/h"}, [NOTIFY_URLS]) == {"GARRISON_HOME": "/h"}, \
        "no agent gets the addresses"


@pytest.mark.parametrize(("hours", "quiet", "loud"), [
    ("22:00-07:00", (22 * 60, 0, 6 * 60 + 59), (7 * 60, 21 * 60 + 59)), ("13:00-14:00", (13 * 60,), (14 * 60, 0)),
    ("", (), (0, 720))])
def test_quiet_hours_may_include_midnight(hours: str, quiet: tuple[int, ...], loud: tuple[int, ...]) -> None:
    assert all(is_quiet(hours, minute) for minute in quiet) and not any(is_quiet(hours, minute) for minute in loud)
    for wrong in ("22-7", "24:00-07:00", 3):
        with pytest.raises(UsageError, match="two times of a day"):
            Table("c", {"quiet": wrong}).read(NotifyConfig)


def test_a_notification_in_quiet_hours_is_sent_once_after_them(tmp_path: Path) -> None:
    told = tmp_path / "told"
    night = minute_of_day(1_800_000_000)
    hours = f"{night // 60:02}:{night % 60:02}-{(night // 60 + 1) % 24:02}:{night % 60:02}"
    config = NotifyConfig(("sh", "-c", f"cat >> {told}"), quiet=hours)
    hold(tmp_path, "r1", Notification("run:failed:1", "failed", "run failed"))
    assert send_held(tmp_path, config, dict(os.environ), 1_800_000_000) == 0 and not told.exists()
    assert send_held(tmp_path, config, dict(os.environ), 1_800_000_000 + 7200) == 1
    assert send_held(tmp_path, config, dict(os.environ), 1_800_000_000 + 7200) == 0
    assert [json.loads(line)["text"] for line in told.read_text().splitlines()] == ["run failed"]
