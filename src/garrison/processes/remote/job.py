"""Job of an attempt: what of a task its host is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.agents.claude.settings import ATTRIBUTES
from garrison.dispatch.job import Job
from garrison.records.hosts import read_crew

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.records.run import Launch, Task
    from garrison.system.git import Git

PASSED = frozenset({*(spelling for spellings in ATTRIBUTES.values() for spelling in spellings), "session", "tier",
                    "turn_graph", "heartbeat_graph", "initiative", "validator", "script", "mode", "config_options"})
"""Attributes of a node that decide how an agent works; all others are home's."""
MAX_LABEL = 300


def make_job(home: Path, launch: Launch, task: Task, offer: int, git: Git, prompt: str) -> Job:
    """Return the job of an attempt.

    Args:
        prompt: the task in words, with what only home knows of it.
    """
    author = {each.key: each.value for each in git.settings() if each.key in ("user.name", "user.email")}
    return Job(
        read_crew(home), git.key, task.run_id, task.node, task.attempt, offer,
        label=task.label[:MAX_LABEL], prompt=prompt, agent=task.agent, command=task.command,
        acceptance=task.acceptance, setup=task.setup, lock_files=list(launch.lock_files), timeout_s=task.timeout_s,
        silence_s=task.silence_s, allow_empty=task.allow_empty, goal=task.goal, prd_ref=task.prd_ref,
        failover=task.failover, words=task.words or [], env=list(launch.env), max_respawn=launch.max_respawn,
        author=author,
        attributes={name: value for name, value in task.attributes.items() if name in PASSED})
