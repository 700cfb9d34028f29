"""The proxy as a process of a run: started when it is needed, replaced when it dies, gone with its users."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from garrison.errors import Refused, UsageError
from garrison.records import costs
from garrison.sandbox import network
from garrison.sandbox.network import NetworkPlace, NetworkUser
from garrison.sandbox.place import Mode, Network, Rights
from garrison.sandbox.proxy import registration
from garrison.sandbox.proxy.allowed_hosts import HostRights, describe_permission, refused_in_attempt
from garrison.sandbox.proxy.forwards import forwards_of, hosts_mount, parse_host_port
from garrison.system import processes
from proxy_support import Web, plain
from support import wait_for

ANSWER = json.dumps({"type": "message", "id": "m1", "model": "claude-haiku-4",
                     "usage": {"input_tokens": 11, "output_tokens": 3}}).encode()
ALLOW = Rights(network=Network.ALLOW, hosts=("127.0.0.1:*",))
CALL = """
import os, sys, urllib.request
url, key = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", os.environ["ANTHROPIC_API_KEY"]
request = urllib.request.Request(url, b"{}", {"x-api-key": key})
print(urllib.request.urlopen(request, timeout=20).read().decode())
"""


def _refusal() -> str | None:
    try:
        namespace = network.create()
    except Refused as refused:
        return str(refused)
    namespace.listener.close()
    namespace.close()
    return None


needs_namespaces = pytest.mark.skipif(_refusal() is not None, reason=str(_refusal()))


@pytest.fixture
def api() -> Iterator[Web]:
    with Web(plain(ANSWER)) as web:
        yield web


@pytest.fixture
def user(tmp_path: Path) -> NetworkUser:
    folder = tmp_path / "runs" / "r1" / "nodes" / "a" / "1"
    folder.mkdir(parents=True)
    return NetworkUser(tmp_path, "r1", "a", 1, folder)


@contextlib.contextmanager
def prepared(user: NetworkUser, api: Web, mode: Mode = Mode.BUBBLEWRAP, rights: Rights = ALLOW, *,
             is_lazy: bool = False) -> Iterator[tuple[NetworkPlace, dict[str, str]]]:
    env = {"PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": "sk-real", "ANTHROPIC_BASE_URL": api.url}
    place = network.prepare(rights, mode, env, user, is_lazy=is_lazy)
    try:
        yield place, place.apply(env)
    finally:
        place.close()


def run(place: NetworkPlace, env: dict[str, str], program: str = CALL) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*place.entry, sys.executable, "-c", program], env=env, capture_output=True, text=True,
                          timeout=60, check=False)


def preparing(user: NetworkUser, api: Web, mode: str) -> str:
    """Return Python that prepares the network of a user."""
    return f"""
import json, os, subprocess, sys, time
from pathlib import Path
from garrison.sandbox import network
from garrison.sandbox.place import Mode, Network, Rights
from garrison.system.processes import ProcessId
env = {{"PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": "sk-real", "ANTHROPIC_BASE_URL": "{api.url}"}}
user = network.NetworkUser(Path("{user.home}"), "r1", "a", 1, Path("{user.folder}"))
place = network.prepare(Rights(network=Network.ALLOW), Mode.{mode}, env, user, is_lazy=False)
"""


def is_running(place_process: processes.ProcessId | None) -> bool:
    return processes.is_running(place_process.pid, place_process.ticks)


def wait_until_ended(process: processes.ProcessId | None, seconds: float) -> None:
    wait_for("the proxy ends", lambda: not is_running(process), seconds)


@needs_namespaces
def test_a_program_in_a_namespace_calls_the_api_with_a_key_that_it_never_has(api: Web, user: NetworkUser) -> None:
    with prepared(user, api) as (place, env):
        assert "sk-real" not in str(env)
        done = run(place, env)
        assert json.loads(done.stdout)["id"] == "m1", done.stderr
        assert api.seen[0].headers["x-api-key"] == "sk-real"
        [(_, node, path)] = costs.usage_files(user.home, "r1")
        assert (node, costs.total(costs.read_usage(path)).input) == ("a", 11)
        assert stat.S_IMODE((user.run_folder / "proxy.sock").stat().st_mode) == 0o600
        environ = Path(f"/proc/{place.process.pid}/environ").read_bytes() if place.process else b""
        assert b"sk-real" not in environ
        place.read_keys = lambda: {"ANTHROPIC_API_KEY": "sk-renewed", "ANTHROPIC_BASE_URL": api.url}
        place.keep()
        assert json.loads(run(place, env).stdout)["id"] == "m1"
        assert api.seen[1].headers["x-api-key"] == "sk-renewed"


@needs_namespaces
def test_the_namespace_has_nothing_but_the_proxy(api: Web, user: NetworkUser) -> None:
    host, port = "127.0.0.1", api.port
    direct = f"import socket; socket.create_connection(({host!r}, {port}), timeout=5)"
    assert subprocess.run([sys.executable, "-c", direct], check=False).returncode == 0, "outside it is reached"
    with prepared(user, api) as (place, env):
        done = run(place, env, direct)
        assert "refused" in done.stderr.lower()
        done = run(place, env, "import socket; socket.create_connection(('93.184.215.14', 80), timeout=5)")
        assert "unreachable" in done.stderr.lower()
        done = run(place, env, f"import urllib.request; print(urllib.request.urlopen('{api.url}', timeout=5).status)")
        assert "refused" in done.stderr.lower(), "no_proxy: loopback is the program's own"


@needs_namespaces
def test_under_landlock_no_network_means_an_own_namespace(user: NetworkUser) -> None:
    """Landlock itself restricts TCP, not UDP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(1)
        program = ("import socket; s = socket.socket(type=socket.SOCK_DGRAM); "
                   f"s.sendto(b'leak', ('127.0.0.1', {receiver.getsockname()[1]}))")
        subprocess.run([sys.executable, "-c", program], check=True)
        assert receiver.recv(10) == b"leak", "outside it arrives"
        place = network.prepare(Rights(network=Network.NONE), Mode.LANDLOCK, {}, user)
        with contextlib.closing(place):
            assert place.process is None
            subprocess.run([*place.entry, sys.executable, "-c", program], check=False)
            with pytest.raises(TimeoutError):
                receiver.recv(10)


@needs_namespaces
def test_three_programs_listen_on_the_same_port(api: Web, user: NetworkUser) -> None:
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(prepared(user, api)) for _ in range(3)]
        assert len({place.process for place, _ in places}) == 1, "one proxy a run"
        held = [stack.enter_context(subprocess.Popen(
            [*place.entry, sys.executable, "-c", "import socket, sys; s = socket.create_server(('127.0.0.1', 3000)); "
             "print('up', flush=True); sys.stdin.read()"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True)) for place, env in places]
        for child in held:
            assert child.stdout.readline() == "up\n"
        for child in held:
            child.kill()


@needs_namespaces
def test_works_without_the_right_to_make_a_namespace_directly(api: Web, user: NetworkUser) -> None:
    program = f"""{preparing(user, api, "BUBBLEWRAP")}
assert any("--user" in word for word in place.entry), place.entry
print(subprocess.run([*place.entry, sys.executable, "-c", {CALL!r}], env=place.apply(env), text=True))
place.close()
"""
    done = subprocess.run(["setpriv", "--bounding-set", "-sys_admin,-net_admin", "--inh-caps", "-all", sys.executable,
                           "-c", program], capture_output=True, text=True, timeout=60, check=False)
    if "not allowed" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert '"id": "m1"' in done.stdout, done.stdout + done.stderr


@needs_namespaces
def test_a_killed_proxy_is_back_within_a_second_and_its_listeners_with_it(api: Web, user: NetworkUser) -> None:
    with prepared(user, api) as (place, env), prepared(user, api) as (other, other_env):
        first = place.process
        began = time.monotonic()
        os.kill(first.pid, signal.SIGKILL)
        wait_until_ended(first, 5)
        assert place.keep()
        assert other.keep()
        took = time.monotonic() - began
        assert not place.keep()
        assert place.process == other.process != first
        for where, variables in ((place, env), (other, other_env)):
            assert run(where, variables).returncode == 0
        assert took < 5, f"{took:.2f} s"  # 0.2 s on an idle machine


@needs_namespaces
def test_a_stopped_proxy_is_continued_by_its_users_and_by_the_next_one(api: Web, user: NetworkUser) -> None:
    """Regression: a stopped proxy blocked every agent of the run until it was continued."""
    with prepared(user, api) as (place, env):
        processes.send(place.process.pid, place.process.ticks, signal.SIGSTOP)
        with subprocess.Popen([*place.entry, sys.executable, "-c", CALL], env=env, stdout=subprocess.PIPE) as child:
            def is_answered() -> bool:
                assert not place.keep(), "the proxy lives: there is no need to start one"
                return child.poll() is not None

            wait_for("the call is answered", is_answered, 15)
            assert child.poll() == 0
        processes.send(place.process.pid, place.process.ticks, signal.SIGSTOP)
        with prepared(user, api) as (other, other_env):
            assert other.process == place.process
            assert run(other, other_env).returncode == 0


@needs_namespaces
def test_a_request_that_finds_no_proxy_waits_for_the_next(api: Web, user: NetworkUser) -> None:
    with prepared(user, api) as (place, env):
        os.kill(place.process.pid, signal.SIGKILL)
        wait_until_ended(place.process, 5)
        with subprocess.Popen([*place.entry, sys.executable, "-c", CALL], env=env, stdout=subprocess.PIPE) as child:
            time.sleep(0.5)
            assert child.poll() is None
            assert place.keep()
            assert child.wait(20) == 0


@needs_namespaces
def test_it_is_started_by_the_first_connection(api: Web, user: NetworkUser) -> None:
    with prepared(user, api, is_lazy=True) as (place, env):
        assert not place.keep()
        assert (place.process, list(user.run_folder.glob("proxy.*"))) == (None, [])
        with subprocess.Popen([*place.entry, sys.executable, "-c", CALL], env=env, stdout=subprocess.PIPE) as child:
            assert select.select([place.unserved], [], [], 20)[0]
            assert place.keep()
            assert child.wait(20) == 0
        assert is_running(place.process)
        assert place.unserved is None


def test_it_ends_after_its_last_user(api: Web, user: NetworkUser) -> None:
    with prepared(user, api, Mode.NONE) as (place, _):
        process = place.process
        time.sleep(1.2)
        assert is_running(process)
    wait_until_ended(process, 10)
    assert not (user.run_folder / "proxy.sock").exists()


SLOW = """
import socket, sys, time
from pathlib import Path
def look_up(*words, **options):
    Path(sys.argv[1], "asked").touch()
    time.sleep(40)
socket.getaddrinfo = look_up
from garrison.sandbox.proxy.process import main
main()
"""


def test_it_ends_although_a_name_server_does_not_answer(api: Web, user: NetworkUser) -> None:
    """Regression: it stayed until its look-ups ended."""
    with subprocess.Popen([sys.executable, "-c", SLOW, str(user.run_folder), str(user.home)]) as proxy:
        wait_for("the proxy listens", (user.run_folder / "proxy.sock").exists, 15)
        rights = Rights(network=Network.ALLOW, hosts=("slow.example",))
        with prepared(user, api, Mode.NONE, rights) as (place, env):
            assert place.process is not None and place.process.pid == proxy.pid
            run(place, env, "import urllib.request; urllib.request.urlopen('http://slow.example', timeout=0.5)")
            assert (user.run_folder / "asked").exists()
        assert proxy.wait(15) == 0


def test_a_listener_outlives_its_user_while_the_process_lives_that_it_is_for(api: Web, user: NetworkUser) -> None:
    with subprocess.Popen(["sleep", "100"]) as sleeper:
        found = processes.probe(sleeper.pid)
        program = f"""{preparing(user, api, "NONE")}
place.serve_until_end_of(ProcessId({found.pid}, {found.ticks}))
print(json.dumps([place.process.pid, place.process.ticks, place.apply(env)]), flush=True)
os._exit(9)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        pid, ticks, env = json.loads(done.stdout)
        time.sleep(1.7)  # longer than a proxy stays without a user
        assert run(NetworkPlace(), env).returncode == 0
        sleeper.kill()
    wait_until_ended(processes.ProcessId(pid, ticks), 10)


def test_it_ends_when_its_user_is_killed(api: Web, user: NetworkUser) -> None:
    program = f"""{preparing(user, api, "NONE")}
print(place.process.pid, place.process.ticks, flush=True)
time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        pid, ticks = map(int, child.stdout.readline().split())
        child.kill()
    wait_until_ended(processes.ProcessId(pid, ticks), 10)


def test_without_a_namespace_the_key_of_another_user_opens_nothing(api: Web, user: NetworkUser) -> None:
    with prepared(user, api, Mode.NONE) as (place, env):
        assert place.entry == ()
        assert run(place, env).returncode == 0
        done = run(place, {**env, "ANTHROPIC_API_KEY": "sk-ant-api03-garrison-guess"})
        assert "401" in done.stderr


def test_a_long_home_has_a_socket_too(api: Web, tmp_path: Path) -> None:
    home = tmp_path / ("long" * 20) / ("longer" * 10)
    folder = home / "runs" / "r1" / "nodes" / "a" / "1"
    folder.mkdir(parents=True)
    with prepared(NetworkUser(home, "r1", "a", 1, folder), api, Mode.NONE) as (place, env):
        assert run(place, env).returncode == 0


def test_a_proxy_that_cannot_start_is_refused_in_one_line(user: NetworkUser) -> None:
    (user.run_folder / "proxy.lock").mkdir()
    with pytest.raises(Refused, match="the proxy of run r1 does not start"):
        network.prepare(ALLOW, Mode.NONE, {}, user, is_lazy=False, start_seconds=0.3)


def test_nothing_is_started_where_nothing_is_needed(user: NetworkUser) -> None:
    env = {"ANTHROPIC_API_KEY": "sk-real", "HOME": "/"}
    for rights, mode in ((Rights(network=Network.OPEN), Mode.NONE), (Rights(network=Network.NONE), Mode.NONE)):
        place = network.prepare(rights, mode, env, user)
        assert (place.apply(env), place.entry, place.process) == (env, (), None)
    place = network.prepare(Rights(network=Network.NONE), Mode.BUBBLEWRAP, env, user)
    assert place.apply(env) == {"HOME": "/"}, "a key is of no use without a network"
    assert network.prepare(Rights(network=Network.OPEN), Mode.BUBBLEWRAP, {"HOME": "/"}, user).process is None


def test_a_malformed_host_is_refused(user: NetworkUser) -> None:
    with pytest.raises(UsageError, match=r"http://pypi\.org"):
        network.prepare(Rights(network=Network.ALLOW, hosts=("http://pypi.org",)), Mode.NONE, {}, user)


def test_a_program_below_a_process_of_the_run_cannot_register_a_listener(api: Web, user: NetworkUser) -> None:
    """As an agent would that sees the control socket: one under Landlock, or without a sandbox."""
    program = f"""
import socket
from pathlib import Path
from garrison.sandbox.proxy import registration
given = registration.Registration("r1", "a", 1, "{user.folder}", ("private *:*",))
with registration.connect(Path("{user.run_folder}")) as control, socket.create_server(("127.0.0.1", 0)) as own:
    control.settimeout(10)
    socket.send_fds(control, [given.encode()], [own.fileno()])
    print(control.recv(16))
"""
    with prepared(user, api, Mode.NONE):
        def register() -> str:
            return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                                  timeout=30).stdout

        assert register() != "b''\n", "outside of the run's processes it is a user's"
        this = processes.probe(os.getpid())
        folder = user.home / "identities"
        folder.mkdir()
        (folder / "orchestrator-a@r1.json").write_text(json.dumps({"pid": this.pid, "start_ticks": this.ticks}))
        assert register() in ("b''\n", "")
        with prepared(user, api, Mode.NONE) as (place, env):  # the process itself may
            assert run(place, env).returncode == 0


def test_a_malformed_message_to_the_control_socket_ends_nothing(api: Web, user: NetworkUser) -> None:
    with prepared(user, api, Mode.NONE) as (place, env):
        for message in (b"nonsense", b"{}", b""):
            with registration.connect(user.run_folder) as control, socket.socket() as some:
                socket.send_fds(control, [message], [some.fileno()])
        assert run(place, env).returncode == 0
        assert is_running(place.process)


ECHO = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as end:
    end.sendall(b"hello"); end.shutdown(socket.SHUT_WR)
    print(end.makefile().read())
"""


@contextlib.contextmanager
def upper() -> Iterator[int]:
    """Yield the port of a server of this machine that answers in capitals."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as end:
                        end.sendall(end.recv(100).upper())

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@needs_namespaces
@pytest.mark.parametrize("network_", [Network.ALLOW, Network.NONE])
def test_chosen_ports_of_this_machine_are_reached_others_recorded_once(user: NetworkUser, network_: Network) -> None:
    env = {"PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": "sk-real"}
    with upper() as open_port, upper() as other:
        rights = Rights(network=network_, hosts=(), host_ports=(("127.0.0.1", open_port), ("127.0.0.1", 1),
                                                                 ("8.8.8.8", open_port)))
        place = network.prepare(rights, Mode.BUBBLEWRAP, env, user)
        try:
            def ask(host: str, port: int) -> str:
                words = [*place.entry, sys.executable, "-c", ECHO, host, str(port)]
                return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout.strip()

            assert ask("127.0.0.1", open_port) == "HELLO"
            assert ask("127.0.0.1", other) == ask("127.0.0.1", other) == ask("127.0.8.1", open_port) == ""
            place.keep()
            assert "sk-real" not in str(place.apply(env))
            refused = [(host.place, host.port) for host in refused_in_attempt(user.folder)]
            assert (f"127.0.0.1:{other}", other) in refused and ("127.0.0.1:1", 1) not in refused
            assert f"127.0.0.1:{open_port}" not in dict(refused) and (f"8.8.8.8:{open_port}", 0) in refused
            hint = describe_permission(refused_in_attempt(user.folder), HostRights(host_ports=rights.host_ports))
            assert f'host_ports = [{open_port}, 1, "8.8.8.8:{open_port}", {other}]' in hint
            assert place.client is not None and place.process is not None
            os.kill(place.process.pid, signal.SIGKILL)  # the next proxy serves the same listeners
            wait_until_ended(place.process, 5)
            place.keep()
            assert ask("127.0.0.1", open_port) == "HELLO"
        finally:
            place.close()


def test_a_name_has_its_own_loopback_address_which_the_hosts_file_inside_gives_it(tmp_path: Path) -> None:
    forwards = forwards_of((("127.0.0.1", 5432), ("redis", 6379), ("cache", 6379), ("redis", 6380)))
    assert [(each.address, each.port) for each in forwards] == [
        ("127.0.0.1", 5432), ("127.0.8.1", 6379), ("127.0.8.2", 6379), ("127.0.8.1", 6380)]
    [mount] = hosts_mount(forwards, tmp_path)
    assert mount.target == Path("/etc/hosts") and not mount.writable
    assert mount.source.read_text().startswith("127.0.8.1 redis\n127.0.8.2 cache\n")
    assert hosts_mount(forwards[:1], tmp_path) == ()
    for wrong in (0, True, 61280, "redis", "redis:0", "a b:1", 70000, ["x"]):
        with pytest.raises(ValueError, match="a list of"):
            parse_host_port(wrong)
    assert [parse_host_port(each) for each in (5432, "Redis:6379", "localhost:1", "10.0.0.1:2")] == [
        ("127.0.0.1", 5432), ("redis", 6379), ("127.0.0.1", 1), ("10.0.0.1", 2)]
