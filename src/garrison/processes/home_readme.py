"""What a release tells a home: README.md, what every file there is, and once, which defaults have changed since."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from garrison.config import checkout
from garrison.records import atomic

NAME = "README.md"
TOLD = "defaults-told"
"""File of a home with the number of changed defaults that its user has been told of."""
CHANGED_DEFAULTS = (
    "agents wait for an outage of their API as long as it lasts; before, a node failed after a few minutes",
    "work that acceptance, validator, review or gate refused is kept for the next attempt of an agent (rework=merge); "
    "rework=fresh on the node begins anew, as before",
    "a validator that cannot judge holds the finished branch and asks you; before, the work was refused",
    "submodules are fetched by the network of set-ups ([sandbox.setup]); before, by your own git: a host not in "
    "hosts = [...] is refused and named",
    "a goal gate takes a partial success; allow_partial=false on its node wants the whole, as before",
    "rework goes on in the refused session, once; rework=fresh on the node begins a fresh one, as before",
    "work that changes the gate's own files or agents' instructions waits for your approval, and secrets, nested "
    "repositories and large files that it commits are refused; [guard] gate = \"tell\" and so on land it as before",
    "work that its agent reports as a partial success waits for your approval; allow_partial=true on the node, or "
    "[guard] partial = \"tell\", lands it as before",
    "a session that goes round a second time asks you; before, its attempt failed. ACP agents and programs with a "
    "stream are watched, too",
    "ACP and command agents may make 300 model calls in an attempt, as Claude agents; [agents] turns = \"none\" sets "
    "no limit, as before",
    "Claude sessions get the instructions that CLAUDE.md and AGENTS.md import, and those of folders they look into; "
    "before, the text of the files at the top alone",
    "the log-in of `garrison login` stays outside the sandbox, and the proxy adds its token; `garrison login --where "
    "file` has agents work with a copy of it, as before",
)
"""Changes of defaults since version 0.1, oldest first; docs/upgrading.md has them all. Lines are only added."""


def write_readme(home: Path) -> None:
    """Write this release's page into a home, unless it is there already."""
    text = readme_text().encode()
    if atomic.read(home / NAME) != text:
        atomic.write(home / NAME, text, durable=False)


def readme_text() -> str:
    """Return the page: the checkout's, else the installed package's."""
    source = checkout()
    page = source / "state" / NAME if source is not None else resources.files("garrison") / "state" / NAME
    return page.read_text(encoding="utf-8")


def tell_changed_defaults(home: Path) -> list[str]:
    """Return a line for each default that has changed since this home was last used, once; none for a new home."""
    is_new = not any((home / "runs").iterdir()) if (home / "runs").is_dir() else True
    noted = (atomic.read(home / TOLD) or b"").strip()
    told = len(CHANGED_DEFAULTS) if is_new else int(noted) if noted.isdigit() else 0
    if (count := b"%d" % len(CHANGED_DEFAULTS)) != noted:
        atomic.write(atomic.make_directory(home) / TOLD, count + b"\n", durable=False)
    lines = [f"changed since your last launch: {line}" for line in CHANGED_DEFAULTS[told:]]
    return [*lines, "docs/upgrading.md lists every changed default"] if lines else []
