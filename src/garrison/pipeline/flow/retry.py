"""Retry policy: how often an attempt is retried, and after which delay. Pure.

A delay depends only on the number of the retry and a seed, so that a resumed run waits as long as any other.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from garrison.errors import Refused
from garrison.pipeline.graph import flag, number, text
from garrison.values import Value, replace

CAP_S = 60.0


class RetryPolicy(Value):
    """At most `attempts` attempts; `first_s` x `factor` ** (n - 1) seconds before the nth retry, at most 60.

    With `jitter` a delay is multiplied by 0.5 to 1.5.
    """

    attempts: int = 1
    first_s: float = 0.2
    factor: float = 2.0
    jitter: bool = True

    def delay(self, retry: int, seed: str) -> float:
        """Return the seconds before a retry (from 1); the same for the same `seed`."""
        try:
            base = min(self.first_s * self.factor ** (retry - 1), CAP_S)
        except OverflowError:
            base = CAP_S
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
"""Policies that `retry_policy` may name."""


def retry_policy_of(node: Mapping[str, str], graph: Mapping[str, str]) -> RetryPolicy:
    """Return the policy of a node from its attributes and the graph's.

    The number of retries is `max_retries` of the node; else its `retry_policy`; else `default_max_retries` (or
    `default_max_retry`) of the graph; else the graph's `retry_policy`; else none. The delays are those of the named
    policy, the node's before the graph's. Raise Refused for an unknown policy, TypeConflict for a bad number.
    """
    node_preset, graph_preset = _preset(node), _preset(graph)
    preset = node_preset or graph_preset or PRESETS["standard"]
    retries = number(node, "max_retries")
    if retries is None and node_preset is None:
        retries = number(graph, "default_max_retries", number(graph, "default_max_retry"))
    if retries is None:
        retries = preset.attempts - 1 if node_preset or graph_preset else 0
    jitter = flag(node, "retry_jitter", flag(graph, "retry_jitter", True))
    return replace(preset, attempts=max(int(retries), 0) + 1, jitter=jitter)


def _preset(attrs: Mapping[str, str]) -> RetryPolicy | None:
    name = text(attrs, "retry_policy")
    if name is None:
        return None
    if name.strip().lower() not in PRESETS:
        raise Refused(f"retry_policy={name!r:.40} is unknown; use {', '.join(PRESETS)}")
    return PRESETS[name.strip().lower()]
