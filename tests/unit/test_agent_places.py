"""Places of agents over all runs: which run gets a free one, and that dead processes keep none."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.config import config_path
from garrison.records import atomic
from garrison.records.life_lock import LifeLock
from garrison.records.names import Key
from garrison.records.store import Store
from garrison.run.agent_places import AgentPlaces, RunPlaces, count_granted, read_own


def run(name: str, has: int = 0, waits: int = 0, since: float = 0.0) -> RunPlaces:
    return RunPlaces(name, "p", [f"n{number}" for number in range(has)], [f"w{number}" for number in range(waits)],
                     since)


@pytest.mark.parametrize(("limit", "own", "others", "granted"), [
    (4, run("a", 0, 9), [], 4), (4, run("a", 3, 9), [], 1), (4, run("a", 0, 2), [], 2),
    (4, run("a", 0, 2), [run("b", 4)], 0), (2, run("a", 0, 2), [run("b", 4)], 0),
    (4, run("a", 0, 9, since=2), [run("b", 0, 9, since=1)], 2),  # half each
    (3, run("a", 0, 9, since=2), [run("b", 0, 9, since=1)], 1),  # the odd one goes to the run that has waited longer
    (3, run("a", 0, 9, since=1), [run("b", 0, 9, since=2)], 2),
    (3, run("a", 2, 9, since=1), [run("b", 0, 1, since=2)], 0),  # a run without any is first
    (1, run("a", 0, 1, since=2), [run("b", 0, 5, since=1)], 0),
    (1, run("a", 0, 1, since=1), [run("b", 0, 5, since=2)], 1),
])
def test_a_free_place_goes_to_the_run_with_the_fewest_then_to_the_one_that_waits_longest(
        limit: int, own: RunPlaces, others: list[RunPlaces], granted: int) -> None:
    assert count_granted(limit, own, others) == granted


class Home:
    """A home with guardians, as their life locks show them."""

    def __init__(self, path: Path) -> None:
        self.path, self.store = path, Store(path)
        atomic.make_directory(path / "identities")
        self.locks: dict[Key, LifeLock] = {}

    def limit(self, text: str) -> None:
        config_path(self.path).write_text(f"[limits]\nagents = {text}\n")

    def start(self, role: str, name: str, run_id: str) -> Key:
        key = Key(role, name, run_id)
        lock = LifeLock.try_acquire(self.store.life_path(key))
        assert lock is not None
        self.locks[key] = lock
        return key

    def places(self, run_id: str) -> AgentPlaces:
        return AgentPlaces(self.store, self.start("guardian", "p", run_id))


def test_killed_processes_free_their_places_and_runners_without_a_guardian_keep_them(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.limit("2")
    one, two = home.places("r1"), home.places("r2")
    assert one.share([], ["a", "b", "c"], 1.0) == {"a", "b"} and one.is_waiting
    runner = home.start("runner", "a", "r1")
    assert two.share([], ["x"], 2.0) == set()
    found = read_own(tmp_path, "r2")
    assert found.describe() == "waits for a free place: 2 of 2 agents at work ([limits] agents)"
    home.locks[one.guardian].release()
    assert two.share([], ["x", "y"], 3.0) == {"x"}, "the runner of a still works, b had none"
    successor = home.places("r1")
    assert successor.share(["a"], ["b"], 4.0) == {"a"}, "what b had is taken"
    home.locks[runner].release()
    assert successor.share([], ["b"], 5.0) == {"b"}
    two.leave()
    assert successor.share(["b"], ["c"], 6.0) == {"b", "c"}


def test_the_number_may_change_while_runs_work(tmp_path: Path) -> None:
    home = Home(tmp_path)
    one = home.places("r1")
    assert one.share(["a"], ["b"], 1.0) is None and read_own(tmp_path, "r1") is None
    home.limit("1")
    assert one.share(["a", "b"], ["c"], 2.0) == {"a", "b"}, "no agent at work is stopped"
    home.limit("30")
    assert one.share(["a", "b"], ["c"], 3.0) == {"a", "b", "c"}
    home.limit("none of that")
    assert one.share(["a"], ["d"], 4.0) == {"a", "d"}, "an invalid file changes nothing"
    home.limit('"none"')
    assert one.share(["a"], ["d"], 5.0) is None and read_own(tmp_path, "r1") is None
