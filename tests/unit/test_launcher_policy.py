"""Launcher policy: the state of the guardian and requests of the user go in, actions come out."""

from __future__ import annotations

from typing import Any

import pytest

from garrison.records.signals import PostedSignal
from garrison.run import launcher_policy
from garrison.run.launcher_policy import LauncherView
from garrison.run.state import RunState
from garrison.supervise.decisions import START_RECHECK, ChildState
from garrison.supervise.restart import Circuit, Death
from garrison.supervise.verdict import Observation, Verdict
from garrison.values import replace
from policy_support import BOOT, NOW, POLICY, life, posted, shown


def launch(**seen: Any) -> list[tuple[str, str]]:
    return shown(launcher_policy.decide(LauncherView(NOW, BOOT, **seen), POLICY))


def guardian(status: str = "active", state: str = "alive", **more: Any) -> ChildState:
    return life("guardian", "p", status, state, **more)


LEAVING = replace(guardian("terminated", reason="stopped"), observation=Observation("h", BOOT, "p", leaving=1.0))
LINGERING = replace(LEAVING, verdict=Verdict("lingering", "stays"),
                    observation=Observation("h", BOOT, "p", leaving=9.0))
KNOWN = [Death(1, NOW - 100, BOOT)]
OPEN = Circuit("parked", "6 deaths", since=NOW - 1, boot_id=BOOT, parks=1, incarnation=6)
HALF_OPEN = Circuit("probing", "6 deaths", since=NOW - 61, boot_id=BOOT, parks=1, incarnation=6, probe=7)
MANY = [Death(number, NOW - 1, BOOT) for number in range(1, 7)]


@pytest.mark.parametrize(("seen", "expected"), [
    ({}, [("start", "")]),
    ({"guardian": guardian()}, []),
    ({"guardian": guardian(state="dead"), "run_status": "running"}, [("replace", "")]),
    ({"guardian": guardian("crashed"), "run_status": "running"}, [("record", "")]),
    ({"guardian": guardian("crashed"), "run_status": "running", "deaths": KNOWN}, [("start", "")]),
    ({"guardian": guardian("crashed", incarnation=6), "run_status": "running", "deaths": MANY},
     [("park", ""), ("write_parked", ""), ("end", "parked")]),
    ({"guardian": guardian("parked"), "run_status": "running"},  # its launcher died before it journaled that
     [("park", ""), ("write_parked", ""), ("end", "parked")]),
    ({"guardian": guardian("parked"), "run_status": "running", "circuit": OPEN},
     [("write_parked", ""), ("end", "parked")]),
    ({"guardian": guardian("parked"), "run_status": "parked", "circuit": replace(OPEN, since=NOW - 601)},
     [("probe", "")]),
    ({"guardian": guardian("parked"), "run_status": "parked", "circuit": replace(OPEN, boot_id="another")},
     [("probe", "")]),
    ({"guardian": guardian(incarnation=7), "run_status": "running", "circuit": HALF_OPEN}, [("heal", "")]),
    ({"guardian": guardian("crashed", incarnation=7), "run_status": "running", "circuit": HALF_OPEN,
      "deaths": [*MANY, Death(7, HALF_OPEN.since + 1, BOOT)]}, [("park", ""), ("write_parked", ""), ("end", "parked")]),
    ({"guardian": guardian("parked"), "run_status": "parked", "stopping": True},
     [("write_stopped", ""), ("end", "stopped")]),
    ({"guardian": guardian(), "run_status": "done"}, []),
    ({"guardian": guardian("terminated", reason="done"), "run_status": "done"}, [("end", "done")]),
    ({"guardian": guardian("terminated", reason="stopped"), "run_status": "stopped"}, [("end", "stopped")]),
    ({"guardian": guardian("terminated", reason="stopped"), "run_status": "running"}, [("start", "")]),
    ({"guardian": guardian(state="dead"), "run_status": "failed"}, [("replace", "")]),
    ({"run_status": "stopped", "to_resume": True}, [("resume", "")]),
    ({"guardian": guardian(), "stopping": True}, [("term", "")]),
    ({"guardian": guardian(), "stopping": True, "overdue": True}, [("replace", "")]),
    ({"guardian": guardian(state="dead"), "stopping": True, "run_status": "running"}, [("replace", "")]),
    ({"guardian": guardian("crashed"), "stopping": True, "run_status": "running", "others_living": True},
     [("say_stop", ""), ("start", "")]),
    ({"guardian": guardian("crashed"), "stopping": True, "run_status": "running", "others_living": True,
      "overdue": True}, [("say_stop", ""), ("start", "")]),
    ({"guardian": guardian("terminated", reason="stopped"), "stopping": True, "run_status": "stopped",
      "others_living": True}, [("say_stop", ""), ("start", "")]),
    *[({"guardian": guardian("terminated", reason="stopped"), "stopping": True, "run_status": status,
        "others_living": True, "stop_guardians": 3}, [("end", "not stopped")]) for status in ("running", "stopped")],
    ({"guardian": guardian("crashed"), "stopping": True, "run_status": "running"},
     [("write_stopped", ""), ("end", "stopped")]),
    ({"guardian": guardian("terminated", reason="stopped"), "stopping": True, "run_status": "stopped"},
     [("end", "stopped")]),
    ({"guardian": LINGERING, "run_status": "running"}, [("replace", "")]),
    ({"guardian": LINGERING, "run_status": "stopped"}, [("replace", "")]),
    ({"guardian": LINGERING, "stopping": True, "run_status": "stopped"}, [("replace", "")]),
    *[({"guardian": LEAVING, "run_status": status, "stopping": stopping}, [])
      for status in ("running", "stopped", "done") for stopping in (False, True)],
])
def test_decisions_of_a_launcher(seen: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert launch(**seen) == expected


@pytest.mark.parametrize(("status", "taken", "said", "asked", "expected"), [
    ("stopped", False, False, True, ("stopped", True)),
    ("stopped", False, True, False, ("running", False)),
    ("failed", False, True, False, ("running", False)),
    ("running", False, True, False, ("running", False)),
    ("done", False, True, False, ("done", False)),
    ("running", True, True, False, ("running", False)),
    ("stopped", True, True, False, ("stopped", False)),
    # Found by seed 801422: applied while the run still worked, sent again when it failed after that; a launcher that
    # counted it as applied started one guardian after the other.
    ("failed", True, False, True, ("failed", False)),
])
def test_a_request_to_resume_keeps_a_run_open_until_it_is_applied(
        status: str, taken: bool, said: bool, asked: bool, expected: tuple[str, bool]) -> None:
    state = RunState(status, applied={"r1-resume-2"} if taken else set())
    assert launcher_policy.resume_status(state, "r1-resume-2", sent=said, wanted=asked) == expected


def test_a_launcher_applies_readable_signals_and_observes_a_starting_guardian_again_soon() -> None:
    assert launch(inbox=[posted("ESCALATE"), PostedSignal("x", None, "torn")]) == [("take", ""), ("refuse", "")]  # type: ignore[arg-type]
    view = LauncherView(NOW, BOOT, "running", guardian("starting", "starting"))
    assert launcher_policy.decide(view, POLICY).wake_at == NOW + START_RECHECK
