"""Takeover of a session by the user: suspend it, run the interactive CLI on it, let the agent continue afterwards.

`garrison takeover` holds a lock while it runs, so the orchestrator continues however the takeover ends. The CLI dies
with the takeover; a slow one is killed before the session is resumed.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from garrison.agents.claude import cli_process, transcripts
from garrison.agents.conversation import holder, policy, prompts, questions
from garrison.agents.conversation.policy import ConnectionEnd
from garrison.errors import Refused
from garrison.records.json_io import read_json

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.agents.claude.settings import ClaudeSettings
    from garrison.agents.conversation.files import AttemptFiles


# ---- a Claude session


def resume_cli(node: str, files: AttemptFiles, config: Path, settings: ClaudeSettings, env: Mapping[str, str],
               cwd: Path) -> int:
    """Run the interactive CLI on the held session to its end; return its exit code."""
    session = holder.session_of(node, files)  # it may have reported while being suspended
    holder.end_orphan(files)
    if own := (read_json(files.order) or {}).get("config"):  # the agent's CLI has its own folder
        if own == str(files.config):  # not in a sandbox, whose agent may have planted links there
            transcripts.save(files.config, files.transcripts, session)
        # In `prepare`, leftovers of an earlier takeover there would take precedence over the copy, which is newer.
        transcripts.remove_own(config, session)
    project = transcripts.project_of(cwd)
    if transcripts.prepare(config, files.transcripts, session, project) == "unknown":
        raise Refused(f"the session of {node} has no messages yet; try again in a moment")
    files.add_ending(ConnectionEnd(policy.PERSON, time.time(), "the user took the session over"))
    try:
        return _run(resume_argv(settings, session), env, cwd, lambda pid: holder.record_process(files, pid, 0))
    finally:
        transcripts.prepare(config, files.transcripts, session, project)
        questions.settle(files, "The user has taken the session over; what they said is above.")


def resume_argv(settings: ClaudeSettings, session: str) -> list[str]:
    """Return the interactive CLI on a session, through the wrapper that makes it die with us."""
    return [str(cli_process.WRAPPER), "--resume", session, *_cli_options(settings)]


# ---- an agent that runs as a garrison session


def run_beside(node: str, files: AttemptFiles, settings: ClaudeSettings, env: Mapping[str, str], cwd: Path) -> int:
    """Run the interactive CLI in place of a held garrison session to its end; return its exit code.

    It starts with the conversation so far. The agent does not see what is written in it, only the changed worktree.
    """
    message = prompts.conversation_for_person(holder.conversation_of(node, files))
    files.add_ending(ConnectionEnd(policy.PERSON, time.time(), "the user worked in its place"))
    return _run([str(cli_process.WRAPPER), *_cli_options(settings), message], env, cwd)


def _run(argv: Sequence[str], env: Mapping[str, str], cwd: Path,
         started: Callable[[int], None] = lambda _pid: None) -> int:
    """Run a program in our own terminal; return its exit code."""
    child = subprocess.Popen(list(argv), env=dict(env), cwd=cwd)
    started(child.pid)
    return child.wait()


def _cli_options(settings: ClaudeSettings) -> list[str]:
    model = ["--model", settings.model] if settings.model else []
    return [*model, "--permission-mode", "default", "--setting-sources", ""]
