"""Network of set-up and gate: the start of its proxy, what its end means for a verdict, and refused hosts."""

from __future__ import annotations

import os
import signal
import time

import pytest
from merge_support import World, finish, until

from garrison.sandbox.proxy import registration
from garrison.sandbox.proxy.allowed_hosts import refused_in_attempt
from garrison.sandbox.proxy.process import take_lock
from garrison.system import processes

ASK = "curl -s --max-time 20 http://example.invalid/"


@pytest.fixture
def world(tmp_path):
    """Return a repository whose gates reach the network through a proxy."""
    made = World(tmp_path, gate="true")
    made.bounds = {"proxy_after": 60.0}
    made.user.configure('\n[sandbox.gate]\nhosts = ["example.org"]\n')
    for node in "abcd":
        (made.home / "runs" / "r" / "nodes" / node / "1").mkdir(parents=True)
    return made


@pytest.fixture
def started(monkeypatch):
    """Return the list of started proxies."""
    found = []
    start = registration.start_proxy

    def record(*arguments):
        found.append(start(*arguments))
        return found[-1]

    monkeypatch.setattr(registration, "start_proxy", record)
    return found


def use_gate(world, command):
    world.config = gate_config = type(world.config)(command, None, False, 60.0)
    world.queue.configure(gate_config)


def enqueue(world, *nodes):
    for node in nodes:
        world.add(node, {node: node})


def test_the_first_connection_of_a_gate_starts_the_proxy_and_a_refused_host_is_recorded(world, started):
    """A gate that connects to nothing starts none."""
    enqueue(world, "a", "b")
    world.drain()
    assert not started
    use_gate(world, f"{ASK}; true")
    enqueue(world, "c", "d")
    world.drain()
    files = world.home / "runs" / "r" / "nodes"
    assert [world.entry(node).status for node in "abcd"] == ["landed"] * 4
    assert {host.place for node in "cd" for host in refused_in_attempt(files / node / "1")} == {"example.invalid:80"}


def test_a_gate_that_is_over_gets_no_proxy_however_late_that_is_seen(world, started):
    world.bounds = {"proxy_after": 0.0}
    enqueue(world, "a")
    processor, runs = world.processor(), world.queue.folder / "tests"
    while not list(runs.glob("*/gate")):
        processor.step()
    until(lambda: list(runs.glob("*/gate/verdict")), "a verdict")
    finish(processor, "a")
    assert not started


def run_and_die(world, condition):
    """Process the queue in a child that dies, as by kill -9, once the condition is true."""
    pid = os.fork()
    if pid == 0:
        try:
            processor = world.processor()
            while not condition(processor):
                processor.step()
                time.sleep(0.01)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_a_gate_whose_network_ended_with_its_processor_is_tested_again(world, tmp_path):
    go, tried = tmp_path / "go", tmp_path / "tried"
    use_gate(world, f"test -e {tried} && exit 0; touch {tried}; until test -e {go}; do sleep 0.02; done; {ASK}")
    enqueue(world, "a")
    run_and_die(world, lambda _: tried.exists())
    processor = world.processor()
    go.touch()
    finish(processor, "a")
    assert world.entry("a").tests == 2


def test_a_processor_that_leaves_its_gate_running_leaves_it_a_proxy(world, tmp_path, started):
    go, tried = tmp_path / "go", tmp_path / "tried"
    use_gate(world, f"touch {tried}; until test -e {go}; do sleep 0.02; done; {ASK} > {tmp_path}/answer; "
                    f"grep -q 'not among' {tmp_path}/answer")
    enqueue(world, "a")
    processor = world.processor()
    while not tried.exists():
        processor.step()
        time.sleep(0.01)
    processor.close()
    assert len(started) == 1
    go.touch()
    world.drain()
    assert (world.entry("a").status, world.entry("a").tests) == ("landed", 1)


def has_proxy(folder):
    """Return whether a proxy of the run lives; the socket of one that was killed stays until the next one's start."""
    lock = take_lock(folder)
    if lock is not None:
        os.close(lock)
    return lock is None


@pytest.mark.parametrize("victim", ["gate", "proxy"])
def test_nothing_is_left_of_the_network_of_a_gate_after_both_die(world, tmp_path, victim):
    """The processor is killed, and the gate or its proxy: the successor lands, and the proxy ends."""
    world.bounds = {"proxy_after": 0.0}
    go, tried = tmp_path / "go", tmp_path / "tried"
    use_gate(world, f"test -e {tried} && exit 0; echo $PPID > {tried}; until test -e {go}; do sleep 0.02; done; {ASK}")
    enqueue(world, "a")
    proxies = world.home / "proxies"

    def is_served(processor):
        known = [run.network.process for run in processor.gates.active.values() if run.network and run.network.process]
        if known and tried.exists():
            proxies.write_text(f"{known[0].pid} {known[0].ticks}")
            return True
        return False

    run_and_die(world, is_served)
    proxy = processes.ProcessId(*map(int, proxies.read_text().split()))
    if victim == "proxy":
        os.kill(proxy.pid, signal.SIGKILL)
    else:
        wrapper = next((world.queue.folder / "tests").glob("*/gate/pid"))
        os.kill(int(wrapper.read_text().split()[0]), signal.SIGKILL)
    processor = world.processor()
    if victim == "proxy":
        adopted = next(iter(processor.gates.active.values()))
        until(lambda: adopted.is_cut or not processor.step(), "the successor's notice")
    go.touch()
    finish(processor, "a")
    until(lambda: not processes.is_running(proxy.pid, proxy.ticks), "the proxy's end")
    until(lambda: not has_proxy(world.home / "runs" / "r"), "the last proxy's end")
