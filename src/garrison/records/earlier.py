"""Read what records of earlier versions state only in a sentence.

Current records contain values (`ends.Departure`, `events.Follows`, fields of the merge queue's records) next to the
sentence for users. Earlier versions wrote only the sentence. It is parsed here and nowhere else: a module that decides
asks a record for its value, and a record without one asks this module. Pure.
"""

from __future__ import annotations

import re

from garrison.ends import Departure

_FAILED_STEP = r"Step '(.*?)' failed: "
_HANGUP = "its terminal is gone"
_MERGE = "Merge "
_NEW_ATTEMPT = "attempt "
_RESCUED = r"garrison: what \S+ (.*)"
_REVIEWED = "rejected in review: "
_WAITING_FOR_APPROVAL = "waiting for approval"


def departure_of(reason: str) -> Departure:
    return Departure.HANGUP if reason == _HANGUP else Departure(reason)


def is_respawn(incarnation: int, why: str) -> bool:
    """Return whether a start continues an attempt, by the reason in a record without `follows`."""
    return incarnation > 1 and not why.startswith(_NEW_ATTEMPT)


def review_of(reason: str) -> str:
    """Return a reviewer's text, by the reason in the record of a rejected entry; '' if no review rejected it."""
    return reason.removeprefix(_REVIEWED) if reason.startswith(_REVIEWED) else ""


def is_for_approval(text: str) -> bool:
    """Return whether a note means that an entry waits for approval, by its text in a record without that field."""
    return text == _WAITING_FOR_APPROVAL


def branch_of_merge(subject: str) -> str:
    """Return the branch that a commit of the merge queue landed, by its subject where no trailer names it; '' for none.
    """
    return subject.removeprefix(_MERGE).partition(" into ")[0] if subject.startswith(_MERGE) else ""


def modes_of(sandbox: str) -> list[str]:
    """Return which of the sandbox modes a run's line about its sandbox names."""
    return ["landlock"] if "landlock" in sandbox else []


def has_gaps(sandbox: str) -> bool:
    return sandbox != "sandbox: bubblewrap"


def claim_of(claimed_for: str) -> str:
    """Return the id of the attempt that a host's run works on, by its description in the launch."""
    return claimed_for.partition(" of ")[0]


def reason_of_rescue(subject: str) -> str:
    """Return why work was saved, by the subject of garrison's commit; '' for an agent's own commit."""
    match = re.fullmatch(_RESCUED, subject)
    return match[1] if match else ""


def step_of_error(error: str) -> str:
    """Return the step of a workflow that failed, by a line of its session's errors; '' for an error of no step."""
    match = re.match(_FAILED_STEP, error)
    return match[1] if match else ""
