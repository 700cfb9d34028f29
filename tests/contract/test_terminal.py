"""One suite over both terminals; then what only tmux can get wrong."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from garrison.errors import GarrisonError, RecordCorrupt, Refused, UsageError
from garrison.processes.spawn import close_sessions
from garrison.records.identity import Identity
from garrison.system import process_control, processes
from garrison.system.terminal import ProcessTerminal, Terminal, TerminalSession
from garrison.system.terminal_choice import choose_terminal
from garrison.system.tmux import TmuxTerminal, escape
from garrison.system.tmux_server import socket_path, supported_version
from garrison.values import asdict
from support import is_gone, until

needs_tmux = pytest.mark.skipif(not supported_version(), reason="there is no tmux >= 3.2 on PATH")
NAME = "orchestrator-a@r1"


class Bench:
    """A terminal and what a test does with it."""

    def __init__(self, terminal: Terminal, folder: Path) -> None:
        self.terminal, self.folder = terminal, folder

    def life(self, name: str) -> str:
        """Return a marker that no other test run on this machine has."""
        return f"{self.folder}:r1:{name}#1"

    def open(self, script: str, name: str = NAME, life: str = "", **env: str) -> TerminalSession:
        given = {"PATH": os.environ["PATH"], **env} | ({"GARRISON_LIFE": life} if life else {})
        return self.terminal.open(name, ["/bin/sh", "-c", script], env=given, cwd=self.folder,
                                  log=self.folder / f"{name}.log")

    def said(self, name: str) -> str:
        return until(lambda: (path := self.folder / name).exists() and path.read_text().endswith("\n")
                     and path.read_text().strip())

    def shown(self, session: TerminalSession) -> str:
        kept = Path(session.log).read_text() if Path(session.log).exists() else ""
        return kept + self.terminal.capture(session, 100)


@pytest.fixture(params=["process", pytest.param("tmux", marks=needs_tmux)])
def bench(request: pytest.FixtureRequest, patient_tmux: None, tmp_path: Path) -> Iterator[Bench]:
    yield from benches(request.param, tmp_path)


@pytest.fixture
def on_tmux(patient_tmux: None, tmp_path: Path) -> Iterator[Bench]:
    yield from benches("tmux", tmp_path)


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a directory with a path short enough for sockets, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="g") as path:
        yield Path(path)


def benches(kind: str, tmp_path: Path) -> Iterator[Bench]:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    terminal, _ = choose_terminal(kind, home)
    yield Bench(terminal, work)
    servers = {int(one.server.split(":")[0]) for one in terminal.sessions() if one.kind == "tmux"}
    for session in terminal.sessions():
        terminal.close(session, grace=0)
    terminal.shutdown()
    until(lambda: all(is_gone(pid) for pid in servers))
    assert terminal.sessions() == []
    processes.reap()


def test_a_session_runs_until_its_program_ends(bench: Bench) -> None:
    session = bench.open("echo last words >&2; while ! test -e stop; do sleep 0.01; done; exit 3")
    until(lambda: "last words" in bench.terminal.capture(session))  # tmux may lose what is written on the way out
    again = TerminalSession(**json.loads(json.dumps(asdict(session))))
    assert again == session, "it survives its record"
    assert bench.terminal.is_alive(again)
    assert bench.terminal.exit_code(session) is None
    (bench.folder / "stop").touch()
    until(lambda: not bench.terminal.is_alive(session))
    assert bench.terminal.find(NAME) == session
    assert until(lambda: bench.terminal.exit_code(session)) == 3
    assert bench.terminal.capture(session) == "last words"


def test_directory_environment_and_arguments_are_exactly_what_was_given(bench: Bench,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GARRISON_TEST_SECRET", "s")
    env = {"PATH": os.environ["PATH"], "PLAIN": "1", "QUOTES": "a'b\"c $HOME `id` #{pid} %H", "ENDS": "here;",
           "LINES": "one\ntwo;", "EMPTY": "", "SLASH": "x\\;", "UMLAUT": "äöü…", "LC_ALL": "C.UTF-8"}
    words = ["a b", "", "#{pane_id}", "$HOME", "'", ";", "x;", "\\;", "new-session", "-t", "~", "ü", "%7"]
    odd = bench.folder / "a b #{pid} %H 'c'"
    odd.mkdir()
    code = ("import json, os, sys; from pathlib import Path; "
            "print(json.dumps([os.getcwd(), dict(os.environ), sys.argv[2:]]), file=open(sys.argv[1], 'w'))")
    bench.terminal.open(NAME, [sys.executable, "-I", "-c", code, str(bench.folder / "told"), *words], env=env, cwd=odd,
                        log=bench.folder / "log")
    assert json.loads(bench.said("told")) == [str(odd), env, words]


def test_an_environment_too_long_for_one_message_arrives(bench: Bench) -> None:
    given = {"PATH": os.environ["PATH"], **{f"LONG_{number}": "x;" * 5000 for number in range(5)}}
    bench.open('echo "$LONG_4" > long', **given)
    assert bench.said("long") == "x;" * 5000
    assert not list((bench.folder.parent / "home" / "run").glob("pane-*"))


def test_output_can_be_read_while_it_runs_and_after_it_was_closed(bench: Bench) -> None:
    session = bench.open("echo begin; seq 1 300; echo 'ends here'; sleep 1000")
    until(lambda: "ends here" in bench.terminal.capture(session, 5))
    assert bench.terminal.capture(session, 3).split("\n")[-3:] == ["299", "300", "ends here"]
    bench.terminal.close(session)
    text = bench.shown(session)
    assert "begin" in text
    assert "ends here" in text


def test_find_matches_the_exact_name_and_marker(bench: Bench) -> None:
    names = ["orchestrator-a@r1", "orchestrator-ab@r1", "orchestrator-a@r10", "orchestrator-a.b@r1",
             "orchestrator-a_b@r1"]
    opened = {name: bench.open("sleep 1000", name, life=bench.life(name)) for name in names}
    assert {name: bench.terminal.find(name) for name in names} == opened
    assert len({session.session_id for session in opened.values()}) == len(names)
    assert sorted(session.name for session in bench.terminal.sessions()) == sorted(names)
    for other in ("orchestrator", "orchestrator-", "orchestrator-a", "=orchestrator-a@r1", "*", "$0"):
        assert bench.terminal.find(other) is None
    assert bench.terminal.find(NAME, bench.life(NAME)) == opened[NAME]
    assert bench.terminal.find(NAME, bench.life(NAME) + "0") is None
    bench.terminal.close(opened[NAME])
    assert bench.terminal.find(NAME) is None
    assert all(bench.terminal.is_alive(opened[name]) for name in names[1:])


def test_a_living_session_is_not_opened_again_and_a_dead_one_is_replaced(bench: Bench) -> None:
    first = bench.open("while ! test -e stop; do sleep 0.01; done")
    with pytest.raises(Refused, match="close it first"):
        bench.open("sleep 1000")
    (bench.folder / "stop").touch()
    until(lambda: not bench.terminal.is_alive(first))
    second = bench.open("sleep 1000")
    assert bench.terminal.is_alive(second)
    assert not bench.terminal.is_alive(first)
    bench.terminal.close(first)
    assert bench.terminal.is_alive(second)
    assert bench.terminal.find(NAME) == second


def test_close_ends_all_processes_and_is_idempotent(bench: Bench) -> None:
    session = bench.open("trap '' TERM HUP; setsid sh -c \"trap '' TERM HUP; echo \\$\\$ > kid; "
                         "while :; do sleep 0.05; done\" & echo $$ > main; while :; do sleep 0.05; done",
                         life=bench.life(NAME))
    found = [int(bench.said(name)) for name in ("main", "kid")]
    bench.terminal.close(session, grace=0.1)
    assert all(is_gone(pid) for pid in found)
    assert not bench.terminal.is_alive(session)
    bench.terminal.close(session)
    assert bench.terminal.find(NAME) is None


def test_leftovers_of_a_finished_program_do_not_keep_it_alive_and_end_with_close(bench: Bench) -> None:
    session = bench.open("setsid sh -c \"trap '' HUP TERM; echo \\$\\$ > kid; while :; do sleep 0.05; done\" & "
                         "while ! test -s kid; do :; done; exit 4", life=bench.life(NAME))
    kid = int(bench.said("kid"))
    until(lambda: not bench.terminal.is_alive(session))
    assert until(lambda: bench.terminal.exit_code(session)) == 4
    assert not is_gone(kid)
    bench.terminal.close(session, grace=0.1)
    assert is_gone(kid)


def test_close_of_a_session_with_our_own_marker_ends_no_sibling(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GARRISON_LIFE", bench.life("runner"))
    sibling = bench.open("sleep 1000", "orchestrator-b@r1", life=bench.life("runner"))
    session = bench.open("sh -c 'echo $$ > kid; sleep 1000; :' & sleep 1000", life=bench.life("runner"))
    kid = int(bench.said("kid"))
    bench.terminal.close(session)
    assert is_gone(kid)
    assert bench.terminal.is_alive(sibling)


def test_close_allows_a_graceful_end_and_a_killed_program_is_not_alive(bench: Bench) -> None:
    session = bench.open("trap 'echo bye > bye; exit 0' TERM; echo 1 > ready; while :; do sleep 0.01; done")
    bench.said("ready")
    bench.terminal.close(session, grace=20)
    assert bench.said("bye") == "bye"
    session = bench.open("echo $$ > pid; exec sleep 1000")
    pid = int(bench.said("pid"))
    processes.send(pid, processes.probe(pid).ticks, signal.SIGKILL)
    until(lambda: not bench.terminal.is_alive(session))
    assert until(lambda: bench.terminal.exit_code(session)) == -signal.SIGKILL


def test_eight_threads_open_at_once(bench: Bench) -> None:
    opened: list[TerminalSession] = []
    threads = [threading.Thread(target=lambda number=number: opened.append(
        bench.open(f"echo {number} > said{number}; sleep 1000", f"orchestrator-n{number}@r1"))) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(bench.said(f"said{number}") for number in range(8)) == [str(number) for number in range(8)]
    assert len({session.session_id for session in opened}) == 8
    assert {bench.terminal.find(f"orchestrator-n{number}@r1") for number in range(8)} == set(opened)


def test_sixteen_processes_at_once_open_and_a_second_terminal_finds_them(bench: Bench) -> None:
    home = bench.folder.parent / "home"

    def open_one(number: int) -> None:
        terminal, _ = choose_terminal(bench.terminal.kind, home)
        terminal.open(f"orchestrator-n{number}@r1", ["/bin/sleep", "1000"], env={}, cwd="/",
                      log=bench.folder / f"{number}.log")

    forking = multiprocessing.get_context("fork")
    started = [forking.Process(target=open_one, args=(number,)) for number in range(16)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * 16
    assert len(bench.terminal.sessions()) == 16
    assert all(bench.terminal.is_alive(session) for session in bench.terminal.sessions())


def test_opening_meets_shutting_down(bench: Bench) -> None:
    stop = threading.Event()

    def keep_shutting_down() -> None:
        while not stop.wait(0.001):
            bench.terminal.shutdown()

    thread = threading.Thread(target=keep_shutting_down)
    thread.start()
    try:
        for number in range(5):
            session = bench.open("sleep 1000", f"orchestrator-n{number}@r1")
            assert bench.terminal.is_alive(session)
            bench.terminal.close(session)
    finally:
        stop.set()
        thread.join()


@needs_tmux
def test_a_server_after_shutdown_ends_with_its_last_session(on_tmux: Bench) -> None:
    session = on_tmux.open("sleep 1000")
    server = int(session.server.partition(":")[0])
    on_tmux.terminal.shutdown()
    assert on_tmux.terminal.is_alive(session), "a session keeps its server"
    on_tmux.terminal.close(session, grace=0)
    until(lambda: is_gone(server))
    again = on_tmux.open("sleep 1000")
    assert on_tmux.terminal.is_alive(again)
    on_tmux.terminal.close(again, grace=0)


def test_without_a_server_there_are_no_sessions_and_what_cannot_start_makes_none(bench: Bench) -> None:
    nobody = TerminalSession(bench.terminal.kind, "", "$0", "%0", 2**22 + 1, NAME)
    assert bench.terminal.sessions() == []
    assert bench.terminal.find(NAME) is None
    assert not bench.terminal.is_alive(nobody)
    assert bench.terminal.capture(nobody) == ""
    bench.terminal.close(nobody)
    bench.terminal.shutdown()
    for argv, cwd in ((["/bin/sh"], bench.folder / "absent"), (["no-such-program"], bench.folder),
                      (["./none"], bench.folder)):
        with pytest.raises(GarrisonError, match="cannot start") as caught:
            bench.terminal.open(NAME, argv, env={"PATH": os.environ["PATH"]}, cwd=cwd, log=bench.folder / "log")
        assert "\n" not in str(caught.value)
    assert bench.terminal.sessions() == []


def test_the_users_own_tmux_variables_do_no_harm(bench: Bench, monkeypatch: pytest.MonkeyPatch,
                                                 tmp_path: Path) -> None:
    monkeypatch.setenv("TMUX", f"{tmp_path}/elsewhere,1,0")
    monkeypatch.setenv("TMUX_PANE", "%0")
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path / "absent"))
    session = bench.open("env > env; echo >> env; sleep 1000")
    assert "TMUX" not in bench.said("env")
    assert bench.terminal.is_alive(session)
    bench.terminal.close(session)
    assert bench.terminal.find(NAME) is None


def test_following_a_session_shows_its_output(bench: Bench) -> None:
    session = bench.open("while :; do echo tick; sleep 0.05; done")
    if bench.terminal.kind == "process":
        with pytest.raises(Refused, match="logs NODE -f"):
            bench.terminal.attach_argv(session)
        return
    if shutil.which("script") is None:
        pytest.skip("there is no script(1) to make a terminal for attach")
    words = " ".join(f"'{word}'" for word in bench.terminal.attach_argv(session))
    argv = ["script", "-qec", words, "/dev/null"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, start_new_session=True,
                          env={**os.environ, "TERM": "xterm", "TMUX": "/x,1,0"}) as process:
        seen = b""
        while b"tick" not in seen:
            chunk = os.read(process.stdout.fileno(), 4096)
            assert chunk, seen
            seen += chunk
        os.killpg(process.pid, signal.SIGKILL)
    assert bench.terminal.is_alive(session)


def test_a_fallback_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(choose_terminal("process", tmp_path)[0], ProcessTerminal)
    monkeypatch.setenv("PATH", str(tmp_path))
    terminal, note = choose_terminal("auto", tmp_path)
    assert isinstance(terminal, ProcessTerminal)
    assert "tmux" in note
    with pytest.raises(Refused, match="--terminal process"):
        choose_terminal("tmux", tmp_path)
    with pytest.raises(UsageError, match="screen"):
        choose_terminal("screen", tmp_path)


def test_only_a_tmux_of_3_2_or_newer_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is killed before it answers is asked again."""
    fake = tmp_path / "tmux"
    fake.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for version, served in (("tmux 3.1c", False), ("tmux 3.2", True), ("tmux next-3.6", True), ("tmux 2.9", False),
                            ("tmux master", False), ("", False)):
        fake.write_text(f"#!/bin/sh\necho '{version}'\n")
        assert bool(supported_version()) is served, version
    fake.write_text(f"#!/bin/sh\ntest -e '{tmp_path}/asked' || {{ : > '{tmp_path}/asked'; kill -USR1 $$; }}\n"
                    "echo tmux 3.4\n")
    assert supported_version() == "3.4"


@needs_tmux
def test_a_session_is_closed_in_the_terminal_that_has_it(tmp_path: Path) -> None:
    """The incarnation that opened it may have had another terminal than the one that closes it."""
    home = tmp_path / "home"
    opener = ProcessTerminal(home)
    session = opener.open(NAME, ["/bin/sleep", "1000"], env={"PATH": os.environ["PATH"]}, cwd=tmp_path,
                          log=tmp_path / "log")
    identity = Identity("0", "orchestrator", "a", "r1", "2026-01-01T00:00:00.000000Z", tmux=asdict(session))
    close_sessions(TmuxTerminal(home), identity, home)
    assert is_gone(session.pid) and opener.sessions() == []


def test_libtmux_is_loaded_only_for_a_tmux_command(tmp_path: Path) -> None:
    """It costs 50 ms of CPU, which a plain process and a home without a tmux server do not pay."""
    code = """
import sys
from pathlib import Path
from garrison.system.terminal_choice import choose_terminal
from garrison.system.tmux import TmuxTerminal
choose_terminal("process", Path(sys.argv[1]))[0].sessions()
choose_terminal("auto", Path(sys.argv[1]))
TmuxTerminal(Path(sys.argv[1])).sessions()
print("libtmux" in sys.modules)
"""
    output = subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], check=True, capture_output=True,
                            text=True).stdout
    assert output == "False\n"


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, b"[]", b'{"kind": "process"}'])
def test_a_damaged_record_of_a_process_prevents_neither_closing_nor_opening(tmp_path: Path, damage: bytes) -> None:
    """A runner died of it at each start until its node was parked."""
    bench = Bench(ProcessTerminal(tmp_path / "home"), tmp_path)
    path = tmp_path / f"home/run/plain/{NAME}.json"
    old = bench.open("sleep 1000")
    path.write_bytes(damage)
    with pytest.raises(RecordCorrupt):
        bench.terminal.check(NAME)
    assert bench.terminal.find(NAME) is None
    assert bench.terminal.sessions() == []
    bench.terminal.close(old)
    assert is_gone(old.pid)
    assert not path.exists()
    path.write_bytes(damage)
    new = bench.open("sleep 1000")
    assert bench.terminal.find(NAME) == new
    bench.terminal.close(new)
    assert is_gone(new.pid)


def test_a_process_terminal_has_no_keyboard(tmp_path: Path) -> None:
    terminal = ProcessTerminal(tmp_path)
    session = TerminalSession("process", "", "1:1", "", 1, NAME, 1)
    with pytest.raises(Refused, match="tmux"):
        terminal.send(session, "x")
    with pytest.raises(Refused, match="tmux"):
        terminal.attach_argv(session, write=True)


# ---------------------------------------------------------------------------------------------------- tmux alone


def decoy(socket: Path, *words: str) -> str:
    return subprocess.run(["tmux", "-S", str(socket), "-f", "/dev/null", *words], capture_output=True, text=True,
                          check=True, env={"PATH": os.environ["PATH"], "HOME": str(socket.parent)}).stdout


@needs_tmux
def test_the_server_has_an_empty_environment_and_not_the_users_configuration(
        on_tmux: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".tmux.conf").write_text(f"set -g remain-on-exit off\nrun-shell 'touch {tmp_path}/was-read'\n")
    for name, value in (("HOME", str(tmp_path)), ("XDG_CONFIG_HOME", str(tmp_path)), ("GARRISON_TEST_SECRET", "s")):
        monkeypatch.setenv(name, value)
    session = on_tmux.open("sleep 1000", SECRET="pane's own")
    server = int(session.server.split(":")[0])
    raw = Path(f"/proc/{server}/environ").read_bytes()
    assert {item.split(b"=")[0] for item in raw.strip(b"\0").split(b"\0")} <= {b"PATH", b"HOME", b"LANG", b"TERM", b""}
    for scope in (["-g"], ["-t", session.session_id]):
        shown = decoy(Path(session.socket), "show-environment", *scope)
        assert {line.split("=")[0] for line in shown.split("\n") if line} <= {"PATH", "HOME", "LANG", "TERM", "PWD"}
    assert os.readlink(f"/proc/{server}/cwd") == "/"  # noqa: PTH115
    assert Path(session.socket).parent.stat().st_mode & 0o077 == 0
    ended = on_tmux.open("exit 0", "orchestrator-b@r1")
    until(lambda: not on_tmux.terminal.is_alive(ended))
    assert on_tmux.terminal.find("orchestrator-b@r1") == ended
    assert not (tmp_path / "was-read").exists()


@needs_tmux
def test_foreign_sessions_on_the_users_server_and_on_ours_are_untouched(on_tmux: Bench, short: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    users = short / "users"
    users.mkdir(mode=0o700)
    monkeypatch.setenv("TMUX_TMPDIR", str(users))
    (users / f"tmux-{os.getuid()}").mkdir(mode=0o700)
    socket = users / f"tmux-{os.getuid()}" / "default"
    for name in (NAME, "orchestrator-ab@r1"):
        decoy(socket, "new-session", "-d", "-s", name, "sleep 1000")
    server = int(decoy(socket, "display-message", "-p", "#{pid}"))
    try:
        session = on_tmux.open("sleep 1000")
        decoy(Path(session.socket), "new-session", "-d", "-s", "orchestrator-ab@r1", "sleep 1000")
        assert on_tmux.terminal.find("orchestrator-ab@r1") is None
        on_tmux.terminal.close(session)
        on_tmux.terminal.close(session)
        on_tmux.terminal.shutdown()
        assert decoy(Path(session.socket), "list-sessions", "-F", "#{session_name}") == "orchestrator-ab@r1\n"
        assert decoy(socket, "list-sessions", "-F", "#{session_name}") == f"{NAME}\norchestrator-ab@r1\n"
        decoy(Path(session.socket), "kill-session", "-t", "=orchestrator-ab@r1")
    finally:
        decoy(socket, "kill-server")
    until(lambda: is_gone(server))


@needs_tmux
def test_ids_of_a_dead_server_are_not_valid_on_the_next(on_tmux: Bench) -> None:
    first = on_tmux.open("echo $$ > pid; sleep 1000", life=on_tmux.life(NAME))
    on_tmux.said("pid")
    server = int(first.server.split(":")[0])
    processes.send(server, processes.probe(server).ticks, signal.SIGKILL)
    until(lambda: is_gone(server))
    assert not on_tmux.terminal.is_alive(first)
    assert on_tmux.terminal.sessions() == []
    second = on_tmux.open("sleep 1000")
    assert (second.session_id, second.pane_id) == (first.session_id, first.pane_id)
    assert not on_tmux.terminal.is_alive(first)
    on_tmux.terminal.close(first)
    assert on_tmux.terminal.is_alive(second)
    process_control.kill_tree(None, on_tmux.life(NAME), grace=0)


@needs_tmux
def test_typed_text_arrives(on_tmux: Bench) -> None:
    session = on_tmux.open("read -r a; read -r b; echo \"$a|$b\" > typed; sleep 1000")
    on_tmux.terminal.send(session, "it's #{pid} $HOME;\nEnter " + "x" * 3000 + ";\n")
    assert on_tmux.said("typed") == "it's #{pid} $HOME;|Enter " + "x" * 3000 + ";"
    on_tmux.terminal.close(session)
    with pytest.raises(Refused, match="nothing was typed"):
        on_tmux.terminal.send(session, "x")


@needs_tmux
def test_a_reader_leaves_the_size_of_the_window_and_a_writer_sets_it(on_tmux: Bench) -> None:
    session, terminal = on_tmux.open("sleep 1000"), TmuxTerminal(on_tmux.folder.parent / "home")
    assert {"-r", session.session_id} <= set(terminal.attach_argv(session))
    assert "-r" not in terminal.attach_argv(session, write=True)

    def size() -> str:
        return terminal.ask(session, "#{window_width}x#{window_height}")

    first = size()
    for write, columns, expected in ((False, 44, first), (True, 55, "55x11"), (False, 44, "55x11")):
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 12, columns, 0, 0))
        with subprocess.Popen(terminal.attach_argv(session, write=write), stdin=slave, stdout=slave, stderr=slave,
                              env={**os.environ, "TERM": "xterm"}, start_new_session=True) as client:
            os.close(slave)
            until(lambda width=str(columns): width in terminal.list_clients(session, "#{client_width}"))
            until(lambda wanted=expected: size() == wanted)
            client.kill()
        os.close(master)
        until(lambda: not terminal.list_clients(session, "#{client_width}"))
        assert size() == expected


@needs_tmux
def test_a_home_with_a_long_path_gets_a_short_socket_that_others_find(
        tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, runtime = tmp_path / ("long" * 25), short
    home.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    first = TmuxTerminal(home)
    session = first.open(NAME, ["/bin/sleep", "1000"], env={}, cwd="/", log=tmp_path / "log")
    assert Path(session.socket).is_relative_to(runtime)
    assert Path(session.socket).parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    second = TmuxTerminal(home)
    assert second.find(NAME) == session
    second.close(session)
    second.shutdown()
    until(lambda: is_gone(int(session.server.split(":")[0])))
    assert list(runtime.iterdir()) == []
    again = first.open(NAME, ["/bin/true"], env={}, cwd="/", log=tmp_path / "log")
    assert Path(again.socket).parent.is_dir()
    first.close(again)
    first.shutdown()


def test_a_foreign_socket_directory_is_refused(tmp_path: Path, short: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    run, runtime = tmp_path / ("long" * 25), short
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    folder = socket_path(run).parent
    folder.chmod(0o755)
    with pytest.raises(GarrisonError, match="0700"):
        socket_path(run)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(GarrisonError, match="0700"):
        socket_path(run)


def test_names_that_tmux_would_interpret_are_refused(tmp_path: Path) -> None:
    """An argument that ends in a semicolon would end tmux's command: it is escaped."""
    for name in ("", "a b", "-a", "=a", "a\n", "a#{pid}", "$1"):
        with pytest.raises(UsageError, match="session name"):
            TmuxTerminal(tmp_path).open(name, ["/bin/true"], env={}, cwd="/", log=tmp_path / "log")
    assert [escape(word) for word in ("a", "a;", ";", "a;b", "a\\;", "")] == ["a", "a\\;", "\\;", "a;b", "a\\\\;", ""]
