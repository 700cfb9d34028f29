"""Fixtures of all suites."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hypothesis import settings

from suite import reset_signals, scratch_root
from support import DEADLINE, Place, checkout_in, make_repository


def _no_shim() -> None:
    """Put the real `python3` first on the PATH: a version manager's is a shell script that takes 0.1 s."""
    found = shutil.which("python3")
    real = Path(sys.base_prefix, "bin")
    if found and Path(found).read_bytes()[:2] == b"#!" and (real / "python3").exists():
        os.environ["PATH"] = f"{real}{os.pathsep}{os.environ['PATH']}"


MEASURED_S = 0.2
"""Seconds of processor time."""
TRACER = pytest.StashKey[Any]()
"""Coverage's trace function; None where nothing is measured."""

_no_shim()
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", scratch_root())  # where pytest makes its folders
reset_signals()
# A busy machine is no counterexample; more are looked for where the slow tests run too.
settings.register_profile("garrison", deadline=None, max_examples=50)
settings.register_profile("everything", deadline=None, max_examples=200)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="write the failed tests, and why others were skipped, to this file")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("garrison" if config.option.markexpr else "everything")
    if config.option.outcomes is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(config.option.outcomes))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark unit and contract tests as such, so that `-m` can choose them."""
    if item.path.parent.name in ("unit", "contract"):
        item.add_marker(item.path.parent.name)


class Outcomes:
    """Writes which tests failed, and why others were skipped, for `suite.py`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed: list[str] = []
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
        elif report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            self.skipped.append(report.longrepr[2].removeprefix("Skipped: "))

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps({"failed": self.failed, "skipped": self.skipped}))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Keep coverage from measuring xdist's processes from their start, by the environment that is meant for others."""
    for name in _coverage_settings():
        del os.environ[name]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """In a process of xdist's, pytest-cov first measures as in the one that shares out the tests, then on top as it
    should: a pause would end only the latter, and leave the tests that must not be measured ten times slower."""
    measured = session.config.pluginmanager.getplugin("_cov")
    if hasattr(session.config, "workerinput") and measured is not None and measured.cov_controller is not None:
        measured.cov_controller.cov.stop()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep coverage's tracer for the tests' own functions: all Python is three times as slow under it, and collecting
    and pytest's own work show nothing. What imports execute, `test_imports.py` shows.

    What is collected stays until the end: the garbage collector looks at none of it, neither now nor during the tests.
    """
    session.config.stash[TRACER] = sys.gettrace()
    sys.settrace(None)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _coverage_settings() -> list[str]:
    return [name for name in os.environ if name.startswith("COVERAGE_PROCESS")]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run a test, a coroutine function in an event loop, and measure its first `MEASURED_S`: what takes longer repeats
    lines.

    The tracer is set and unset in one frame, so that it sees as many returns as calls.
    """
    call, tracer = pyfuncitem.obj, pyfuncitem.config.stash[TRACER]
    names = inspect.signature(call).parameters.keys() & pyfuncitem.funcargs.keys()
    given = {name: pyfuncitem.funcargs[name] for name in names}
    if inspect.iscoroutinefunction(call):
        call, given = asyncio.run, {"main": call(**given)}
    if tracer is None:
        call(**given)
        return True
    before = signal.signal(signal.SIGVTALRM, lambda *_: sys.settrace(None))
    signal.setitimer(signal.ITIMER_VIRTUAL, MEASURED_S)
    sys.settrace(tracer)
    try:
        call(**given)
    finally:
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first, dealt out among the processes in turn, so that none ends long after the others: whole
    runs one by one, all else by files, as are whole runs that share a fixture of their module.
    """
    hands: dict[str, list[pytest.Item]] = {}
    for item in sorted(items, key=_turn):
        hands.setdefault(str(item.path) if _turn(item) or _shares(item) else item.nodeid, []).append(item)
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = [item for first in range(processes) for hand in list(hands.values())[first::processes] for item in hand]


def _turn(item: pytest.Item) -> int:
    """Return its place in the order in which tests start; 0 for whole runs."""
    return {"browser": 1, "integration": 1, "contract": 2, "unit": 3}.get(item.path.parent.name, 0)


def _shares(item: pytest.Item) -> bool:
    """Return whether a test uses a fixture of module scope, such as an installed garrison."""
    fixtures = getattr(item, "_fixtureinfo", None)
    return fixtures is not None and any(
        each.scope == "module" for found in fixtures.name2fixturedefs.values() for each in found)


@pytest.fixture(autouse=True)
def _measured(request: pytest.FixtureRequest) -> None:
    """The coverage of a test's processes is measured where it is `traced`: a third of a second for each of them, and
    what most of them do, others have done."""
    if (settings := _coverage_settings()) and request.node.get_closest_marker("traced") is None:
        for name in settings:
            request.getfixturevalue("monkeypatch").delenv(name)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are tried again at once; how long they wait is tested with the policy."""
    monkeypatch.setattr("garrison.pipeline.flow.program.RetryPolicy.delay", lambda *_: 0.0)


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save many writes their syncs: who comes first is asked, not what a power cut leaves."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _descriptor: None)


@pytest.fixture
def patient_tmux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tmux server answer as late as a busy machine makes it, and still count as well."""
    from garrison.system.tmux_server import TmuxServer

    for name in ("command_seconds", "open_seconds", "repair_seconds"):
        monkeypatch.setattr(TmuxServer, name, DEADLINE)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Return a small repository of one commit on main."""
    make_repository(tmp_path / "repo")
    return tmp_path / "repo"


@pytest.fixture
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Place]]:
    """Yield a maker of places; at the end each must be empty: no process, no tmux server."""
    made: list[Place] = []

    def make(**options: str) -> Place:
        if options.get("terminal") == "tmux" and shutil.which("tmux") is None:
            pytest.skip("tmux is not installed")
        folder = tmp_path_factory.mktemp("g")
        make_repository(checkout_in(folder))
        made.append(Place(folder, **options))
        return made[-1]

    yield make
    left = [line for place in made for line in place.kill_rest()]
    assert not left, left


@pytest.fixture
def place(places: Callable[..., Place]) -> Place:
    """Return a place with the plain-process terminal."""
    return places()
