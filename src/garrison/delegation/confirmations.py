"""Confirmations: commands that stop or change runs are proposed, and run only if the user agrees in the next message.

No model decides whether the user agreed, or runs the command: an agent's tool only records a proposal, the conversation
keeps it, and a message such as `yes` runs it as shown. Any other message drops it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from garrison.delegation.models import Proposal

AGREEMENT = frozenset({"yes", "y", "yes please", "yes, please", "ok", "okay", "do it", "yes, do it", "go ahead",
                       "confirm", "confirmed", "agreed"})
"""Messages that agree to all open proposals, in lower case and without a final full stop."""
REFUSAL = frozenset({"no", "n", "no thanks", "no, thanks", "don't", "do not", "cancel", "not now"})
"""Messages that only drop all open proposals, in the same form."""
DROPPED = "Nothing was changed."
PROPOSED = ("NOT DONE YET. This changes a run, so the user is asked first: `{command}` is shown to them as your "
            "proposal and runs only if they agree. Do not call it again, and say that it waits for their approval.")
Run = Callable[[Sequence[str]], Awaitable[str]]
"""Runs `garrison ARGS` and returns the output."""


class Confirmations:
    """Proposals of the message in progress, and the execution of accepted ones."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._proposals: dict[Proposal, None] = {}

    def propose(self, words: Sequence[str]) -> str:
        """Record a command; return the reply to the agent."""
        proposal = Proposal(words=tuple(words))
        self._proposals[proposal] = None
        return PROPOSED.format(command=proposal)

    def take(self) -> tuple[Proposal, ...]:
        """Return the proposals since the last call, each once."""
        proposals, self._proposals = tuple(self._proposals), {}
        return proposals

    async def carry_out(self, proposals: Sequence[Proposal]) -> tuple[str, bool]:
        """Run the commands one after the other; return their output, and whether all succeeded."""
        lines, success = [], True
        for proposal in proposals:
            try:
                lines.append(f"`{proposal}`: {await self._run(proposal.words)}")
            except Exception as error:  # any failure is shown to the user
                lines.append(f"`{proposal}` failed: {error}")
                success = False
        return "\n".join(lines), success


def agrees(message: str) -> bool:
    return _plain(message) in AGREEMENT


def declines(message: str) -> bool:
    return _plain(message) in REFUSAL


def _plain(message: str) -> str:
    return " ".join(message.lower().split()).rstrip(".!")


def request(proposals: Sequence[Proposal]) -> str:
    commands = "\n".join(f"    {proposal}" for proposal in proposals)
    return f"\n\nNothing has been changed yet. Shall I run this? Answer `yes`; any other answer drops it.\n{commands}"
