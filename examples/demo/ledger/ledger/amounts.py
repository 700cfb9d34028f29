"""Amounts of money in whole cents, so that nothing is ever rounded twice, and sums of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBER = re.compile(r"(-?)(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d{1,2}))?")


class AmountError(ValueError):
    """A text is not an amount, or two amounts do not go together."""


@dataclass(frozen=True)
class Amount:
    """A sum of money, in cents; negative amounts leave an account."""

    cents: int

    @classmethod
    def parse(cls, text: str) -> Amount:
        """Read `12`, `-1,234.50` or `0.5`; raise AmountError for anything else."""
        match = NUMBER.fullmatch(text.strip())
        if match is None:
            raise AmountError(f"not an amount: {text.strip()!r}")
        return cls(parse_cents(*match.groups()))

    def __neg__(self) -> Amount:
        return Amount(-self.cents)

    def __str__(self) -> str:
        return format_cents(self.cents)


def parse_cents(sign, units, fraction):
    cents = int(units.replace(",", "")) * 100 + int((fraction or "0").ljust(2, "0"))
    return -cents if sign else cents


def format_cents(cents):
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100:,}.{abs(cents) % 100:02d}"


class Total:
    """A running sum of amounts."""

    def __init__(self) -> None:
        self._cents = 0

    def add(self, amount: Amount) -> None:
        """Count one more amount."""
        self._cents += amount.cents

    def amounts(self) -> list[Amount]:
        """The sum as amounts, none if it is zero."""
        return [Amount(self._cents)] if self._cents else []

    def is_zero(self):
        return not self.amounts()
