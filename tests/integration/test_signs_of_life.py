"""Signs of life of an agent: each kind of file it changes, and how status shows silence."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from doubles.clock import FakeClock
from doubles.processes import MemoryProcesses
from garrison.agents.claude import client
from garrison.agents.conversation.stream import TOOL_TIMEOUT, tool_in_flight
from garrison.records.identity import Identity
from garrison.records.run import Task
from garrison.records.store import Store
from garrison.run.agent_activity import AgentActivity
from garrison.supervise.observer import Observer
from garrison.system.clock import iso
from garrison.system.stamps import ContentWatch, newest_entry
from garrison.system.systemd import notify_watchdog
from garrison.values import replace
from garrison.views.process_view import agent_evidence
from support import DEADLINE, git


@pytest.fixture
def signs(tmp_path: Path, repo: Path) -> AgentActivity:
    tree = tmp_path / "tree"
    git(repo, "worktree", "add", "-q", "--detach", str(tree))
    folder = tmp_path / "attempt"
    (folder / "claude" / "transcripts").mkdir(parents=True)
    return AgentActivity(folder, tree, Task("r1", "a", 1, silence_s=90.0))


ACTIONS: list[tuple[str, Callable[[AgentActivity], object]]] = [
    ("output", lambda signs: (signs.folder / "output.log").write_text("hello\n")),
    ("notes", lambda signs: (signs.folder / "notes.txt").write_text("done: half")),
    ("stream", lambda signs: (signs.folder / "claude/stream.jsonl").write_text("{}\n")),
    ("transcript", lambda signs: (signs.folder / "claude/transcripts/one.jsonl").write_text("{}\n")),
    ("head", lambda signs: git(signs.worktree, "-c", "user.name=n", "-c", "user.email=e", "commit", "-q",
                               "--allow-empty", "-m", "More")),
    ("worktree", lambda signs: (signs.worktree / "calc.py").write_text("x = 1\n")),
]


@pytest.mark.parametrize(("kind", "act"), ACTIONS, ids=[kind for kind, _ in ACTIONS])
def test_each_kind_of_work_changes_its_sign(signs: AgentActivity, kind: str,
                                            act: Callable[[AgentActivity], object]) -> None:
    before = signs.stamps(deep=True)
    assert before == signs.stamps(deep=True)
    time.sleep(0.01)  # a file system may count in jiffies
    act(signs)
    after = signs.stamps(deep=True)
    assert [name for name in after if after[name] != before[name]] == [kind]
    assert "worktree" not in signs.stamps()


def test_without_files_there_are_no_signs(tmp_path: Path) -> None:
    signs = AgentActivity(tmp_path / "none", tmp_path / "tree")
    assert set(signs.stamps(deep=True).values()) == {None}
    assert (signs.silence, signs.tool(), signs.waiting()) == (None, None, "")
    for name in "abc":
        (tmp_path / name).touch()
    found = newest_entry(tmp_path, max_entries=2)
    assert found[1] == 2, "a tree of any size costs no more"


def test_only_new_content_of_sources_is_a_change(tmp_path: Path) -> None:
    source = tmp_path / "src/calc.py"
    source.parent.mkdir()
    source.write_text("a - b")
    watch = ContentWatch(tmp_path)
    before = watch.state()
    source.write_text("a + b")
    changed = watch.state()
    source.write_text("a - b")
    (tmp_path / "__pycache__").mkdir()
    back = watch.state()
    for made in ("test.log", "__pycache__/calc.pyc"):
        (tmp_path / made).write_text("made by a tool")
    source.write_text("a + b")
    assert watch.state() == changed
    source.write_text("a - b  # attempt 2\n\n")
    assert watch.state() == back
    (tmp_path / "pipe").symlink_to("/dev/zero")
    with_link = watch.state()
    source.unlink()
    assert len({before, changed, with_link, watch.state()}) == 4
    assert back != changed
    (tmp_path / "another").touch()
    assert ContentWatch(tmp_path, max_files=1).state() is None


def test_a_tool_under_way_is_read_from_the_stream(signs: AgentActivity) -> None:
    stream = signs.folder / "claude/stream.jsonl"

    def tell(*events: dict[str, str]) -> None:
        with stream.open("a") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)

    tell({"kind": "begin"}, {"kind": "tool", "id": "1", "name": "Read"}, {"kind": "tool", "id": "2", "name": "Bash"})
    assert signs.tool() == ("Bash", TOOL_TIMEOUT)
    tell({"kind": "tool_result", "id": "2"})
    assert signs.tool() == ("Read", TOOL_TIMEOUT)
    with stream.open("a") as file:
        file.write('{"kind": "tool", "id": "3", "na')
    assert signs.tool() == ("Read", TOOL_TIMEOUT)
    tell({"kind": "text"}, {"kind": "begin"})
    assert tool_in_flight(signs.folder) is None
    assert TOOL_TIMEOUT >= client.TOOL_TIMEOUT + 240, "what the session itself allows is no hang"


def test_status_shows_silence(signs: AgentActivity, tmp_path: Path) -> None:
    clock = FakeClock(start=time.time())
    observer = Observer(Store(tmp_path), MemoryProcesses(), clock)
    (signs.folder / "output.log").write_text("x")
    clock.advance(30)
    found = agent_evidence(observer, None, signs)
    assert found.last is not None and found.last.kind in ("output", "head")
    assert (found.suspended, found.silence_s, found.words()) == (False, 90.0, "")
    clock.advance(200)
    os.utime(signs.folder / "output.log", (clock.time() - 125, clock.time() - 125))
    assert agent_evidence(observer, None, signs).words() == ", silent for 2m (last: output)"


def test_an_agent_that_edits_or_has_just_started_is_not_silent(signs: AgentActivity, tmp_path: Path) -> None:
    clock = FakeClock(start=time.time() + 200)
    observer = Observer(Store(tmp_path), MemoryProcesses(), clock)
    born = Identity(role="orchestrator", name="a", run_id="r1", agent_id="a", incarnation=2, status="active",
                    created_at=iso(clock.time() - 5))
    assert agent_evidence(observer, born, signs).words() == "", "its predecessor's silence"
    old = replace(born, created_at=iso(clock.time() - 190))
    for path in [signs.worktree, *signs.worktree.rglob("*")]:
        os.utime(path, (clock.time() - 300, clock.time() - 300))
    assert ", silent for 3m" in agent_evidence(observer, old, signs).words()
    (signs.worktree / "calc.py").write_text("x = 1\n")
    os.utime(signs.worktree / "calc.py", (clock.time() - 3, clock.time() - 3))
    assert agent_evidence(observer, old, signs).words() == "", "it writes files"


def test_the_watchdog_of_systemd_is_notified_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "s"))
        manager.settimeout(DEADLINE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "s"))
        assert notify_watchdog({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "7"}, 7)
        assert manager.recv(100) == b"WATCHDOG=1"
        assert not notify_watchdog({}, 7)
        assert not notify_watchdog({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "8"}, 7), "it was another process's"
        assert notify_watchdog({"WATCHDOG_USEC": "1"}, 7)
        assert manager.recv(100) == b"WATCHDOG=1"
