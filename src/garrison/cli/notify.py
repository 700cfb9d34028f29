"""`garrison notify test`: send one message to every configured target and report each result.

The message is sent like a run's: by the same programs with the same time limit, in separate processes.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import click

from garrison.cli.commands import Command, Group
from garrison.cli.options import home_option
from garrison.cli.output import print_message
from garrison.config import read_config
from garrison.directories import find_home
from garrison.errors import Refused
from garrison.run.notifications import Notification, deliveries, has_services
from garrison.system.terminal_text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.config import NotifyConfig
    from garrison.run.notifications import Delivery

TEST = Notification("test", "test", "This is a test: garrison can notify you.")
RUN = "test"


@click.group(cls=Group)
def notify() -> None:
    """Send messages by services, a command, a webhook and to paired phones."""


@notify.command("test", cls=Command, examples=(("garrison notify test", "a line per target; exit code 1 on failure"),))
@home_option
def test(home: str | None) -> None:
    """Send a test message to all targets in `[notify]`, and to paired phones with notifications."""
    state = find_home(home)
    config = read_config(state).notify()
    services = state if has_services(state, config, os.environ) else None
    found = deliveries(config, RUN, TEST, services)
    if not found:
        raise Refused("nothing to notify: `[notify]` of config.toml names no command, webhook or urls_file, and no "
                      "phone is paired (docs/notify.md)")
    failed = [delivery.name for delivery in found if not _is_sent(config, delivery, os.environ, state)]
    if failed:
        raise Refused(f"not sent: {', '.join(failed)}")


def _is_sent(config: NotifyConfig, delivery: Delivery, environ: Mapping[str, str], home: Path) -> bool:
    """Run the program of a delivery, and print its output."""
    body = {"run": RUN, "event": TEST.event, "text": TEST.text, "node": "", "key": TEST.key}
    # on standard input: every user of the machine can read command lines
    text = (f"{delivery.secret}\n" if delivery.secret else "") + json.dumps(body)
    told = {"GARRISON_NOTIFY_TEXT": TEST.text, "GARRISON_NOTIFY_RUN": RUN, "GARRISON_NOTIFY_EVENT": TEST.event,
            "GARRISON_NOTIFY_NODE": ""}
    try:
        done = subprocess.run(delivery.argv, input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**environ, **told}, cwd=os.sep, timeout=config.timeout, check=False)
    except subprocess.TimeoutExpired:
        print_message(f"{delivery.name}: no answer within {config.timeout:g} s (timeout of [notify])")
        return False
    except OSError as error:
        print_message(f"{delivery.name}: could not be run: {error.strerror}")
        return False
    for line in done.stdout.decode(errors="replace").splitlines():
        click.echo(clean(line))
    if delivery.name != "services":
        click.echo(f"{delivery.name}: {'not sent' if done.returncode else 'sent'}")
    return done.returncode == 0
