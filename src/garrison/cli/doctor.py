"""`garrison doctor`: find problems in a home, and repair them."""

from __future__ import annotations

import time
from pathlib import Path

import click

from garrison.cli.commands import Command
from garrison.cli.options import output_options
from garrison.cli.output import interruptible, print_json, print_message, print_table
from garrison.directories import find_home
from garrison.doctor.confinement import prove
from garrison.doctor.examine import CHECK_NAMES, apply_fixes, examine
from garrison.doctor.findings import Finding
from garrison.processes.runtime import Runtime
from garrison.sandbox.landlock import gaps
from garrison.sandbox.layers import describe_means
from garrison.sandbox.place import Mode, Role
from garrison.sandbox.probe import describe_mode, machine
from garrison.sandbox.rights import read_rights
from garrison.system.terminal_text import clean


@click.command(cls=Command, examples=(
    ("garrison doctor", "check only: one line if all is well; exit code 1 if there are problems"),
    ("garrison doctor --verbose", "with all checks and facts about this machine"),
    ("garrison doctor --fix", "repair garrison's own problems; nothing else is touched"),
    ("garrison doctor --sandbox", "try every escape from the sandbox; exit code 1 if one succeeds"),
))
@click.option("--fix", is_flag=True, help="Repair what was found.")
@click.option("--repo", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
              help="Check only this repository's worktrees and queues.")
@click.option("-v", "--verbose", is_flag=True, help="List all checks, and facts about this machine.")
@click.option("--sandbox", is_flag=True, help="Try to escape from this machine's sandbox like an agent.")
@output_options
def doctor(fix: bool, repo: Path | None, verbose: bool, sandbox: bool, as_json: bool, home: str | None) -> int:
    """Find leftovers of crashes (processes, sessions, worktrees, files, queues) and missing system requirements.

    Unlanded work is saved under rescue refs before a worktree is removed; torn files are moved to quarantine/. A note
    is not a problem. Exit code 0 if there are no problems, or all were repaired.
    """
    runtime = Runtime.real(find_home(home))
    if sandbox:
        return _prove_sandbox(runtime, as_json=as_json)
    findings = examine(runtime, repo, time.sleep)
    if fix:
        findings = apply_fixes(runtime, findings)
    if as_json:
        print_json([finding.body() for finding in findings])
    else:
        _print_findings(findings, fix=fix, verbose=verbose)
    return 1 if any(finding.wrong for finding in findings) else 0


def _prove_sandbox(runtime: Runtime, *, as_json: bool) -> int:
    """Print the result of each escape; return 1 if the effective mode is broken."""
    rights = read_rights(runtime.home, Role.AGENT, environ=runtime.environ)
    if rights.mode is Mode.AUTO and not machine().bubblewrap and not as_json:
        for gap in gaps(machine().landlock) if machine().landlock else ():
            print_message(f"mode = \"landlock\" would leave a gap: {gap}")
    with interruptible():
        proof = prove(rights, runtime.environ, runtime.home)
    if as_json:
        print_json({"mode": proof.mode, "network": rights.network,
                    "layers": proof.means.way if proof.means is not None else None,
                    "escapes": {escape.key: verdict for escape, verdict in proof.verdicts}})
    else:
        print_table(("ESCAPE", "RESULT"), [(escape.text, verdict) for escape, verdict in proof.verdicts])
        print_message(f"sandbox: {describe_mode(proof.mode, machine())}")
        if proof.means is not None:
            print_message(describe_means(proof.means))
        if proof.mode is Mode.LANDLOCK:
            for gap in gaps(machine().landlock):
                print_message(f"gap: {gap}")
    if proof.escaped:
        print_message(f"{len(proof.escaped)} escapes succeeded that the mode {proof.mode} promises to prevent")
    return 1 if proof.escaped or proof.mode is Mode.NONE else 0


def _print_findings(findings: list[Finding], *, fix: bool, verbose: bool) -> None:
    """Print the findings, with all checks if `verbose`; one line if there is nothing to do."""
    remarks = [finding for finding in findings if finding.is_remark]
    rows: list[tuple[str, str, str, str]] = []
    for check in CHECK_NAMES:
        of_check = [finding for finding in findings if finding.check == check and not finding.is_remark]
        rows += [(check, finding.severity, finding.text, _remedy(finding, fix=fix)) for finding in of_check] \
            or ([(check, "ok", "", "")] if verbose else [])
    if rows:
        print_table(("CHECK", "STATE", "FINDING", "DONE" if fix else "WITH --fix"), rows)
    else:
        notes = f"; {len(remarks)} notes: `garrison doctor --verbose`" if remarks else ""
        click.echo(f"all is well: {len(CHECK_NAMES)} checks passed{notes}")
    for finding in remarks if verbose else ():
        click.echo(clean(f"{finding.check}: {finding.text}"))
    problems = sum(finding.wrong for finding in findings)
    repaired = sum(finding.outcome == "fixed" for finding in findings)
    if fix and repaired:
        print_message(f"{repaired} repaired")
    if problems:
        manual = sum(finding.wrong and finding.fix is None for finding in findings)
        print_message(("1 problem" if problems == 1 else f"{problems} problems")
                      + ("" if not manual else ", to repair by hand" if manual == problems else
                         f", {manual} of them to repair by hand")
                      + ("" if fix or manual == problems else "; `garrison doctor --fix` repairs "
                         + ("the rest" if manual else "it" if problems == 1 else "them")))


def _remedy(finding: Finding, *, fix: bool) -> str:
    """Return the effect of --fix, or what to do by hand."""
    if finding.fix is None:
        return f"by hand: {finding.advice}" if finding.advice else ""
    if not fix:
        return finding.fix.description
    return f"done: {finding.fix.description}" if finding.outcome == "fixed" else f"not done: {finding.outcome}"
