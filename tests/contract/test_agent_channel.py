"""The socket of an agent: who is heard, what is refused, and that no client keeps the orchestrator busy or waiting."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from garrison.agents import channel as channels
from garrison.agents import channel_client
from garrison.agents.reports import AgentReports
from garrison.errors import GarrisonError, NotFound, Refused, Shortage
from garrison.sandbox.confine import confine
from garrison.sandbox.place import Mode, Mount, Place, Rights, Role
from garrison.sandbox.probe import machine
from garrison.system.event_loop import EventLoop
from garrison.system.processes import ProcessId, probe
from garrison.system.unix_socket import short_path

CLIENT = """
import json, sys
from garrison.agents import channel_client
try:
    print(json.dumps(channel_client.send(sys.argv[1], json.loads(sys.argv[2]))))
except Exception as error:
    print(error)
"""
DEADLINE = 20.0


def this() -> ProcessId:
    """Return this process, in the place of the orchestrator."""
    found = probe(os.getpid())
    return found.id


class Served:
    """A channel in the event loop of this process, as an orchestrator has it."""

    def __init__(self, folder, roots=None, seconds=channels.REQUEST_SECONDS) -> None:
        self.reports = AgentReports(folder)
        self.reports.takes_result = True
        self.log: list[str] = []
        self.path = folder / "agent.sock"
        self.channel = channels.open_channel(self.path, roots or (lambda: (this(),)), self.reports.handle,
                                             self.log.append, seconds=seconds)
        self.loop = EventLoop(())
        self.wakeups = 0

    def turn(self, seconds: float) -> None:
        """Sleep until something happens, at most that long, and serve it."""
        now = time.monotonic()
        due = self.channel.wake_at()
        self.loop.watch_descriptor(self.channel.fileno())
        wakeup = self.loop.wait(max(0.0, min(seconds, seconds if due is None else due - now)))
        self.channel.poll(time.monotonic())
        self.wakeups += bool(wakeup.descriptors)

    def until(self, done) -> None:
        """Serve until `done()`."""
        end = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < end, "not done in time"
            self.turn(0.2)

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Start a program below this process."""
        return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

    def send(self, body, *prefix: str) -> str:
        """Send a request from a process of its own; return what it prints."""
        line = body if isinstance(body, str) else json.dumps(body)
        client = self.start(*prefix, sys.executable, "-c", CLIENT, str(self.path), line)
        self.until(lambda: client.poll() is not None)
        return client.communicate()[0].strip()

    def connect(self) -> socket.socket:
        """Connect from this very process, which is refused; its roots must be its parents."""
        client = socket.socket(socket.AF_UNIX)
        with short_path(self.path) as name:
            client.connect(name)
        return client

    def close(self) -> None:
        self.channel.close()
        self.loop.close()


@pytest.fixture
def served(tmp_path):
    with suppress(OSError):
        (tmp_path / "attempt").mkdir()
    with closing(Served(tmp_path / "attempt")) as one:
        yield one


@pytest.fixture
def near(request, tmp_path):
    """Yield a channel that accepts this process itself: its parent is the root. Parameter: seconds for a request."""
    parent = probe(os.getppid())
    assert parent is not None
    with closing(Served(tmp_path, lambda: (parent.id,), getattr(request, "param", channels.REQUEST_SECONDS))) as one:
        yield one


def test_a_process_of_the_agent_is_heard(served):
    assert served.send({"type": "report", "status": "success", "notes": "done"}) == '{"ok": true}'
    assert served.reports.result == {"status": "success", "notes": "done"}
    assert served.send({"type": "note", "text": "half"}) == '{"ok": true}'
    assert served.send({"type": "phase", "phase": "impl_complete"}) == '{"ok": true}'
    assert (served.reports.notes, served.reports.phase) == ("half", "impl_complete")
    assert oct(served.path.stat().st_mode & 0o777) == "0o600"


def test_a_grandchild_without_marker_and_environment_is_heard(served):
    heard = served.send({"type": "note", "text": "x"}, "env", "-i", f"PYTHONPATH={':'.join(sys.path)}", "setsid")
    assert heard == '{"ok": true}'


def test_a_sibling_agent_of_the_same_user_is_refused(tmp_path):
    """The other agent's process is a child of this one too, but the channel's agent is another child."""
    agent = subprocess.Popen(["sleep", "60"])
    found = probe(agent.pid)
    assert found is not None
    one = Served(tmp_path, lambda: (found.id,))
    try:
        reply = one.send({"type": "report", "status": "success"})
        assert reply.startswith("refused: process ")
        assert reply.endswith("is not one of this agent's")
        assert not one.reports.result
        assert len(one.log) == 1, "it is logged"
        assert one.send({"type": "note", "text": "again"}).startswith("refused")
        assert len(one.log) == 1, "once"
    finally:
        one.close()
        agent.kill()
        agent.wait()


def test_an_orphan_that_left_the_tree_is_refused(served):
    """No process here is a subreaper, as an orchestrator is: the orphan's parent may be anybody's."""
    reply = served.path.with_name("reply")
    parent = served.start("sh", "-c", 'setsid sh -c \'while kill -0 "$4"; do sleep 0.02; done; '
                          'exec "$0" -c "$1" "$2" "$3" > "$5"\' "$0" "$1" "$2" "$3" $$ "$4" 2> /dev/null &',
                          sys.executable, CLIENT, str(served.path), '{"type": "note", "text": "x"}', str(reply))
    parent.wait()
    served.until(lambda: reply.exists() and reply.read_text())
    assert reply.read_text().startswith("refused: process ")
    assert not served.reports.notes


def test_a_root_that_ended_has_no_descendants(tmp_path):
    with closing(Served(tmp_path, lambda: (ProcessId(os.getpid(), 1),))) as one:  # this pid, another process's ticks
        assert one.send({"type": "note", "text": "x"}).startswith("refused: process ")


@pytest.mark.parametrize("body", ["", "{", "[]", '{"type": "stop"}', '{"type": "note", "text": "\\ud800"}'])
def test_malformed_requests_are_refused_and_the_next_is_heard(near, body):
    client = near.connect()
    client.sendall(body.encode() + b"\n")
    near.until(lambda: readable(client))
    assert not json.loads(client.recv(4096))["ok"]
    client.close()
    assert near.send({"type": "note", "text": "x"}) == '{"ok": true}'


def readable(client: socket.socket) -> bool:
    """Return whether there is something to read."""
    return bool(select.select([client], [], [], 0)[0])


def test_an_endless_request_is_cut_off(near):
    client = near.connect()
    client.settimeout(DEADLINE)
    sent = 0
    client.setblocking(False)
    end = time.monotonic() + DEADLINE
    reply = b""
    while not reply and time.monotonic() < end:
        with suppress(BlockingIOError, BrokenPipeError):
            sent += client.send(b"x" * 65536)
        near.turn(0.05)
        with suppress(BlockingIOError, ConnectionResetError):
            reply = client.recv(4096)
    assert "at most 1 MiB" in json.loads(reply)["error"]
    assert sent < 4 << 20
    client.close()


@pytest.mark.parametrize("near", [0.5], indirect=True)
def test_a_slow_client_is_dropped_while_others_are_served(near):
    slow = near.connect()
    slow.sendall(b'{"type": ')
    near.turn(0.2)
    assert near.send({"type": "note", "text": "x"}) == '{"ok": true}'
    near.until(lambda: readable(slow))
    assert slow.recv(10) == b"", "closed without a reply"
    slow.close()


@pytest.mark.parametrize("near", [0.5], indirect=True)
def test_a_client_that_does_not_read_its_reply_blocks_no_other(near):
    question = near.connect()
    question.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    question.sendall(b'{"type": "question", "text": "?"}\n')
    near.until(lambda: near.reports.question)
    near.channel.answer(near.reports.question.id, "y" * (4 << 20), time.monotonic())
    assert near.send({"type": "note", "text": "x"}) == '{"ok": true}'
    end = time.monotonic() + 0.8
    near.until(lambda: time.monotonic() > end)
    received = b""
    with suppress(ConnectionResetError):
        while chunk := question.recv(1 << 20):
            received += chunk
    assert len(received) < 4 << 20, "dropped after its time"
    question.close()


def test_many_connections_leave_the_orchestrator_asleep(near):
    """A full channel does not wake the loop for the connections that wait in the kernel's queue."""
    clients = []
    for _ in range(channels.MAX_CONNECTIONS + 4):
        clients.append(near.connect())
        near.turn(0.01)
    before = near.wakeups
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        near.turn(0.5)
    assert near.wakeups - before <= 4
    for client in clients:
        client.close()
    assert near.send({"type": "note", "text": "x"}) == '{"ok": true}'


FLOOD_SECONDS = 1.2


def test_a_flood_wakes_the_orchestrator_a_few_times_a_second(near):
    """A client that connects, sends and hangs up all the time is slowed down, and then heard again."""
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            with suppress(OSError), near.connect() as client:
                client.settimeout(0.05)
                client.sendall(b"{}\n" * 10)

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    cpu, before = time.thread_time(), near.wakeups
    end = time.monotonic() + FLOOD_SECONDS
    while time.monotonic() < end:
        near.turn(1.0)
    used, wakeups = time.thread_time() - cpu, near.wakeups - before
    stop.set()
    near.until(lambda: not any(thread.is_alive() for thread in threads))
    assert wakeups < channels.BURST + FLOOD_SECONDS * channels.RATE + 20
    assert used < 0.4 * FLOOD_SECONDS
    assert near.send({"type": "note", "text": "x"}) == '{"ok": true}'


def test_sending_byte_by_byte_does_not_evade_the_limit(near):
    client = near.connect()
    client.setblocking(False)
    end = time.monotonic() + FLOOD_SECONDS
    before = near.wakeups
    while time.monotonic() < end:
        with suppress(OSError):
            client.send(b"x")
        near.turn(0.001)
    assert near.wakeups - before < channels.BURST + FLOOD_SECONDS * channels.RATE + 20
    client.close()


def test_a_question_waits_for_its_answer(served):
    client = served.start(sys.executable, "-c", CLIENT, str(served.path), '{"type": "question", "text": "Which?"}')
    served.until(lambda: served.reports.question)
    question = served.reports.question
    assert question.text == "Which?"
    assert client.poll() is None
    served.reports.answer(question.id, "blue")
    assert served.channel.answer(question.id, "blue", time.monotonic())
    served.until(lambda: client.poll() is not None)
    assert json.loads(client.communicate()[0]) == {"ok": True, "answer": "blue"}


def test_a_client_that_waits_for_an_answer_may_hang_up(served):
    client = served.start(sys.executable, "-c", CLIENT, str(served.path), '{"type": "question", "text": "Which?"}')
    served.until(lambda: served.reports.question)
    client.kill()
    client.wait()
    question = served.reports.question
    served.turn(1)
    assert not served.channel.answer(question.id, "blue", time.monotonic())
    assert served.send({"type": "note", "text": "x"}) == '{"ok": true}'


def test_a_long_path_and_a_stale_socket(tmp_path):
    folder = tmp_path / ("d" * 90) / ("e" * 90)
    folder.mkdir(parents=True)
    # a successor; its predecessor was killed, or is about to stop
    with closing(Served(folder)) as left, closing(Served(folder)) as one:
        left.channel.close()
        assert one.path.exists(), "a predecessor leaves its successor's socket alone"
        assert one.send({"type": "note", "text": "x"}) == '{"ok": true}'
    assert not one.path.exists()


def test_a_client_without_orchestrator(tmp_path):
    with pytest.raises(NotFound, match="GARRISON_AGENT_SOCKET names no socket"):
        channel_client.find_socket({"GARRISON_AGENT_SOCKET": str(tmp_path / "none")})
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "dead"))
    dead.close()
    with pytest.raises(GarrisonError, match="does not answer"):
        channel_client.send(str(tmp_path / "dead"), {"type": "note"}, 0)


def test_a_client_that_waits_stands_still_at_the_end_of_its_orchestrator_until_it_is_ended(served, tmp_path):
    """Seen: the agent's shell failed by the end of the question, a moment before it was killed, and its attempt too."""
    for is_patient in (False, True):
        code = CLIENT if is_patient else CLIENT.replace("sys.argv[2])", "sys.argv[2]), 0.1")
        (tmp_path / str(is_patient)).mkdir()
        one = Served(tmp_path / str(is_patient))
        client = one.start(sys.executable, "-c", code, str(one.path), '{"type": "question", "text": "Which?"}')
        one.until(lambda one=one: one.reports.question)
        one.close()
        if is_patient:
            with pytest.raises(subprocess.TimeoutExpired):
                client.wait(0.5)
            client.kill()
            client.communicate()
        else:
            assert "ended before it replied" in client.communicate(timeout=DEADLINE)[0]
    served.channel.close()
    with pytest.raises((Refused, GarrisonError)):
        channel_client.send(str(served.path), {"type": "note", "text": "x"}, 0)


@pytest.mark.parametrize("mode", [
    Mode.NONE,
    pytest.param(Mode.BUBBLEWRAP, marks=pytest.mark.skipif(not machine().bubblewrap, reason=machine().refusal)),
    pytest.param(Mode.LANDLOCK, marks=pytest.mark.skipif(not machine().landlock, reason="no Landlock in this kernel")),
])
@pytest.mark.parametrize("daemon", [False, True], ids=["child", "daemon"])
def test_a_confined_agent_is_heard_by_the_socket_alone(served, tmp_path, mode, daemon):
    """In a sandbox its process has another pid, no home of garrison, and the socket at a fixed path; a process that
    detached is a child of the sandbox's first process."""
    for name in ("tree", "private"):
        (tmp_path / name).mkdir()
    place = Place(Role.AGENT, Rights(mode=mode), tmp_path / "tree", tmp_path / "private",
                  (Mount(served.path, Path(channel_client.INSIDE)),))
    command = f"{sys.executable} -P -m garrison.cli.main note \"$GARRISON_AGENT_SOCKET\""
    if daemon and mode is Mode.BUBBLEWRAP:
        command = f"setsid sh -c '(sleep 0.2; {command}; touch over) &'; until test -e over; do sleep 0.1; done"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GARRISON_AGENT_SOCKET": str(served.path)}
    confined = confine(["sh", "-c", command], env, place)
    client = subprocess.Popen(confined.argv, env=dict(confined.env), cwd=place.worktree)
    served.until(lambda: client.poll() is not None)
    assert client.returncode == 0
    assert served.reports.notes == (channel_client.INSIDE if mode is Mode.BUBBLEWRAP else str(served.path))


def test_without_a_kernel_watch_the_socket_waits_and_gives_the_reason(tmp_path: Path, monkeypatch) -> None:
    class NoWatches:
        """An epoll of a user whose watches are all taken."""

        def register(self, descriptor: int, events: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(select, "epoll", NoWatches)
    with pytest.raises(Shortage, match=r"no watch is left for the agent's socket: .*fs.epoll.max_user_watches"):
        Served(tmp_path)
