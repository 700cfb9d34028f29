"""Takeover of an ACP agent's session by a person: the program that its profile names opens the session in the agent's
own place, since only there is what the agent keeps of it, and what it left there is not trusted outside.

The program has a terminal of its own in the sandbox (`system.pseudo_terminal`); this process passes the keys.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from garrison.agents.acp.settings import SESSION
from garrison.agents.claude import cli_process, policy, questions, takeover
from garrison.agents.claude.policy import Ending
from garrison.agents.command import CommandAgent
from garrison.agents.command_profile import CommandProfile
from garrison.agents.variables import expand
from garrison.ends import End, EndKind
from garrison.errors import Refused
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from garrison.agents.acp.settings import AcpSettings
    from garrison.agents.base import Assignment
    from garrison.agents.claude.attempt_files import AttemptFiles

_POLL = 0.1
"""Seconds between two looks at the program."""


def opener_of(node: str, agent: str, settings: AcpSettings) -> tuple[str, ...]:
    """Return the words that open a session of an agent; Refused if its profile names none."""
    if not settings.takeover:
        raise Refused(f"agent {agent} of {node} has no program that opens its session: [agents.{agent}] names none in "
                      f"takeover; `garrison tell {node} TEXT` tells the session something")
    return settings.takeover


def run_program(node: str, agent: str, files: AttemptFiles, settings: AcpSettings, assignment: Assignment,
                keep: Callable[[], object]) -> int:
    """Run the program on the held session to its end; return its exit code.

    Args:
        assignment: place and environment of the agent's own program, with a folder of its own.
        keep: called often while it runs, to serve its network.
    """
    session = takeover.session_of(node, files)  # it may have reported while it was being suspended
    cli_process.end_orphan(files)
    words = fill_session(settings.takeover, session, assignment.environment, f"[agents.{agent}]: takeover")
    profile = CommandProfile(agent, words, set=settings.set, tty=True)
    files.add_ending(Ending(policy.PERSON, time.time(), "a person took the session over"))
    work = CommandAgent(profile).run(replace(assignment, lends_terminal=True), time.monotonic())
    cli_process.record_process(files, (work.process() or (0, 0))[0], 0)
    try:
        while (outcome := work.poll(time.monotonic())) is None:
            keep()
            time.sleep(_POLL)
    finally:
        questions.settle(files, "A person has taken the session over; what they said is above.")
    if End(outcome.exit_code).kind is EndKind.NOT_RUN:
        raise Refused(f"{words[0]} cannot be run in the place of agent {agent}: it is not there, or its sandbox does "
                      f"not show it; correct takeover or read of [agents.{agent}]")
    return outcome.exit_code or 0


def fill_session(words: tuple[str, ...], session: str, env: Mapping[str, str], where: str) -> tuple[str, ...]:
    """Return the words of a takeover with the session's id and the variables that they name. Pure."""
    return tuple(expand(word, env, where).replace(SESSION, session) for word in words)
