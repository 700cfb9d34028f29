"""Outages: a failure of one agent delays the others of its account until one tries with success; start slots."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from garrison.agents.claude.settings import ConnectionJob
from garrison.agents.conversation.policy import ConnectionEnd
from garrison.agents.conversation.start_watch import start_slot
from garrison.agents.outages import FOLDER, MAX_HOLD, Outage, SharedOutages, next_outage, read_outage
from garrison.agents.trouble import MAX_WAIT
from garrison.records.json_io import append_line
from support import DEADLINE

START = 1_795_860_120.0  # 10:02 UTC


class Clock:
    """A wall clock that a test sets."""

    now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def agents(home: Path, clock: Clock, *names: str, account: str = "key", model: str = "m") -> list[SharedOutages]:
    return [SharedOutages(home, account, model, name, clock) for name in names]


def files(home: Path) -> list[Outage | None]:
    return [read_outage(path) for path in sorted((home / FOLDER).glob("*.json"))]


def fails(clock: Clock, kind: str = "server", **fields: float) -> ConnectionEnd:
    return ConnectionEnd(kind, clock.now, "503 down", status=503, **fields)


def test_one_agent_tries_for_all_and_the_next_one_if_it_dies(tmp_path: Path, clock: Clock) -> None:
    first, second, third = agents(tmp_path, clock, "a", "b", "c")
    assert [each.hold_up("", 0.0) for each in (first, second, third)] == [""] * 3 and not first.is_trying
    first.record(fails(clock), clock.now + 2)
    words = "API answers 503 since 10:02 UTC: down"
    assert second.hold_up("", 0.0) == f"until 10:02:02 UTC: {words}"
    clock.now += 3
    assert first.hold_up("", START + 2) == "" and first.is_trying
    for other in (second, third):
        assert other.hold_up("", 0.0) == f"for the trial by a: {words}" and other.wake_after() == 1.0
    first.release()  # what the kernel does when it is killed
    assert second.hold_up("", 0.0) == "" and second.is_trying
    second.record(fails(clock), clock.now + 2)
    [outage] = files(tmp_path)
    assert outage is not None and (outage.failures, outage.since, outage.until) == (2, START, clock.now + 4)
    clock.now += 5
    assert third.hold_up("", 0.0) == ""
    third.end()
    assert files(tmp_path) == []
    assert first.hold_up("until noon", START + 9000) == "", "its own wait is over as well"
    assert first.hold_up("until noon", START + 9000) == "until noon", "a later one is not"


def test_an_outage_is_of_an_account_and_a_limit_of_its_model(tmp_path: Path, clock: Clock) -> None:
    [first], [other] = agents(tmp_path, clock, "a"), agents(tmp_path, clock, "b", account="another")
    [small] = agents(tmp_path, clock, "c", model="small")
    first.record(fails(clock, "rate_limit", resets_at=START + 7200), START + 7200)
    assert not other.hold_up("", 0.0) and not small.hold_up("", 0.0)
    assert agents(tmp_path, clock, "d")[0].hold_up("", 0.0).startswith("until 10:17:00 UTC"), "MAX_HOLD"
    first.record(fails(clock), START + 2)
    assert small.hold_up("", 0.0) and not other.hold_up("", 0.0)


def test_a_trial_that_is_answered_ends_the_outage_while_it_works(tmp_path: Path, clock: Clock) -> None:
    [first] = agents(tmp_path, clock, "a")
    attempt = tmp_path / "attempt"
    clock.now = 1.0  # the files of the attempt are newer
    first.record(fails(clock), 2.0)
    clock.now = 3.0
    assert first.hold_up("", 2.0) == ""
    first.look(attempt)
    assert files(tmp_path) != [], "nothing has been said"
    (attempt / "network").mkdir(parents=True)
    append_line(attempt / "network" / "answer.json", {})
    append_line(attempt / "network" / "usage.jsonl", {})
    first.look(attempt)
    assert files(tmp_path) != [], "the last answer was a refusal"
    (attempt / "network" / "answer.json").unlink()
    first.look(attempt)
    assert files(tmp_path) == [] and not first.is_trying


def test_no_outage_lasts_for_ever(clock: Clock, tmp_path: Path) -> None:
    far = next_outage(None, fails(clock, "quota", resets_at=START + 1e9), START + 1e9, is_trial=False)
    assert far.until == START + MAX_WAIT
    [first, second] = agents(tmp_path, clock, "a", "b")
    first.record(fails(clock), START + 1e9)
    clock.now += MAX_HOLD + 1
    assert second.hold_up("", 0.0) == "" and second.is_trying
    second.release()
    first.record(fails(clock), START + MAX_HOLD)
    clock.now += 2 * 86_400.0
    third, fourth = agents(tmp_path, clock, "c", "d")
    assert not third.hold_up("", 0.0) and not fourth.hold_up("", 0.0) and not third.is_trying, "the outage is forgotten"
    third.record(fails(clock), clock.now)
    assert third.seen is not None and third.seen.since == clock.now
    [path] = (tmp_path / FOLDER).glob("*.json")
    for content in ("", "{", "[]", '{"kind": 1}'):
        path.write_text(content)
        assert agents(tmp_path, clock, "c")[0].hold_up("", 0.0) == "", content


@pytest.mark.parametrize(("error", "status"), [("server_error", 503), ("rate_limit_error", 429)])
def test_a_session_s_own_retries_end_at_once_while_the_outage_is_known(tmp_path: Path, error: str, status: int) -> None:
    """A trial is one call; the CLI itself waits out what is not known yet."""
    connections = pytest.importorskip("garrison.agents.claude.connection")
    known = tmp_path / "outage.json"
    connection = connections.ClaudeConnection(ConnectionJob(
        str(tmp_path), 1, str(tmp_path), str(tmp_path), "id", "say", run="r", node="n", attempt=1, resume=False,
        outages=(str(known),)))
    connection.files.make()
    event = {"kind": "retry", "attempt": 1, "status": status, "error": error, "delay": 0.5}
    assert connection.record(event) is None
    known.write_text("{}")
    assert connection.record(event) is not None


# ---- how many sessions start at one time


def test_the_third_session_waits_for_a_start_slot(tmp_path: Path) -> None:
    told: list[str] = []
    order: list[str] = []

    async def start(name: str, over: asyncio.Event) -> None:
        async with start_slot(tmp_path, 2, told.append, asyncio.Event()) as started:
            order.append(name)
            await over.wait()
            started.set()

    async def scene() -> None:
        overs = [asyncio.Event() for _ in range(3)]
        tasks = []
        for number, over in enumerate(overs):
            tasks.append(asyncio.ensure_future(start(str(number), over)))
            await asyncio.sleep(0)
        while not told:
            await asyncio.sleep(0.01)
        assert order == ["0", "1"]
        overs[0].set()
        while len(order) < 3:
            await asyncio.sleep(0.01)
        for over in overs:
            over.set()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(scene(), DEADLINE))
    assert told == ["for a start slot: at most 2 sessions start at a time"]
    assert order == ["0", "1", "2"]


def test_a_stop_ends_the_wait_for_a_slot(tmp_path: Path) -> None:
    async def scene() -> None:
        stop = asyncio.Event()
        async with start_slot(tmp_path, 1, lambda text: None, asyncio.Event()):
            asyncio.get_running_loop().call_later(0.05, stop.set)
            async with start_slot(tmp_path, 1, lambda text: None, stop):
                assert stop.is_set()

    asyncio.run(asyncio.wait_for(scene(), DEADLINE))
