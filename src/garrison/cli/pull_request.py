"""`garrison pr`: show a run's pull request, open one for a run's branch, and poll the forge at once."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from garrison.cli import completion
from garrison.cli.commands import Group
from garrison.cli.options import home_option, output_options
from garrison.cli.output import print_json, print_message
from garrison.config import read_config
from garrison.directories import find_home
from garrison.errors import GarrisonError, NotFound, Refused
from garrison.processes.runtime import Runtime
from garrison.pull_request.wake import read_wishes, wake
from garrison.records.names import quote
from garrison.records.pull_request import PullRequestState, read_reports
from garrison.records.run import LAND_PR, Launch, list_runs
from garrison.run.status import read_run_state
from garrison.system.terminal_text import clean
from garrison.values import asdict, replace


@click.group(cls=Group)
def pr() -> None:
    """Show and sync pull requests of runs with land=pr, or open one for another run's branch."""


def _choose(runtime: Runtime, run: str | None) -> Launch:
    """Return the launch of the named run, else of the latest one with a pull request."""
    if run is not None:
        return runtime.launch(run)
    for name in reversed(list_runs(runtime.home)):
        with suppress(GarrisonError):
            if (launch := runtime.launch(name)).land == LAND_PR:
                return launch
    raise NotFound(f"no run in {runtime.home} has a pull request; launch one with --land pr")


@pr.command(examples=(("garrison pr show work-1", "state, checks, reviews, and what it waits for"),))
@click.argument("run", required=False, shell_complete=completion.runs)
@output_options
def show(run: str | None, home: str | None, *, as_json: bool) -> None:
    """Show the pull request of RUN (default: the latest run with one), its checks and reviews, and the number of
    requests."""
    from garrison.pull_request.worker import read_count

    runtime = Runtime.real(find_home(home))
    launch = _choose(runtime, run)
    state = read_run_state(runtime, launch.run_id)
    root = runtime.files(launch.run_id).root
    pull, count, reports = state.pull_request, read_count(root), read_reports(root)
    if as_json:
        print_json({"run": launch.run_id, **asdict(pull), **asdict(reports), "forge": asdict(count)})
        return
    if launch.land != LAND_PR:
        way = f"; `garrison pr open {launch.run_id}` opens one for its branch" if launch.onto != launch.base else ""
        raise Refused(f"run {launch.run_id} has land={launch.land}, and so no pull request{way}")
    lines = [f"run {launch.run_id}: {pull.describe() or 'no pull request yet: it is opened at the exit'}",
             *([pull.url] if pull.url else []), f"{launch.onto} → {launch.remote}:{launch.base}",
             *(check.describe() for check in reports.checks), *(review.describe() for review in reports.reviews),
             *(f"{node} was sent back {times} time{'s' * (times != 1)}" for node, times in pull.returns.items()),
             f"{count.sent} requests ({count.not_modified} not modified), {count.looks} polls, {count.steps} steps",
             *([f"next poll {count.next_look}{f': {count.waits}' if count.waits else ''}"]
               if count.next_look and not state.over else [])]
    for line in lines:
        click.echo(clean(line))


@pr.command(examples=(("garrison pr sync work-1", "instead of waiting for the next poll"),
                      ("garrison pr sync work-1 --base trunk", "the base was renamed")))
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("--base", metavar="BRANCH", help="New base, a branch of the same remote.")
@home_option
def sync(run: str | None, base: str | None, home: str | None) -> None:
    """Make the guardian of RUN check the forge at once, without using cached results."""
    runtime = Runtime.real(find_home(home))
    launch = _choose(runtime, run)
    if launch.land != LAND_PR:
        raise Refused(f"run {launch.run_id} has land={launch.land}, and so no pull request")
    wishes = read_wishes(runtime.files(launch.run_id).root)
    if base is not None:
        _check_base(runtime, launch, base)
        wishes = replace(wishes, base=base)
    wake(runtime, launch.run_id, wishes if base is not None else None)
    print_message(f"run {launch.run_id} checks the forge at once if its guardian is alive; `garrison pr show "
                  f"{launch.run_id}` shows the result")


@pr.command("open", examples=(("garrison pr open work-1 --base origin:main", "a draft for a land=none run's branch"),
                              ("garrison pr open --again work-1", "another one, after the first was closed")))
@click.argument("run", shell_complete=completion.runs)
@click.option("--base", metavar="REMOTE:BRANCH", help="Base of the pull request (default: the upstream of the branch).")
@click.option("--again", is_flag=True, help="Open another one to replace a closed one.")
@home_option
def open_(run: str, base: str | None, home: str | None, *, again: bool) -> None:
    """Push the branch of RUN (after land=none or a failed landing) and open a draft for it; repeatable."""
    from garrison.pull_request.access import check_forge, connect
    from garrison.pull_request.client import PullRequestClient
    from garrison.pull_request.facts import ForgeStep, Relation, StepKind
    from garrison.pull_request.texts import write_section, write_title
    from garrison.pull_request.work import summarize
    from garrison.records.pull_request import PullRequest
    from garrison.system.git import Git

    runtime = Runtime.real(find_home(home))
    launch = runtime.launch(run)
    if launch.land == LAND_PR and again:
        _open_again(runtime, launch)
        return
    if launch.land == LAND_PR:
        raise Refused(f"run {run} opens its pull request itself; `garrison pr show {run}` shows it")
    git = Git(Path(launch.repo), home=runtime.home)
    tip = git.branch_tip(launch.onto)
    if tip is None or launch.onto == launch.base:
        raise Refused(f"run {run} has no branch of its own; runs with --land none or pr have")
    branch, remote, oid = check_forge(runtime, git, base)
    launch = replace(launch, land=LAND_PR, base=branch, remote=remote, base_oid=oid)
    options = read_config(runtime.home).pull_requests()
    forge, credentials = connect(git, remote, runtime.home, runtime.environ, options)
    wishes = read_wishes(runtime.files(run).root)
    client = PullRequestClient(forge, git, launch, options, lambda *_: "", credentials, wishes.given_up)
    facts = client.look(PullRequest())
    if again and facts.number and not facts.is_open and facts.merge is None:
        wake(runtime, run, replace(wishes, given_up=facts.number))
        client.given_up = facts.number
        facts = client.look(PullRequest())
    if facts.number and not facts.is_open and facts.merge is None:
        raise Refused(f"pull request #{facts.number} of this branch was closed; `garrison pr open --again {run}` opens "
                      "another one")
    if facts.relation in (Relation.REWRITTEN, Relation.AHEAD, Relation.DIVERGED):
        raise Refused(f"{remote} has a branch {launch.onto} with other commits ({facts.head[:10]}); remove it there")
    # each step is done only if the forge shows that it is missing, so that the command can be repeated
    if facts.relation is not Relation.SAME:
        client.take(ForgeStep(StepKind.PUSH, tip, facts.head), PullRequest(), "")
    if not facts.number:
        from garrison.launch.preflight import plan_launch
        from garrison.pipeline.parser import parse

        text = runtime.files(run).graph.read_text(encoding="utf-8")
        state = read_run_state(runtime, run)
        summary = summarize(runtime, launch, plan_launch(parse(text, run)), state, git, name=options.mention)
        client.take(ForgeStep(StepKind.OPEN, tip, text=write_section(summary)), PullRequest(), write_title(summary))
        facts = client.look(PullRequest())
    click.echo(facts.url)


def _check_base(runtime: Runtime, launch: Launch, base: str) -> None:
    """Raise Refused unless the run's remote has a branch of that name."""
    from garrison.merge.target import fetch_tip
    from garrison.pull_request.access import connect
    from garrison.pull_request.client import NETWORK_SECONDS
    from garrison.system.git import Git

    git = Git(Path(launch.repo), home=runtime.home)
    _, credentials = connect(git, launch.remote, runtime.home, runtime.environ,
                             read_config(runtime.home).pull_requests())
    if not fetch_tip(git, launch.remote, base, NETWORK_SECONDS, credentials):
        raise Refused(f"{launch.remote} has no branch {quote(base)}; name one that exists")


def _open_again(runtime: Runtime, launch: Launch) -> None:
    """Have a run abandon its closed request and open another one when it continues."""
    run, pull = launch.run_id, read_run_state(runtime, launch.run_id).pull_request
    if pull.state != PullRequestState.CLOSED:
        raise Refused(f"the pull request of run {run} was not closed: {pull.describe() or 'it is not open yet'}; "
                      f"`garrison pr show {run}` shows it")
    wake(runtime, run, replace(read_wishes(runtime.files(run).root), given_up=pull.number))
    print_message(f"`garrison resume {run}` opens a new pull request instead of #{pull.number}")
