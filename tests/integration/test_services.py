"""Services of nodes and gates: each with its own data, started again when they end, and gone with their users."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from garrison.config import read_config
from garrison.errors import Refused, UsageError
from garrison.sandbox import network, service_keeper, services
from garrison.sandbox.network import NetworkUser
from garrison.sandbox.place import Mode, Rights
from garrison.sandbox.proxy.allowed_hosts import read_refused
from garrison.sandbox.services import Phase, ServiceUser, provide, read_state
from garrison.system import processes
from garrison.system.processes import ProcessId
from garrison.system.unix_socket import short_path
from sandbox_support import missing
from support import is_gone, wait_for

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)), None)
REDIS = """
[services.cache]
command = "redis-server --port {port} --dir {data}"
ready = "redis-cli -p {port} ping"
port = 6379
"""
COUNTER = r"""
import os, pathlib, socket, sys
file = pathlib.Path(sys.argv[1], "count")
with socket.create_server(("127.0.0.1", int(sys.argv[2]))) as listener:
    while True:
        end, _ = listener.accept()
        with end:
            word = end.recv(100).decode().strip()
            if word == "die": print("it was told to die", flush=True); os._exit(3)
            if word == "look":
                reached = [path for path in sys.argv[3:] if os.path.exists(path)]
                try: socket.create_connection(("127.0.0.1", 61280), 1); reached.append("proxy")
                except OSError: pass
                end.sendall(f"{reached} {os.getuid()}".encode()); continue
            if word:
                file.write_text(str(int(file.read_text()) + 1)); end.sendall(file.read_text().encode())
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with a service that counts its connections; its template starts at 10."""
    made = tmp_path / "home"
    made.mkdir()
    (tmp_path / "counter.py").write_text(COUNTER)
    program = tmp_path / "counter.py"
    (made / "config.toml").write_text(f"""
[sandbox]
read = ["{program}", "{sys.prefix}"]

[services.counter]
command = "{sys.executable} {program} {{data}} {{port}} {made}/config.toml {tmp_path}/templates {tmp_path}/b"
template = "echo made >> {{data}}/made; echo 10 > {{data}}/count"
ready = "true"
port = 4444
env = {{ COUNTER = "127.0.0.1:{{port}}" }}
""")
    return made


@contextlib.contextmanager
def provided(home: Path, tmp_path: Path, name: str, **more: object) -> Iterator[Path]:
    """Yield the folder of a user's first service."""
    own = processes.probe(os.getpid())
    user = ServiceUser("r1", tmp_path / name / "services", tmp_path / "run", tmp_path / "templates",
                       **{"process": own.id, **more})
    deadline = time.monotonic() + 60
    while True:
        try:
            [forward] = provide(home, user, os.environ, tmp_path / name / "told.json")
            break
        except services.Shortage:
            assert time.monotonic() < deadline
    try:
        yield Path(forward.socket).parent
    finally:
        services.stop(user.folder)
        services.stop(user.run_folder)


def say(folder: Path, word: str = "count") -> str:
    with socket.socket(socket.AF_UNIX) as end, short_path(folder / services.SOCKET) as name:
        end.settimeout(20)
        end.connect(name)
        end.sendall(word.encode())
        return end.makefile().read()


def keeper(folder: Path) -> ProcessId:
    state = read_state(folder)
    return ProcessId(state.pid, state.ticks)


def test_each_user_has_its_own_data_at_the_port_and_the_template_runs_once(home: Path, tmp_path: Path) -> None:
    with provided(home, tmp_path, "a") as one, provided(home, tmp_path, "b") as other:
        assert [say(one), say(one), say(other)] == ["11", "12", "11"]
        assert (one / "data/made").read_text() == "made\n" == (other / "data/made").read_text()
        assert len(list((tmp_path / "templates").glob("*/data"))) == 1
        reached, uid = say(one, "look").rsplit(" ", 1)
        assert reached == "[]" and uid == (str(service_keeper.UID) if os.geteuid() == 0 else str(os.geteuid()))
        assert ask_inside(home, tmp_path, one) == "13"
        keepers = [keeper(one), keeper(other)]
    assert not one.exists() and not other.exists()
    assert not any(processes.is_running(each.pid, each.ticks) for each in keepers)
    assert services.variables(home) == {"COUNTER": "127.0.0.1:4444"}


def ask_inside(home: Path, tmp_path: Path, folder: Path) -> str:
    """Return what a program in an agent's network gets from the service at its port."""
    (tmp_path / "runs/r1").mkdir(parents=True)
    forward = services.Forward("127.0.0.1", 4444, socket=str(folder / services.SOCKET))
    user = NetworkUser(home, "r1", "a", 1, tmp_path / "runs/r1", run_directory=tmp_path / "runs/r1",
                       forwards=(forward,))
    place = network.prepare(Rights(hosts=()), Mode.BUBBLEWRAP, {"PATH": os.environ["PATH"]}, user)
    program = ("import socket; end = socket.create_connection(('127.0.0.1', 4444), 20); end.sendall(b'x'); "
               "print(end.recv(10).decode())")
    with contextlib.closing(place):
        return subprocess.run([*place.entry, sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
                              check=False).stdout.strip()


@pytest.mark.traced
def test_a_service_that_ends_is_restarted_twice_then_reported_with_its_last_line(home: Path, tmp_path: Path) -> None:
    with provided(home, tmp_path, "a") as folder:
        for ends in (1, 2, 3):
            with contextlib.suppress(OSError):
                say(folder, "die")
            wait_for("its end is noticed", lambda ends=ends: read_state(folder).ends == ends and (
                ends == 3 or read_state(folder).phase is Phase.READY))
        assert read_state(folder).phase is Phase.FAILED
        with provided(home, tmp_path, "a"):
            [told] = read_refused(tmp_path / "a/told.json")
        assert (told.place, told.reason) == ("service counter",
                                             "its command has ended 3 times: it was told to die")


def test_a_killed_keeper_takes_the_service_along_and_the_next_one_has_its_data(home: Path, tmp_path: Path) -> None:
    with provided(home, tmp_path, "a") as folder:
        assert say(folder) == "11"
        before = keeper(folder)
        below = processes.child_pids(before.pid)
        os.kill(before.pid, signal.SIGKILL)
        wait_for("it is dead", lambda: all(map(is_gone, (before.pid, *below))))
        user = user_of(tmp_path, folder)
        services.tend(home, user, os.environ)  # as the keeper of an agent's network does
        wait_for("it is back", lambda: read_state(folder).phase is Phase.READY and keeper(folder) != before)
        services.tend(home, user, os.environ)
        assert say(folder) == "12"


STEPS = ("locked", "listening", "template", "templated", "kept", "copied", "data", "started", "ready")


@pytest.mark.parametrize("step", STEPS)
def test_a_keeper_that_is_killed_at_any_step_leaves_nothing_and_the_next_one_works(
        step: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fired = tmp_path / "fired"
    fired.mkdir()
    monkeypatch.setenv("GARRISON_FAILPOINT", f"service:{step}")
    monkeypatch.setenv("GARRISON_FAILPOINT_DIR", str(fired))
    with provided(home, tmp_path, "a") as folder:
        def is_back() -> bool:  # killed once it was ready, it is started again by the keeper of the agent's network
            services.tend(home, user_of(tmp_path, folder), os.environ)
            with contextlib.suppress(OSError):
                return bool(list(fired.iterdir()) and say(folder, "look"))
            return False

        wait_for("it is back", is_back)
        time.sleep(0.2)  # what ends with `ready` would have ended
        assert say(folder) == "11" and (folder / "data/made").read_text() == "made\n"
        assert read_state(folder).ends == 0
        last = keeper(folder)
    wait_for("nothing of it is left", lambda: not of_services(home))
    assert is_gone(last.pid) and not folder.exists()
    assert not list((tmp_path / "templates").glob("*/*.part"))


def test_a_keeper_that_is_killed_while_it_ends_leaves_what_the_next_stop_removes(
        home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GARRISON_FAILPOINT", "service:stopped")
    with provided(home, tmp_path, "a") as folder:
        assert say(folder) == "11"
    wait_for("nothing of it is left", lambda: not of_services(home))
    assert not folder.exists()


def user_of(tmp_path: Path, folder: Path) -> ServiceUser:
    own = processes.probe(os.getpid())
    return ServiceUser("r1", folder.parent, tmp_path / "run", tmp_path / "templates", process=own and own.id)


def of_services(home: Path) -> list[int]:
    """Return the living processes of the services of a home, and those below them."""
    return [each.pid for each in processes.list_processes() if (each.marker or "").startswith(f"{home}:")
            or str(home.parent) in " ".join(map(os.fsdecode, processes.read_argv(each.pid)))]


def test_a_service_ends_with_the_last_of_its_users(home: Path, tmp_path: Path) -> None:
    user = subprocess.Popen(["sleep", "600"])
    found = processes.probe(user.pid)
    with provided(home, tmp_path, "a", process=found.id, linger=1.0) as folder:
        gate = subprocess.Popen(["sleep", "600"])
        later = processes.probe(gate.pid)
        services.use_until_end_of(folder.parent, later.id)
        user.kill()
        user.wait()
        time.sleep(1.6)
        assert say(folder) == "11"  # the gate that outlives its processor has it still
        gate.kill()
        gate.wait()
        last = keeper(folder)
        wait_for("it ends", lambda: not processes.is_running(last.pid, last.ticks) and not folder.exists())


def test_impossible_services_are_refused_at_the_launch(home: Path) -> None:
    services.check(home, Mode.BUBBLEWRAP)
    with pytest.raises(Refused, match="needs bubblewrap"):
        services.check(home, Mode.NONE)
    config = home / "config.toml"
    text = config.read_text()
    config.write_text(text.replace("[sandbox]", "[sandbox]\nhost_ports = [4444]"))
    with pytest.raises(Refused, match=r"port 4444 of \[services.counter\] is also used by host_ports"):
        services.check(home, Mode.BUBBLEWRAP)
    for line in ("command = ''", "per = 'gate'"):
        config.write_text(f"[services.db]\nport = 1\n{line}")
        with pytest.raises(UsageError):
            read_config(home).services()


@pytest.mark.skipif(POSTGRES is None or shutil.which("psql") is None,
                    reason="no PostgreSQL here: apt-get install postgresql")
def test_the_servers_of_debian_serve_four_nodes_side_by_side(home: Path, tmp_path: Path) -> None:
    """Also with Redis, where that is installed."""
    cache = shutil.which("redis-server") is not None
    (home / "config.toml").write_text(f"""
[services.db]
command = "{POSTGRES} -D {{data}} -p {{port}} -k {{data}} -c unix_socket_directories=/tmp"
template = "{POSTGRES.with_name('initdb')} -D {{data}} -U postgres --auth trust --no-sync"
ready = "{POSTGRES.with_name('pg_isready')} -h 127.0.0.1 -p {{port}}"
port = 5432
""" + (REDIS if cache else ""))
    own = processes.probe(os.getpid())
    keep, kept = ('redis-cli set key "$0" >/dev/null', "$(redis-cli get key)") if cache else (":", "$0")
    script = f"""for round in 1 2 3; do
        psql -qh 127.0.0.1 -U postgres -c 'drop table if exists t' -c 'create table t(x int)' \\
             -c "insert into t values ($0)"
        {keep}
        test "$(psql -qtAh 127.0.0.1 -U postgres -c 'select sum(x) from t') {kept}" = "$0 $0" || exit 1
    done"""

    def node(number: int) -> str:
        user = ServiceUser("r1", tmp_path / f"{number}/services", tmp_path / "run", tmp_path / "templates",
                           process=own.id)
        while True:
            try:
                forwards = provide(home, user, os.environ)
                break
            except services.Shortage:
                continue
        folder = tmp_path / f"runs/{number}"
        folder.mkdir(parents=True)
        own_network = NetworkUser(home, f"r{number}", "a", 1, folder, run_directory=folder, forwards=forwards)
        place = network.prepare(Rights(hosts=()), Mode.BUBBLEWRAP, {"PATH": os.environ["PATH"]}, own_network)
        try:
            done = subprocess.run([*place.entry, "sh", "-c", script, str(number)], capture_output=True, text=True,
                                  timeout=120, check=False)
            return "" if done.returncode == 0 else done.stderr
        finally:
            place.close()
            services.stop(user.folder)

    with ThreadPoolExecutor(1) as first:
        assert first.submit(node, 9).result() == ""
    with ThreadPoolExecutor(4) as four:
        assert list(four.map(node, range(1, 5))) == [""] * 4
