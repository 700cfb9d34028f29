"""Configuration of a queue: gate, set-up, strategy and cleaning, recorded by a launcher or the user. Pure."""

from __future__ import annotations

import hashlib
import shlex
from typing import TYPE_CHECKING

from garrison.merge.entry import STRATEGIES
from garrison.records.record import from_data
from garrison.system.git.signing import Signer
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.records.run import Launch

DEFAULT_TIMEOUT = 1800.0
"""Seconds a gate or set-up may take."""
CLEANING = ("untracked", "none", "ignored")
"""Files removed before a test: untracked ones that are not ignored (the default); none; ignored ones as well. Files
made by a set-up always stay."""
BATCH_HISTORY = ("tip", "chain")
"""What a batch adds to the target's first-parent line: one merge with the tested tree (the default); or the commit of
each entry, of which only the last one's tree was tested."""
_VOLATILE = frozenset({"TERM", "TMPDIR", "XDG_RUNTIME_DIR", "SHELL"})
"""Environment variables that differ between terminals, not between machines."""

_HOOK = """\
hook=$(git rev-parse --git-path hooks/pre-commit) && tested=$(git rev-parse HEAD) || exit
base=$(git merge-base HEAD {ref}) || base=$tested
if [ -x "$hook" ] && [ "$base" != "$tested" ]; then
    git update-ref --no-deref HEAD "$base"
    GIT_EDITOR=: "$hook"
    refused=$?
    git update-ref --no-deref HEAD "$tested"
    [ "$refused" = 0 ] || {{ echo "the repository's own pre-commit hook refused it (exit code $refused)"; exit 1; }}
fi
"""
"""Gives the hook what would land, as staged changes in the slot."""


class QueueConfig(Value):
    """Settings of a queue. `gate` and `setup` are shell lines; without a gate nothing lands unless `no_gate` is set."""

    gate: str | None = None
    setup: str | None = None
    no_gate: bool = False
    timeout: float = DEFAULT_TIMEOUT
    lock_files: tuple[str, ...] = ()
    """Files whose content decides when set-up runs again; empty: the common ones."""
    strategy: str = STRATEGIES[0]
    """Strategy of entries that name none."""
    clean: str = CLEANING[0]
    """Cleaning of a slot before each test; see CLEANING."""
    keep: tuple[str, ...] = ()
    """Patterns, as in .gitignore, of files that cleaning never removes."""
    gate_cores: int = 0
    """Cores that one gate run keeps busy; other runs may use the rest; 0: all."""
    guard: bool = False
    """Set if a git hook prevents everyone else from moving the target."""
    hooks: str = ""
    """Hash of the user's reference-transaction hook that runs at a landing; '' if none was requested."""
    gate_from_target: tuple[str, ...] = ()
    """Patterns of files that the gate sees in the target's version, whatever the tested branch changed."""
    batch_history: str = BATCH_HISTORY[0]
    """How a batch is shown in the target's history; see BATCH_HISTORY."""
    max_batch: int = 0
    """Maximum number of entries tested together; 0: the queue chooses."""
    beliefs: bool = True
    """Set if the queue's history influences which entries are tested together."""
    commit_hook: str = ""
    """Ref of the target if the repository's pre-commit hook checks the tested changes against it, as part of the gate;
    else ''."""
    committer: str = ""
    """Committer of landings, `Name <address>`; '': garrison, if git knows no name of the user."""
    signer: Signer | None = None
    """How landings are signed; None: not at all."""

    @classmethod
    def from_launch(cls, launch: Launch, timeout: float = DEFAULT_TIMEOUT) -> QueueConfig:
        """Return a launch's configuration of the queue of its target."""
        return cls(launch.gate, launch.setup, launch.no_gate, timeout, tuple(launch.lock_files), hooks=launch.hooks,
                   gate_from_target=tuple(launch.gate_from_target), committer=launch.committer,
                   signer=read_signer(launch.signer), commit_hook=launch.base_ref if launch.commit_hook else "")

    @property
    def is_ready(self) -> bool:
        return self.no_gate or bool(self.gate)

    @property
    def command_key(self) -> str:
        """Return a short hash of gate, set-up and `gate_from_target`."""
        fixed = "".join(f"\0{pattern}" for pattern in self.gate_from_target)
        fixed += f"\0hook {self.commit_hook}" if self.commit_hook else ""
        return hashlib.sha256(f"{self.gate or ''}\0{self.setup or ''}{fixed}".encode()).hexdigest()[:12]

    @property
    def gate_command(self) -> str:
        """Return the shell line that tests a tree: the gate, after the repository's hook if that is part of it."""
        hook = _HOOK.format(ref=shlex.quote(self.commit_hook)) if self.commit_hook else ""
        return hook + (self.gate or "")

    def verdict_key(self, environment: Mapping[str, str], targets_files: str = "") -> str:
        """Return the key of verdicts: a hash of gate, set-up and their environment.

        Verdicts on one tree are exchangeable if their keys are equal.

        Args:
            targets_files: the target's files that match `gate_from_target`.
        """
        # garrison's own variables differ between runs and slots and do not affect what a gate tests
        text = "\0".join(f"{name}={value}" for name, value in sorted(environment.items())
                         if name not in _VOLATILE and not name.startswith("GARRISON_"))
        text += f"\0\0{targets_files}" if targets_files else ""
        return f"{self.command_key}-{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:8]}"

    def has_same_gate(self, other: QueueConfig) -> bool:
        return (self.gate, self.setup, self.no_gate, self.gate_from_target) == (
            other.gate, other.setup, other.no_gate, other.gate_from_target)

    def with_gate_of(self, launched: QueueConfig) -> QueueConfig:
        """Return a copy with the gate, set-up and time limit of a launcher; other settings are the user's."""
        timeout = self.timeout if launched.timeout == DEFAULT_TIMEOUT else launched.timeout
        return replace(self, gate=launched.gate, setup=launched.setup, no_gate=launched.no_gate, timeout=timeout,
                       lock_files=launched.lock_files, hooks=launched.hooks or self.hooks,
                       gate_from_target=launched.gate_from_target or self.gate_from_target,
                       committer=launched.committer or self.committer, signer=launched.signer,
                       commit_hook=launched.commit_hook)

    def describe(self) -> str:
        gate = "no gate" if self.no_gate else f"gate {self.gate!r}"
        fixed = f", {' '.join(self.gate_from_target)} from the target" if self.gate_from_target else ""
        return gate + (f" with setup {self.setup!r}" if self.setup else "") + fixed


def read_signer(data: Mapping[str, object]) -> Signer | None:
    """Return the signer of a launch; None for none."""
    return from_data(Signer, data) if data else None


def explain_gate_mismatch(recorded: QueueConfig | None, new: QueueConfig, *, unfinished: int, processor: bool,
                          ) -> str | None:
    """Return why the queue keeps its recorded gate, None if it accepts (or already has) the new one.

    `unfinished` is the number of entries still to be judged, `processor` whether a processor is alive.
    """
    if recorded is None or not recorded.is_ready or recorded.has_same_gate(new):
        return None
    if not unfinished and not processor:
        return None
    busy = f"{unfinished} unfinished entries" if unfinished else "a running processor"
    return (f"this queue has {recorded.describe()}, you bring {new.describe()}, and it has {busy}; use the recorded "
            "gate, or wait until the queue is empty and no processor runs")
