"""Models that misbehave, for tests of how garrison reacts: players for a script, made from turns of work.

    ModelServer(Script(misbehaviour.reports_and_goes_on(say(use("Bash", command="make")))))

In a file, a conversation names one with `misbehaves`. Each uses its `turns` where a good model would work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from garrison.testing.request import Request
from garrison.testing.turn import Turn, say, use
from garrison.values import replace

Player = Callable[[Request], Turn]
Words = Turn | str

TOOL = "mcp__garrison__"
"""Prefix of garrison's tools in a session."""
ANSWER = "The answer:"
"""Words of the message with the answer to a question."""
QUESTION = "May I remove the old interface?"
GOING_ON = say("I go on.", use("Bash", command="echo more >> went-on.txt"))
"""Behaviour of a model that does not stop."""


def report(status: str = "success", summary: str = "All done, all tests pass.") -> Turn:
    return say(use(f"{TOOL}report_result", status=status, summary=summary, evidence=["seen"]))


def reports_and_goes_on(*turns: Words) -> Player:
    """Report after the turns, and continue to work forever."""
    return _in_turn(*turns, report(), GOING_ON)


def reports_twice(*turns: Words) -> Player:
    """Report success after the turns, failure in the same response, and failure once more afterwards."""
    second = report("failure", "Broken after all.")
    return _in_turn(*turns, replace(report(), blocks=(*report().blocks, *second.blocks)), second, "Done.")


def lies(*turns: Words) -> Player:
    """Report after the turns that all tests pass, without having run any; without turns there is no work either."""
    return _in_turn(*turns, report(), "Done.")


def never_reports(*turns: Words) -> Player:
    """Do the turns and end without a report, however often asked for one."""
    return _in_turn(*turns, "It is done.")


def asks_and_goes_on(*turns: Words) -> Player:
    """Ask for permission, and act without waiting for it; after the answer do the turns and report."""
    asks = say(use(f"{TOOL}ask_guardian", question=QUESTION), *GOING_ON.blocks)
    return _after_answer(_in_turn(asks, GOING_ON), *turns)


def asks_in_plain_text(*turns: Words) -> Player:
    """Ask in its last words instead of by the tool; after the answer do the turns and report."""
    return _after_answer(_in_turn(f"Before I begin:\n\n{QUESTION}"), *turns)


def loops(*turns: Words) -> Player:
    """Repeat the last turn forever; without turns, list the same folder."""
    return _in_turn(*(turns or (say(use("Bash", command="ls")),)))


def wanders(*turns: Words) -> Player:
    """After the turns, inspect one thing after another forever without changing anything."""
    done = _in_turn(*turns, "")

    def play(asked: Request) -> Turn:
        is_working = asked.spoken < len(turns)
        return done(asked) if is_working else say(use("Bash", command=f"echo {asked.spoken}"))

    return play


def hangs_with_progress(*turns: Words) -> Player:
    """After the turns, write endlessly: a character every half second, for hours."""
    return _in_turn(*turns, Turn(say("I am nearly there. " * 1000).blocks, piece=1, delay=0.5))


BY_NAME: Mapping[str, Callable[..., Player]] = {make.__name__: make for make in (
    reports_and_goes_on, reports_twice, lies, never_reports, asks_and_goes_on, asks_in_plain_text, loops, wanders,
    hangs_with_progress)}
"""Name in a script's file → the misbehaviour."""


def _in_turn(*turns: Words) -> Player:
    made = [say(turn) if isinstance(turn, str) else turn for turn in turns]
    return lambda asked: made[min(asked.spoken, len(made) - 1)]


def _after_answer(before: Player, *turns: Words) -> Player:
    """Return a player of `before` until the answer arrives, then of the turns and a report."""
    made = [say(turn) if isinstance(turn, str) else turn for turn in (*turns, report(), "Done.")]
    return lambda asked: made[min(asked.step, len(made) - 1)] if ANSWER in asked.prompt else before(asked)
