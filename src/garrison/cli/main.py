"""`garrison`: the table of all commands, each imported when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from garrison.cli.commands import LazyGroup, run_command
from garrison.cli.options import home_option, use_home

COMMANDS = {
    "init": ("init", "init", "Prepare a repository: find its gate and set-up, try them, write garrison.toml."),
    "new": ("new", "new", "Write a pipeline from a template."),
    "launch": ("launch", "launch", "Run a pipeline on a repository, or resume an unfinished run."),
    "run": ("run", "run", "Let an agent do one task, given in words, and land it."),
    "up": ("launch", "up", "Start what every unfinished run lacks: its launcher, or an ad-hoc run's runner."),
    "stop": ("launch", "stop", "Stop a run gracefully; it can be resumed."),
    "status": ("status", "status", "Show runs, their nodes and processes, and what failed; --watch redraws."),
    "top": ("top", "top", "Watch processes, queue, costs and deaths live, and act on them."),
    "serve": ("serve", "serve", "Serve the web page: watch runs live and act on them."),
    "why": ("why", "why", "Explain what was done about a node or an agent, and on which evidence."),
    "events": ("events", "events", "Print events as lines or JSON; -f follows."),
    "metrics": ("metrics", "metrics", "Print metrics in Prometheus format."),
    "logs": ("logs", "logs", "Show the output of a node's agent or of a process."),
    "attach": ("attach", "attach", "Watch a node's session, or type into it."),
    "answer": ("answer", "answer", "Answer a question of an agent or of a gate."),
    "report": ("agent_requests", "report", "Report the result of the node whose agent calls this."),
    "note": ("agent_requests", "note", "Leave a note for the calling agent's successor."),
    "phase": ("agent_requests", "phase", "Report how far the calling agent's work is."),
    "ask-person": ("agent_requests", "ask_person", "Ask a person from inside an agent; print the answer."),
    "review": ("review", "review", "Show what waits to land; approve or reject it."),
    "workflow": ("workflows", "workflow", "Run tools in dependency order, with results passed between steps."),
    "session": ("sessions", "session", "Talk to a session whose flow is a graph."),
    "ask": ("chat", "ask", "Ask the butler a question; specialists use garrison's own commands."),
    "chat": ("chat", "chat", "Chat with the butler."),
    "tell": ("tell", "tell", "Tell a Claude session something at its next turn."),
    "takeover": ("takeover", "takeover", "Take over a Claude agent's session; the agent waits meanwhile."),
    "login": ("login", "login", "Log in the home's Claude agents."),
    "cost": ("cost", "cost", "Show what calls of models have cost."),
    "rescue": ("rescue", "rescue", "List, inspect and restore saved work."),
    "clean": ("clean", "clean", "Remove what finished runs left behind."),
    "doctor": ("doctor", "doctor", "Find problems in a home; --fix repairs them."),
    "agents": ("agents", "agents", "List and control agents."),
    "prompt": ("prompt", "prompt", "Print what a node's agent was told, or would be told."),
    "signals": ("signals", "signals", "List and send signals."),
    "merge-queue": ("merge_queue", "merge_queue", "Inspect, fill and control the merge queue."),
    "pipeline": ("pipeline", "pipeline", "Check, draw and try pipelines."),
    "demo": ("demo", "demo", "Watch agents work while each process is killed once."),
    "home": ("home", "home", "Print the state directory."),
    "completion": ("completion", "completion", "Print the completion script for bash, zsh or fish."),
}
"""Command → (module of garrison.cli, attribute, help line)."""


EPILOG = """\b
Examples:
  garrison launch work.dot --target-dir ~/src/project --gate "make test"
  garrison status --watch
  garrison COMMAND --help      options and examples of a command

\b
Completion:
  garrison completion bash >> ~/.bashrc      (zsh and fish: garrison completion --help)
"""


@click.group(cls=LazyGroup, table=COMMANDS, epilog=EPILOG)
@click.version_option(package_name="garrison")
@home_option
def garrison(home: str | None) -> None:
    """Keep a crew of coding agents at work on one git repository."""
    use_home(home)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `garrison …`; returns the exit code."""
    return run_command(garrison, argv, "garrison")


if __name__ == "__main__":
    sys.exit(main())
