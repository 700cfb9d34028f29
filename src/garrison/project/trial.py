"""Trial of a proposed gate and set-up: once, on the target's tip, with a time limit, as a launch would run them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from garrison.errors import PreflightRed
from garrison.frozen import frozen
from garrison.merge.config import QueueConfig
from garrison.merge.failing_tests import find_failing
from garrison.merge.preflight import preflight
from garrison.merge.queue import MergeQueue
from garrison.system.terminal_text import clean_lines

SETUP, GATE = "set-up", "gate"
"""What a trial can fail at."""
_SETUP_FAILED = "fix the set-up"
_COUNTS = re.compile(r"\b\d+ (?:failed|passed|errors?|skipped)\b|Ran \d+ tests?|\b\d+ tests?\b")


@frozen
class TrialResult:
    """How a trial ended."""

    passed: bool
    summary: str
    """In one line, for people."""
    tail: tuple[str, ...] = ()
    """End of the log of one that failed."""
    failed: str = ""
    """What failed: `set-up` or `gate`."""


def try_gate(queue: MergeQueue, *, gate: str | None, setup: str | None, setup_key: Sequence[str], trees: Path,
             environment: Mapping[str, str], limit: float, progress: Callable[[str], None]) -> TrialResult:
    """Run set-up and gate once; Refused if the repository is not fit for that."""
    config = QueueConfig(gate, setup, no_gate=gate is None, timeout=limit, lock_files=tuple(setup_key))
    log = queue.folder / "logs" / "preflight-hand.log"
    try:
        result = preflight(queue, config, trees=trees, environment=environment, progress=progress)
    except PreflightRed as error:
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else error.tail
        return TrialResult(False, describe_failure(queue.target, str(error), text), tuple(clean_lines(error.tail)),
                           SETUP if _SETUP_FAILED in str(error) else GATE)
    finally:
        queue.remove_idle_slots(trees)
    return TrialResult(True, f"passed on {queue.target} in {result.seconds:.0f} s")


def describe_failure(target: str, reason: str, log: str) -> str:
    """Return in one line why a trial failed. Pure.

    Args:
        reason: message of the pre-flight.
        log: whole output of the gate.
    """
    if _SETUP_FAILED in reason:
        return f"set-up fails on {target}: {_middle(reason)}"
    names = find_failing(log)
    if not names:
        return f"the gate fails on {target}: {_middle(reason)}"
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    counts = next((", ".join(found) for line in reversed(log.splitlines())
                   if (found := _COUNTS.findall(line)) and "failed" in line), f"{len(names)} failed")
    return f"your tests fail on {target}: {counts} ({shown})"


def _middle(reason: str) -> str:
    """Return what the message of a pre-flight says of the cause."""
    return reason.partition("on the bare target ")[2].partition("; fix the")[0] or reason
