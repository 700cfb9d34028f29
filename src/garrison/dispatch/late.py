"""Settle what runs have given up: cancel it, and fetch what its worker left, as soon as its host can be reached.

The keeper calls `settle` now and then. What is fetched is kept under a rescue ref and lands nowhere; a worker that was
cut off has stopped by itself long before.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.dispatch.base import Unreachable
from garrison.dispatch.records import OVER, AttemptId, AttemptState, Token
from garrison.dispatch.ssh import HostAccess, HostUnreachable
from garrison.dispatch.transport import TransferFailed, Transport, clone_path
from garrison.errors import GarrisonError, NotFound
from garrison.records.hosts import read_host
from garrison.records.late import LateWork, forget_late, list_late, note_late
from garrison.system.clock import from_iso
from garrison.system.git import Git
from garrison.system.git.rescues import rescue_stem
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.dispatch.base import Dispatcher

NOTHING_LEFT = 300.0
"""Seconds after which a host that can be reached, and has nothing, is asked no more."""
UNKNOWN_SECONDS = 60.0
"""Seconds after which an offer that the server does not know counts as over."""
LONGEST = 30 * 86400.0
"""Seconds after which an unreachable host is asked no more."""


def settle(home: Path, dispatcher: Dispatcher, log: Callable[[str], None]) -> None:
    """Take the next step for each offer that was given up."""
    for late in list_late(home):
        try:
            if late.cancel:
                _cancel(home, dispatcher, late)
            elif _is_settled(home, late, log):
                forget_late(home, late)
        except (Unreachable, TransferFailed, HostUnreachable):
            continue  # next time
        except (GarrisonError, OSError) as error:
            log(f"what {late.host or 'a host'} left of {late.id}: {error}")
            if _age(late) > NOTHING_LEFT:
                forget_late(home, late)


def _cancel(home: Path, dispatcher: Dispatcher, late: LateWork) -> None:
    id_ = AttemptId.parse(late.id)
    view = dispatcher.watch(id_)
    if view.state is AttemptState.UNKNOWN and _age(late) < UNKNOWN_SECONDS:
        return  # a busy server says so of what it knows
    if view.state in OVER or view.state is AttemptState.UNKNOWN:
        note_late(home, replace(late, cancel=""))
        return
    if view.worker:
        note_late(home, replace(late, host=view.worker, claim=view.claim))
    dispatcher.cancel(id_, late.cancel)


def _is_settled(home: Path, late: LateWork, log: Callable[[str], None]) -> bool:
    age = _age(late)
    if not late.host or age > LONGEST or not Path(late.repo).is_dir():
        return True
    try:
        host = read_host(home, late.host)
    except NotFound:
        return True
    git, id_ = Git(Path(late.repo), home=home), AttemptId.parse(late.id)
    transport = Transport(git, HostAccess.of(home, host), host.name, clone_path(host.home, git.key))
    commit, ref = transport.fetch_left(Token(id_, max(late.claim, 1)))
    if not commit:
        return age > NOTHING_LEFT
    if not git.tips_containing(commit, but=ref):
        kept = git.save_commit(commit, rescue_stem(id_.run, id_.node, id_.attempt, "late"))
        log(f"what {host.name} had of {late.id} is kept as {kept}")
    git.delete_refs([ref])
    return True


def _age(late: LateWork) -> float:
    return time.time() - from_iso(late.since)
