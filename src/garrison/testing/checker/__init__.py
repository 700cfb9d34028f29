"""An independent checker of whole runs: compares what garrison recorded with git and with the gates' attestations.

It reads the run's events in the form of `garrison events RUN --json`, the repository by the `git` command, the
attestations, in which each gate run wrote the commit it found checked out, and the costs of model calls in the form of
`garrison cost RUN --calls`. It imports nothing else of garrison, so that a mistake there cannot hide itself here;
import-linter enforces this. Each `BrokenPromise` names the `Promise` that was broken. docs/proof.md describes the
forms.

    findings = check(read_events(lines), CheckedRepository(path), read_attestations(texts),
                     spending=read_spending(costs))
"""

from garrison.testing.checker.attestations import Attestation, Attestations, UnreadableAttestations, read_attestations
from garrison.testing.checker.gates import since_whole
from garrison.testing.checker.history import History, JournalEvent, UnreadableHistory, read_events
from garrison.testing.checker.promises import BrokenPromise, Promise, check
from garrison.testing.checker.repository import CheckedRepository
from garrison.testing.checker.spending import SpentCall, UnreadableSpending, read_spending

__all__ = [
           "Attestation",
           "Attestations",
           "BrokenPromise",
           "CheckedRepository",
           "History",
           "JournalEvent",
           "Promise",
           "SpentCall",
           "UnreadableAttestations",
           "UnreadableHistory",
           "UnreadableSpending",
           "check",
           "read_attestations",
           "read_events",
           "read_spending",
           "since_whole",
]
