"""What a queue runs and how: gate, set-up, strategy, cleaning, as recorded by a launcher or by a person. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from garrison.merge.entry import STRATEGIES

DEFAULT_TIMEOUT = 1800.0
"""Seconds a gate or set-up may take."""
CLEANING = ("untracked", "none", "ignored")
"""What is removed before a test: files neither tracked nor ignored; nothing; ignored files too. The first is the
default; what a set-up made always stays."""


@dataclass(frozen=True)
class QueueConfig:
    """What the queue runs: `gate` and `setup` are shell lines; without a gate only `no_gate` lets anything land."""

    gate: str | None = None
    setup: str | None = None
    no_gate: bool = False
    timeout: float = DEFAULT_TIMEOUT
    lock_files: tuple[str, ...] = ()
    """Files whose content decides when set-up runs again; empty: the common ones."""
    strategy: str = STRATEGIES[0]
    """Of entries that name none."""
    clean: str = CLEANING[0]
    """What is cleaned out of a slot before each test; see CLEANING."""
    keep: tuple[str, ...] = ()
    """Patterns, as in .gitignore, of files that stay for the next test whatever is cleaned."""
    gate_cores: int = 0
    """Cores that one run of the gate keeps busy, so that others may go on beside it where cores are idle; 0: all."""
    guard: bool = False
    """Whether a hook keeps everybody else from moving the target."""

    @property
    def ready(self) -> bool:
        """Whether entries may be judged at all."""
        return self.no_gate or bool(self.gate)

    @property
    def command_key(self) -> str:
        """What a verdict was given by: a short hash of gate and set-up."""
        return hashlib.sha256(f"{self.gate or ''}\0{self.setup or ''}".encode()).hexdigest()[:12]

    def same_gate(self, other: QueueConfig) -> bool:
        """Whether both judge alike."""
        return (self.gate, self.setup, self.no_gate) == (other.gate, other.setup, other.no_gate)

    def record(self) -> dict[str, Any]:
        """As it stands in the journal."""
        return {**asdict(self), "lock_files": list(self.lock_files), "keep": list(self.keep)}

    @classmethod
    def of(cls, data: dict[str, Any]) -> QueueConfig:
        """The inverse; what an older journal does not say is as it was then."""
        known: dict[str, Any] = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        listed: dict[str, Any] = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return cls(**{**known, **listed})

    def brought(self, new: QueueConfig) -> QueueConfig:
        """What a launcher's `new` makes of it: the gate and what belongs to it; the rest is for persons to say."""
        timeout = self.timeout if new.timeout == DEFAULT_TIMEOUT else new.timeout
        return replace(self, gate=new.gate, setup=new.setup, no_gate=new.no_gate, timeout=timeout,
                       lock_files=new.lock_files)

    def describe(self) -> str:
        """For people."""
        gate = "no gate" if self.no_gate else f"gate {self.gate!r}"
        return gate + (f" with setup {self.setup!r}" if self.setup else "")
