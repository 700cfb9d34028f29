"""Processes killed together, at each phase of a node, by kill -9 from outside, and one that is killed while it starts.

The node waits in each phase until all that died have a successor; the test resumes a killed launcher, as systemd would.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from support import DEADLINE, Node, Place, until

PHASES = {
    "planning": ("launch", "guardian-crew", "runner-a"),
    "executing": ("launch", "guardian-crew", "runner-a", "orchestrator-a"),
    "acceptance": ("launch", "guardian-crew", "runner-a"),
    "validating": ("launch", "guardian-crew", "runner-a", "processor-crew"),
}
"""Phase → the processes that live then."""
HOLDS_IN = {"planning": "runner-a", "executing": "orchestrator-a", "acceptance": "runner-a"}
"""Phase → the process whose death ends its command; a gate outlives its processor."""

PAIRS = [(phase, (one, two)) for phase, living in PHASES.items()
         for number, one in enumerate(living) for two in living[number + 1:]]


def holding(place: Place) -> Node:
    """Return a node that waits in every phase, once it has committed half of its work and left a note."""
    return Node("a", before=half_done(place, "executing"),
                attributes=f'setup="{place.hold("planning")}", acceptance="{place.hold("acceptance")}"')


def half_done(place: Place, until: str) -> str:
    """Return shell that commits half of the work, leaves a note for its successor, and waits."""
    half = "test -e half.txt || { echo half > half.txt; git add -A; git commit -qm 'Half of the work'; }"
    note = 'echo "half is there, seen by life $GARRISON_INCARNATION" > "$GARRISON_NOTES_FILE"'
    return f"{half}; {note}; {place.hold(until)}"


def check_wisdom(place: Place) -> None:
    """Check that the last incarnation was told the death, the commits and the notes of the one before."""
    lives = place.identity("orchestrator-a")["incarnation"]
    prompt = (place.home / "runs/r1/nodes/a/1/prompt.md").read_text()
    assert "RESUMPTION CONTEXT" in prompt
    assert "was interrupted because its process died" in prompt
    assert "Half of the work" in prompt.partition("Committed on the branch")[2].partition("```\n\n")[0]
    assert f"half is there, seen by life {lives - 1}" in prompt
    assert place.hook("orchestrator-a")["incarnation"] == lives


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "pair"), PAIRS)
def test_one_pair_killed_twice_in_a_row(place, phase, pair):
    # more deaths than a policy allows are wanted here
    place.env |= {"GARRISON_RESTART_WINDOW": "0.001", "GARRISON_HEALTHY_AFTER": "0.001"}
    gate = f"git rev-parse 'HEAD^{{tree}}' >> $WITNESS; test ! -e a-r1.txt || {{ {place.hold('validating')}; }}"
    child = place.launch(place.graph(holding(place)), "r1", "--max-respawn", 1000, gate=gate)
    lives = dict.fromkeys({stem for living in PHASES.values() for stem in living}, 1)
    for each, living in PHASES.items():
        place.wait_until_held(each)
        for _ in range(2 if each == phase else 0):
            for stem in living:
                place.pid(stem, incarnation=lives[stem])
            place.kill(*pair)
            if "launch" in pair:
                child.wait()
                child = place.resume()
            for stem in pair:
                lives[stem] += 1
                place.pid(stem, incarnation=lives[stem])
            if HOLDS_IN.get(phase) in pair:
                place.wait_until_held(phase)
            place.check_only_last_incarnations()
        place.release(each)
    assert place.finish(child) == 0, place.logs()
    place.check("a")
    assert {stem: place.identity(stem)["incarnation"] for stem in lives} == lives
    if "orchestrator-a" in pair:
        check_wisdom(place)


LIMIT = 20.0
"""Seconds: a hundred times what it takes, a third of what it took when only a slow timer noticed it."""


@pytest.mark.parametrize("stem", ["orchestrator-a", pytest.param("runner-a", marks=pytest.mark.slow),
                                  pytest.param("guardian-crew", marks=pytest.mark.slow)])
def test_a_successor_killed_while_it_starts_is_replaced_at_once(place: Place, stem: str) -> None:
    point = f"{stem.partition('-')[0]}:life-locked"
    spared = place.fired / f"{point}.0"  # of the first incarnation
    spared.touch()
    child = place.launch_until("work", place.graph(Node("a", before=place.hold("work"))), GARRISON_FAILPOINT=point)
    spared.unlink()
    place.kill(stem)
    until(spared.exists)
    killed = time.monotonic()
    until(lambda: place.identity(stem)["incarnation"] >= 3)
    assert time.monotonic() - killed < LIMIT, place.logs()
    place.release("work")
    assert child.wait(DEADLINE) == 0, place.logs()
    place.check("a")
    assert place.deaths()[stem] == [1, 2]


CHAOS = Path(__file__).resolve().parents[2] / "scripts" / "chaos"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_small_storm_ends_well(tmp_path: Path) -> None:
    done = subprocess.run(
        [CHAOS, "--nodes", "6", "--seconds", "10", "--seeds", "7..7", "--agents", "3", "--terminal", "process"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=590)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^seed 7: 6 nodes in \d+ s; .*; \d+ deaths counted; 0 wrong$", done.stdout, re.MULTILINE)
    assert not list(tmp_path.glob("garrison-storm-*"))
