"""`garrison doctor`: finds what is wrong with a home, and mends it."""

from __future__ import annotations

import time
from pathlib import Path

import click

from garrison.cli.commands import Command
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_message, print_table
from garrison.config import find_home
from garrison.doctor.examine import CHECKS, apply_fixes, examine
from garrison.doctor.findings import REMEDIES, Finding
from garrison.processes.runtime import Runtime


@click.command(cls=Command, examples=(
    ("garrison doctor", "looks only; exit 1 if anything is wrong"),
    ("garrison doctor --fix", "mends what can be mended; nothing of anybody else's is touched"),
))
@click.option("--fix", is_flag=True, help="Mend what was found.")
@click.option("--repo", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
              help="Look only at this repository's trees.")
@json_option
@home_option
def doctor(fix: bool, repo: Path | None, as_json: bool, home: str | None) -> int:
    """Find stale leases, orphans, left-over sessions and trees, torn files, and what the machine lacks.

    Unlanded work is kept under rescue refs before a tree goes; torn files are moved to quarantine/. A note is nothing
    wrong. Exit 0 if nothing is wrong, or all was mended.
    """
    world = Runtime.real(find_home(home))
    found = examine(world, repo, time.sleep)
    if fix:
        found = apply_fixes(world, found)
    if as_json:
        print_json([one.body() for one in found])
    else:
        _show(found, fix=fix)
    return 1 if any(one.wrong for one in found) else 0


def _show(found: list[Finding], *, fix: bool) -> None:
    rows = []
    for check in [*CHECKS, *dict.fromkeys(one.check for one in found if one.check not in CHECKS)]:
        mine = [one for one in found if one.check == check]
        rows += [(check, one.severity, one.text, _remedy(one, fix=fix)) for one in mine] or [(check, "ok", "", "")]
    print_table(("CHECK", "STATE", "FINDING", "DONE" if fix else "WITH --fix"), rows)
    wrong = sum(one.wrong for one in found)
    mended = sum(one.outcome == "fixed" for one in found)
    if fix and mended:
        print_message(f"{mended} mended")
    if wrong:
        by_hand = sum(one.wrong and not one.remedy for one in found)
        print_message(("1 thing is wrong" if wrong == 1 else f"{wrong} things are wrong")
            + (f", {by_hand} of them for you to mend" if by_hand else "")
            + ("" if fix or by_hand == wrong else "; `garrison doctor --fix` mends the rest"))


def _remedy(one: Finding, *, fix: bool) -> str:
    """What would be done, or came of it; what a person does, where doctor does nothing."""
    if not one.remedy:
        return f"by hand: {one.advice}" if one.advice else ""
    if not fix:
        return REMEDIES[one.remedy]
    return "done: " + REMEDIES[one.remedy] if one.outcome == "fixed" else f"not done: {one.outcome}"
