"""Layers killed together, at each phase of a node, by kill -9 from outside.

The node holds at each phase until everybody who died has a successor there; a killed launcher is resumed by the test,
as systemd or a person would.
"""

from __future__ import annotations

import pytest

from support import Node, Place

PHASES = {
    "planning": ("launch", "guardian-crew", "runner-a"),
    "executing": ("launch", "guardian-crew", "runner-a", "orchestrator-a"),
    "acceptance": ("launch", "guardian-crew", "runner-a"),
    "validating": ("launch", "guardian-crew", "runner-a", "processor-crew"),
}
"""Phase → who lives then."""
HOLDS_IN = {"planning": "runner-a", "executing": "orchestrator-a", "acceptance": "runner-a"}
"""Whose death ends what holds there; a gate outlives its processor."""

Pair = tuple[str, str]
PAIRS = [(phase, (one, two)) for phase, living in PHASES.items()
         for number, one in enumerate(living) for two in living[number + 1:]]


def holding(place: Place) -> Node:
    """A node that holds in every phase, commits half of its work first and leaves a note for whoever comes next."""
    half = "test -e half.txt || { echo half > half.txt; git add -A; git commit -qm 'Half of the work'; }"
    note = 'echo "half is there, seen by life $GARRISON_INCARNATION" > "$GARRISON_NOTES_FILE"'
    return Node("a", before=f"{half}; {note}; {place.hold('executing')}",
                attributes=f'setup="{place.hold("planning")}", acceptance="{place.hold("acceptance")}"')


def walk(place: Place, kills: list[tuple[str, Pair]]) -> None:
    """One run through all phases; in each the given pairs are killed, one after the other, and must have successors."""
    # More deaths than a policy allows are wanted here.
    place.env |= {"GARRISON_RESTART_WINDOW": "0.001", "GARRISON_HEALTHY_AFTER": "0.001"}
    gate = f"git rev-parse 'HEAD^{{tree}}' >> $WITNESS; test ! -e a-r1.txt || {{ {place.hold('validating')}; }}"
    child = place.launch(place.graph(holding(place)), "r1", "--max-respawn", 1000, gate=gate)
    lives = dict.fromkeys({stem for living in PHASES.values() for stem in living}, 1)
    for phase, living in PHASES.items():
        place.wait_until_held(phase)
        for pair in (pair for at, pair in kills if at == phase):
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
        place.release(phase)
    assert place.finish(child) == 0, place.logs()
    place.check("a")
    assert {stem: place.identity(stem)["incarnation"] for stem in lives} == lives


def check_wisdom(place: Place) -> None:
    """The last life was told the death, the commits and the notes of the one before."""
    lives = place.identity("orchestrator-a")["incarnation"]
    prompt = (place.home / "runs/r1/nodes/a/1/prompt.md").read_text()
    assert "RESUMPTION CONTEXT" in prompt
    assert "was interrupted because its process died" in prompt
    assert "Half of the work" in prompt.partition("Committed on the branch")[2].partition("```\n\n")[0]
    assert f"half is there, seen by life {lives - 1}" in prompt
    assert place.hook("orchestrator-a")["incarnation"] == lives


@pytest.mark.slow
def test_pairs_killed_together_in_each_phase(place):
    walk(place, [
        ("planning", ("launch", "guardian-crew")),
        ("planning", ("guardian-crew", "runner-a")),
        ("executing", ("runner-a", "orchestrator-a")),
        ("executing", ("guardian-crew", "orchestrator-a")),
        ("acceptance", ("launch", "runner-a")),
        ("validating", ("guardian-crew", "processor-crew")),
        ("validating", ("runner-a", "processor-crew")),
    ])
    check_wisdom(place)


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "pair"), PAIRS)
def test_one_pair_killed_twice_in_a_row(place, phase, pair):
    walk(place, [(phase, pair), (phase, pair)])
    if "orchestrator-a" in pair:
        check_wisdom(place)
