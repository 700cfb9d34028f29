"""Permissions: answer permission requests of an ACP agent, by its profile or by the user. Pure.

The sandbox confines an agent whatever is allowed here: asking is the agent's own choice. So everything is allowed
unless the profile says otherwise, and nothing hangs waiting for a yes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from garrison.agents.acp.settings import ANYTHING
from garrison.values import Value

if TYPE_CHECKING:
    from garrison.agents.acp.settings import AcpSettings

MAX_TITLE = 500
"""Characters of an agent's description of a call."""
# Agents format the title of a server's tool call differently, but all name the server before the tool. Forging such a
# title gains nothing: the sandbox decides what a call can do.
_OWN_TOOL = re.compile(
    r"\bgarrison\b.*\b(?:report_result|update_phase|save_notes|ask_guardian|report_verdict)\b", re.DOTALL)
_YES = frozenset({"yes", "y", "allow", "ok", "okay", "approve", "approved", "sure", "allowed"})


class LeaveRuling(StrEnum):
    """Answer to a permission request."""

    ALLOW = "allow"
    REFUSE = "refuse"
    ASK = "ask"


class OfferedAnswer(Value):
    """An option that the agent offers; `kind` is allow_once, allow_always, reject_once or reject_always."""

    id: str
    name: str
    kind: str


def rule(settings: AcpSettings, kind: str, title: str) -> LeaveRuling:
    """Return the profile's ruling on a tool call of this kind."""
    if kind in settings.deny or ANYTHING in settings.deny:
        return LeaveRuling.REFUSE
    if kind in settings.allow or ANYTHING in settings.allow or _OWN_TOOL.search(title):
        return LeaveRuling.ALLOW
    return LeaveRuling.ASK


def choose(options: Sequence[OfferedAnswer], ruling: LeaveRuling) -> OfferedAnswer | None:
    """Return the option for a ruling, the narrower one first; None if the agent offers none of that kind."""
    wanted = ("allow_once", "allow_always") if ruling is LeaveRuling.ALLOW else ("reject_once", "reject_always")
    return next((option for kind in wanted for option in options if option.kind == kind), None)


def question_of(title: str, options: Sequence[OfferedAnswer]) -> str:
    names = ", ".join(dict.fromkeys(option.name.strip() or option.id for option in options)) or "yes, no"
    return f"May it: {title.strip()[:MAX_TITLE] or 'run an unnamed tool'}? Answer yes or no ({names})"


def read_answer(options: Sequence[OfferedAnswer], answer: str) -> OfferedAnswer | None:
    """Return the option that the user's answer selects, by name, id, or yes or no; None to refuse."""
    said = answer.strip().casefold()
    for option in options:
        if said in (option.name.strip().casefold(), option.id.casefold(), option.kind):
            return option
    word = re.match(r"\w*", said)
    if word and word[0] in _YES:
        always = next((option for option in options if option.kind == "allow_always"), None) \
            if "always" in said else None
        return always or choose(options, LeaveRuling.ALLOW)
    # A counter-question or a typing error must not let a command run.
    return choose(options, LeaveRuling.REFUSE)
