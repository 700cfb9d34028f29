"""`garrison merge-queue`: branches waiting to land. Data on stdout, everything else on stderr.

The rooms: `merge_queue_where` finds queue and entry, `merge_queue_hand` enqueues and processes, `merge_queue_work` has
the commands for that, `merge_queue_show` those that only look, `merge_queue_ask` those by which a person speaks.
"""

from __future__ import annotations

import click

from garrison.cli.lazy import LazyGroup
from garrison.cli.merge_queue_hand import enqueue, process_next

__all__ = ["enqueue", "merge_queue", "process_next"]

COMMANDS = {
    "list": ("merge_queue_show", "list_command", "Show entries: of one repository, or of all queues of the home."),
    "enqueue": ("merge_queue_work", "enqueue_command", "Put a branch in the queue, at the commit it is at now."),
    "process": ("merge_queue_work", "process_command", "Test and land what waits, or wait for whoever does."),
    "show": ("merge_queue_show", "show_command", "Show one entry."),
    "cancel": ("merge_queue_ask", "cancel_command", "Withdraw an entry that has not begun to land."),
    "hold": ("merge_queue_ask", "hold_command", "Keep an entry from being judged until it is released."),
    "release": ("merge_queue_ask", "release_command", "Let a held entry go on."),
    "retry": ("merge_queue_ask", "retry_command", "Try the commit of a failed entry again."),
    "pause": ("merge_queue_ask", "pause_command", "Judge and land nobody until `resume`."),
    "resume": ("merge_queue_ask", "resume_command", "Lift a pause, whoever began it."),
    "log": ("merge_queue_show", "log_command", "Show what landed, with what was tested."),
    "conflicts": ("merge_queue_show", "conflicts_command", "Show who conflicts with the target, and with whom."),
    "config": ("merge_queue_ask", "config_command", "Show or record gate, set-up, strategy, guard and the rest."),
    "doctor": ("merge_queue_ask", "doctor_command", "Repair what a crash left, and say what was done."),
}
"""Command → (module of garrison.cli, attribute, help line)."""


@click.group("merge-queue", cls=LazyGroup, table=COMMANDS)
def merge_queue() -> None:
    """Branches waiting to land, and the processor that tests and lands them."""
