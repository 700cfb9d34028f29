"""`garrison run`: one task, in words, as a run without a pipeline file."""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import click

from garrison.agents.limits import describe_limits
from garrison.cli.begin import (
    OPTION_GROUPS,
    choose_agent,
    launch_options,
    make_request,
    name_of,
    read_task,
    read_text,
)
from garrison.cli.commands import Command
from garrison.cli.launch import announce_detached, create, follow_run, serve_page, start_detached
from garrison.cli.options import budget_option
from garrison.cli.output import ask, print_message
from garrison.cli.task_list import (
    ListedTask,
    check_tasks,
    choose_tasks,
    name_tasks,
    offer_sections,
    order_tasks,
    read_list,
    task_graph,
    task_name,
    words_of,
)
from garrison.cli.tick import landed_words, tick_landed, words_under_way
from garrison.directories import find_home
from garrison.errors import RecordError, Refused, UsageError
from garrison.launch import launch as launching
from garrison.pipeline.best_of import MAX_CANDIDATES
from garrison.processes.runtime import Runtime
from garrison.records.run import list_runs
from garrison.system.git import validate_repository

_TASK = {"Task": ("file", "command", "acceptance", "budget", "allow_empty"),
         "Candidates": ("best_of", "agents", "judge", "judge_command"),
         "List of tasks": ("tasks", "section", "in_order", "tick", "yes")}


@click.command(cls=Command, option_groups={**_TASK, **OPTION_GROUPS}, everyday=(
    "file", "tasks", "command", "acceptance", "agent", "gate", "setup", "approve", "max_agents", "detach", "serve",
), examples=(
    ('garrison run "fix the flaky test in test_cache.py" --agent codex', "prints progress until it has landed"),
    ('garrison run "update the changelog" --detach', "in the background, with the configured agent"),
    ("garrison run --tasks TODO.md", "every open item of the list is a task; one run does them all"),
    ('garrison run "format the code" --command "ruff format ."', "a command does it"),
))
@click.argument("words", nargs=-1, metavar="TASK...|-")
@click.option("--file", "file", metavar="FILE", type=click.Path(path_type=Path),
              help="File with the task, for a long one; `-` reads it from standard input.")
@click.option("--tasks", "tasks", metavar="FILE", type=click.Path(path_type=Path),
              help="File with a list of tasks: the unticked items of a Markdown list, or one task per line; `-` reads "
                   "it from standard input.")
@click.option("--section", multiple=True, metavar="HEADING", help="Only use the list below this heading (repeatable).")
@click.option("--in-order", is_flag=True,
              help="Do one task after the other; by default, a task waits only with `(after 2)` at its end.")
@click.option("--tick", is_flag=True,
              help="Tick landed tasks in FILE at the end: by a tested commit if git tracks it, else in place.")
@click.option("--yes", is_flag=True, help="Start the list of tasks without asking.")
@click.option("--command", metavar="CMD", help="Command that does the task instead of an agent.")
@click.option("--acceptance", metavar="CMD", help="Acceptance command for the work before it is queued.")
@budget_option
@click.option("--best-of", "best_of", type=click.IntRange(2, MAX_CANDIDATES), metavar="N",
              help=f"Have N candidates do it, at most {MAX_CANDIDATES}; the best one lands.")
@click.option("--candidates", "agents", metavar="LIST", help="Agents of the candidates, separated by commas.")
@click.option("--judge", metavar="WHO", help="Who chooses: person (default), first, command, or an agent.")
@click.option("--judge-command", "judge_command", metavar="CMD", help="Command that prints a candidate's score.")
@click.option("--allow-empty", is_flag=True, help="Count a task without changes, such as a question, as done.")
@launch_options
def run(words: tuple[str, ...], file: Path | None, tasks: Path | None, section: tuple[str, ...], command: str | None,
        acceptance: str | None, budget: str | None, home: str | None, target_dir: Path | None, agent: str | None,
        best_of: int | None, agents: str | None, judge: str | None, judge_command: str | None, *, in_order: bool,
        tick: bool, yes: bool, allow_empty: bool, detach: bool, dry_run: bool, serve: bool,
        as_json: bool, **options: Any) -> int | None:
    """Let one agent do TASK on the repository you are in, in its own worktree; land it if it passes the gate.

    Prints progress until the task has landed (exit code 0) or failed (1). Ctrl-C leaves the run in the background. With
    --tasks, every open task of a list is a node of one run; up to --max-agents run at once. Repeated calls take tasks
    that are not ticked, landed, or at work in another run.
    """
    listed = _read_tasks(tasks, words, file, section, in_order=in_order, tick=tick, yes=yes or dry_run)
    task = "" if tasks else read_task(words, file)
    if serve and detach:
        raise UsageError("--serve ends with this command; with --detach, run `garrison serve` afterwards")
    runtime = Runtime.real(find_home(home))
    here = target_dir or Path.cwd()
    candidates = {"best_of": str(best_of or ""), "agents": agents or "", "judge": judge or "",
                  "judge_command": judge_command or ""} if best_of or agents or judge or judge_command else {}
    if candidates and tasks:
        raise UsageError("candidates are for one task, not for a list")
    who = "command" if command else choose_agent(runtime, here, agent or (agents or "").split(",")[0].strip() or None)
    texts, waits, name = [task], list[tuple[int, ...]](), task_name(task)
    if tasks:
        target = validate_repository(here)
        texts, waits, options["new"] = _choose_open(runtime, target, listed, name_of(tasks), in_order=in_order,
                                                    new=options["new"])
        if not texts:
            return _tick_done(runtime, target, tasks, listed, wanted=tick and not dry_run)
        _announce(texts, waits, f"{len(texts)} task{'s' * (len(texts) != 1)} of {name_of(tasks)}, done by {who}")
        if not (yes or dry_run or _agrees(runtime.home, tasks, who, tick=tick)):
            return None
        name = task_name(tasks.stem if tasks.stem != "-" else "tasks")
    text = task_graph(texts, command, acceptance, waits, name, allow_empty=allow_empty, budget=budget,
                      best_of=candidates)
    request = make_request(Path(name), target_dir, text=text, agent=agent,
                           tick=str(tasks.absolute()) if tasks and tick else "", **options)
    is_followed = not (detach or dry_run)
    with launching.prepare_launcher(runtime, request.terminal, who) if is_followed else nullcontext() as start:
        created = create(runtime, request, dry_run=dry_run, as_json=as_json)
        if created is None:
            return None
        if serve:
            serve_page(runtime, created.run_id)
        pid = start_detached(runtime, created, ["--json"] if as_json else [], start=start)
    if detach:
        announce_detached(created.run_id, pid, as_json=as_json)
        return None
    print_message("Ctrl-C leaves it running in the background")
    return follow_run(runtime, created, as_json=as_json)


def _read_tasks(tasks: Path | None, words: tuple[str, ...], file: Path | None, section: tuple[str, ...], *,
                in_order: bool, tick: bool, yes: bool) -> list[ListedTask]:
    """Return the list of tasks, including ticked ones; UsageError for none, and for options that cannot be combined."""
    if tasks is None:
        if section or in_order or tick:
            option = "--section" if section else "--tick" if tick else "--in-order"
            raise UsageError(f"{option} is for a list of tasks: pass --tasks FILE")
        return []
    if tick and str(tasks) == "-":
        raise UsageError("--tick needs the file of the list: pass --tasks FILE")
    if words or file is not None:
        raise UsageError("pass the tasks as words, with --file or with --tasks, not several of these")
    every = read_list(read_text(tasks))
    if not section and not yes and (offers := offer_sections(every)):
        section = _ask_section(tasks, offers)
    listed = choose_tasks(every, section, name_of(tasks))
    if not listed:
        raise UsageError(f"{name_of(tasks)} has no task; write one per line, or a Markdown list: - fix the parser")
    check_tasks(listed, name_of(tasks))
    return listed


def _choose_open(runtime: Runtime, target: Path, listed: list[ListedTask], source: str, *, in_order: bool, new: bool
                 ) -> tuple[list[str], list[tuple[int, ...]], bool]:
    """Return the texts of the tasks to do (empty if none is left), the indexes of each task's dependencies, and whether
    the run is a `new` one in parallel to another.

    Tasks at work in another run are left out.
    """
    landed = landed_words(runtime, str(target))
    open_ = [place for place, task in enumerate(listed) if not task.ticked and words_of(task.text) not in landed]
    under_way = words_under_way(runtime, str(target)) if open_ else {}
    busy = {place: run for place in open_ if (run := under_way.get(words_of(listed[place].text)))}
    places = [place for place in open_ if place not in busy]
    runs = " and ".join(dict.fromkeys(busy.values()))
    if not places:
        print_message(f"nothing to do: every task of {source} is ticked or landed" + (
            f", or at work in {runs}; `garrison status {busy[min(busy)]} --watch` shows it" if busy else ""))
        return [], [], new
    waits = order_tasks(listed, places, source, in_order=in_order, busy=busy)
    ticked = sum(task.ticked for task in listed)
    left_out = [(ticked, "ticked"), (len(listed) - ticked - len(open_), "landed"), (len(busy), f"at work in {runs}")]
    if told := ", ".join(f"{count} {what}" for count, what in left_out if count):
        print_message(f"left out of the {len(listed)} tasks of {source}: {told}")
    return ([listed[place].text for place in places],
            [tuple(places.index(other) for other in waits[place]) for place in places], new or bool(busy))


def _tick_done(runtime: Runtime, target: Path, tasks: Path, listed: list[ListedTask], *, wanted: bool) -> int:
    """Tick on request what earlier runs have landed, if nothing is left to do in the list."""
    for run in reversed(list_runs(runtime.home)) if wanted and not all(task.ticked for task in listed) else ():
        with suppress(RecordError):  # doctor reports a damaged run
            launch = runtime.launch(run)
            if launch.repo == str(target) and not launch.adhoc:
                print_message(tick_landed(runtime, launch, tasks.absolute()))
                break
    return 0


def _announce(texts: list[str], waits: list[tuple[int, ...]], head: str) -> None:
    """Print the tasks, with the names of their nodes and the numbers of their dependencies."""
    print_message(f"{head}:")
    for number, (name, text, before) in enumerate(zip(name_tasks(texts), texts, waits, strict=True), 1):
        after = f" (after {', '.join(str(other + 1) for other in before)})" if before else ""
        print_message(f"{number:4}. {text.partition(chr(10))[0][:60]}{after}  [{name}]")


def _agrees(home: Path, tasks: Path, agent: str, *, tick: bool) -> bool:
    """Print the budget per task, and ask the user whether to start the list; Refused if nobody can answer, or the list
    could not be ticked later."""
    for line in describe_limits([("each task", agent, {})], home):
        print_message(line)
    answer = _ask(tasks, "start them? [y/N] ")
    if answer is None:
        raise Refused("nothing was started, since nobody can be asked here; pass --yes to start the list")
    agrees = answer.casefold() in ("y", "yes")
    if not agrees:
        print_message("nothing was started")
    elif tick and not tasks.is_file():
        raise Refused(f"nothing was started: {tasks} is gone and could not be ticked; restore it, or leave out --tick")
    return agrees


def _ask_section(tasks: Path, offers: dict[str, int]) -> tuple[str, ...]:
    """Ask the user which list of a file to use; return its heading, nothing if nobody can answer."""
    headings = list(offers)
    lines = [f"{number:4}. {words} ({offers[words]})" for number, words in enumerate(headings, 1)]
    prompt = "\n".join([f"{name_of(tasks)} has tasks under several headings:", *lines, "which? [number] "])
    while (answer := _ask(tasks, prompt)) is not None:
        if answer.isdecimal() and 0 < int(answer) <= len(headings):
            return (headings[int(answer) - 1],)
        if answer.casefold() in map(str.casefold, headings):
            return (answer,)
        if not answer:
            raise Refused("nothing was started; --section HEADING names the list")
        prompt = f"{answer} is not one of them; which? [number] "
    return ()


def _ask(tasks: Path, prompt: str) -> str | None:
    """Return the user's answer, '' at the end of input; None if nobody can be asked.

    A list on standard input has consumed it, so the answer comes from the terminal.
    """
    if not sys.stderr.isatty() or not (sys.stdin.isatty() or str(tasks) == "-"):
        return None
    try:
        with Path("/dev/tty").open("rb", buffering=0) if str(tasks) == "-" else nullcontext() as terminal:
            return ask(prompt, terminal).strip()
    except EOFError:
        print(file=sys.stderr)
        return ""
    except OSError:  # no controlling terminal
        return None
