"""An independent checker of whole runs: compares what garrison recorded with git and with the gates' attestations.

It reads three things: the run's events in the form of `garrison events RUN --json`, the repository by the `git`
command, and the attestations, in which each gate run wrote which commit it found checked out. It imports nothing else
of garrison, so that a mistake there cannot hide itself here; import-linter holds this. Each `Finding` names the
`Promise` that was broken.

    findings = check(read_events(lines), Repository(path), read_attestations(texts))
"""

from garrison.testing.checker.attestations import Attestation, Attestations, read_attestations
from garrison.testing.checker.history import Event, History, UnreadableHistory, read_events
from garrison.testing.checker.promises import Finding, Promise, check
from garrison.testing.checker.repository import Repository

__all__ = ["Attestation", "Attestations", "Event", "Finding", "History", "Promise", "Repository", "UnreadableHistory",
           "check", "read_attestations", "read_events"]
