"""Configuration of a queue: gate, set-up, strategy and cleaning, as a launcher or the user recorded them. Pure."""

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
"""Files that are removed before a test: those neither tracked nor ignored; none; ignored ones too. The first is the
default; what a set-up made always stays."""
BATCH_HISTORY = ("tip", "chain")
"""What the target's first-parent line gets from a batch: one merge of the tree that was tested; or the commit of each
entry, of which only the last one's tree was tested. The first is the default."""
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
"""Gives what would land to the hook, as changes that are added and not yet committed, in the slot."""


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
    """Patterns, as in .gitignore, of files that stay for the next test whatever is cleaned."""
    gate_cores: int = 0
    """Cores that one gate run keeps busy, so that others may run alongside it on idle cores; 0: all."""
    guard: bool = False
    """Set if a git hook keeps everyone else from moving the target."""
    hooks: str = ""
    """Hash of the user's reference-transaction hook that is asked before a landing; '' if none was asked for."""
    gate_from_target: tuple[str, ...] = ()
    """Patterns of files that the gate sees as the target has them, whatever the tested branch did to them."""
    batch_history: str = BATCH_HISTORY[0]
    """How a batch is shown in the target's history; see BATCH_HISTORY."""
    max_batch: int = 0
    """Entries to test together at most; 0: as many as the queue chooses."""
    beliefs: bool = True
    """Set if the history of the queue decides which entries are tested with which; else all count alike."""
    commit_hook: str = ""
    """Ref of the target if the repository's own pre-commit hook looks at what the tested tree adds to that, as part of
    the gate; '' if it does not."""
    committer: str = ""
    """Who commits what lands, `Name <address>`; '': garrison, which knows no name of the user's."""
    signer: Signer | None = None
    """How what lands is signed; None: not at all."""

    @classmethod
    def from_launch(cls, launch: Launch, timeout: float = DEFAULT_TIMEOUT) -> QueueConfig:
        """Return the configuration with which a launch tests what lands on its target."""
        return cls(launch.gate, launch.setup, launch.no_gate, timeout, tuple(launch.lock_files), hooks=launch.hooks,
                   gate_from_target=tuple(launch.gate_from_target), committer=launch.committer,
                   signer=read_signer(launch.signer), commit_hook=launch.base_ref if launch.commit_hook else "")

    @property
    def is_ready(self) -> bool:
        return self.no_gate or bool(self.gate)

    @property
    def command_key(self) -> str:
        """Return a short hash of gate and set-up, and of the files that are the target's."""
        fixed = "".join(f"\0{pattern}" for pattern in self.gate_from_target)
        fixed += f"\0hook {self.commit_hook}" if self.commit_hook else ""
        return hashlib.sha256(f"{self.gate or ''}\0{self.setup or ''}{fixed}".encode()).hexdigest()[:12]

    @property
    def gate_command(self) -> str:
        """Return the shell line that tests a tree: the gate, after the repository's hook if that is part of it."""
        hook = _HOOK.format(ref=shlex.quote(self.commit_hook)) if self.commit_hook else ""
        return hook + (self.gate or "")

    def verdict_key(self, environment: Mapping[str, str], targets_files: str = "") -> str:
        """Return the key of verdicts: a hash of gate, set-up and the environment that they see.

        Verdicts on one tree are exchangeable if their keys are equal.

        Args:
            targets_files: what the target has of `gate_from_target`.
        """
        # garrison's own variables differ between runs and slots, and say nothing about what a gate tests.
        text = "\0".join(f"{name}={value}" for name, value in sorted(environment.items())
                         if name not in _VOLATILE and not name.startswith("GARRISON_"))
        text += f"\0\0{targets_files}" if targets_files else ""
        return f"{self.command_key}-{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:8]}"

    def has_same_gate(self, other: QueueConfig) -> bool:
        return (self.gate, self.setup, self.no_gate, self.gate_from_target) == (
            other.gate, other.setup, other.no_gate, other.gate_from_target)

    def with_gate_of(self, launched: QueueConfig) -> QueueConfig:
        """Return it with the gate, set-up and time limit of a launcher; other settings are for people to change."""
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
    """Return a signer as a launch has it; None for none."""
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
