"""How often an attempt is repeated and after which delay. Pure.

The rule of this room: a delay is arithmetic on the attempt's number and a seed, so that a run resumed elsewhere waits
as long as one that was not; nothing here sleeps or asks a clock.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from garrison.errors import Refused
from garrison.pipeline.graph import flag, number, text

CAP_S = 60.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `attempts` attempts; before the nth repetition `first_s` x `factor` ** (n - 1) seconds, at most 60.

    With `jitter` a delay is multiplied by 0.5 to 1.5.
    """

    attempts: int = 1
    first_s: float = 0.2
    factor: float = 2.0
    jitter: bool = True

    def delay(self, repetition: int, seed: str) -> float:
        """Seconds before the given repetition (from 1); the same for the same `seed`."""
        try:
            base = min(self.first_s * self.factor ** (repetition - 1), CAP_S)
        except OverflowError:
            base = CAP_S
        # The seed decides, so that a resumed run waits as long; the strength of the generator does not matter.
        spread = random.Random(seed).uniform(0.5, 1.5) if self.jitter else 1.0
        return round(min(base * spread, CAP_S), 6)


NO_RETRY = RetryPolicy()

PRESETS: Mapping[str, RetryPolicy] = {
    "none": NO_RETRY,
    "standard": RetryPolicy(5),
    "aggressive": RetryPolicy(5, 0.5),
    "linear": RetryPolicy(3, 0.5, 1.0),
    "patient": RetryPolicy(3, 2.0, 3.0),
}
"""What `retry_policy` may name."""


def policy_of(node: Mapping[str, str], graph: Mapping[str, str]) -> RetryPolicy:
    """The policy of a node from its attributes and the graph's.

    The number of repetitions is `max_retries` of the node; else its `retry_policy`; else `default_max_retries` (or
    `default_max_retry`) of the graph; else the graph's `retry_policy`; else none. The delays are those of the policy
    that is named, the node's before the graph's. Refused for a name that is no preset, TypeConflict for no number.
    """
    own, common = _preset(node), _preset(graph)
    shape = own or common or PRESETS["standard"]
    repetitions = number(node, "max_retries")
    if repetitions is None and own is None:
        repetitions = number(graph, "default_max_retries", number(graph, "default_max_retry"))
    if repetitions is None:
        repetitions = shape.attempts - 1 if own or common else 0
    jitter = flag(node, "retry_jitter", flag(graph, "retry_jitter", True))
    return replace(shape, attempts=max(int(repetitions), 0) + 1, jitter=jitter)


def _preset(attrs: Mapping[str, str]) -> RetryPolicy | None:
    name = text(attrs, "retry_policy")
    if name is None:
        return None
    if name.strip().lower() not in PRESETS:
        raise Refused(f"retry_policy={name!r:.40} is none of {', '.join(PRESETS)}")
    return PRESETS[name.strip().lower()]
