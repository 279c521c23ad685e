"""Whole numbers that depend on the length of the sequences, as model.json writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import sympy

SAMPLES = sympy.Symbol("n", integer=True, positive=True)
LENGTH = sympy.Symbol("s", integer=True, positive=True)

Amount = int | str  # a number, or the text of a polynomial

MOST_POWER = 4


@dataclass(frozen=True)
class Polynomial:
    """A polynomial of s with whole coefficients: these by power, the last one not 0; a number where there is none but
    the first."""

    coefficients: tuple[int, ...] = ()

    @staticmethod
    def of(expr: sympy.Expr) -> Polynomial | None:
        """An expression of s alone as a polynomial, or nothing where it is none with whole coefficients."""
        if expr.is_Integer:
            return Polynomial.by_power({0: int(expr)})
        if expr.free_symbols != {LENGTH} or not expr.is_polynomial(LENGTH):
            return None
        terms = sympy.Poly(expr, LENGTH).terms()
        if any(not coefficient.is_Integer or power > MOST_POWER for (power,), coefficient in terms):
            return None
        return Polynomial.by_power({power: int(coefficient) for (power,), coefficient in terms})

    @staticmethod
    def by_power(coefficients: Mapping[int, int]) -> Polynomial:
        """The polynomial with these coefficients."""
        degree = max((power for power, coefficient in coefficients.items() if coefficient), default=-1)
        return Polynomial(tuple(coefficients.get(power, 0) for power in range(degree + 1)))

    @staticmethod
    def parse(amount: Amount) -> Polynomial:
        """What `text` wrote; n counts as 1, so that an extent is that of one sample."""
        found: dict[int, int] = {}
        for term in re.findall(r"[+-]?[^+-]+", str(amount)):
            factors = term.lstrip("+-").split("*")
            factor = int(factors[0]) if factors[0].isdigit() else 1
            power = factors.count("s")
            found[power] = found.get(power, 0) + (-factor if term[0] == "-" else factor)
        return Polynomial.by_power(found)

    def text(self, times_n: bool = False) -> Amount:
        """A number, or terms such as "2*n*s*s+n", by falling powers."""
        if not times_n and self.is_number:
            return self.at(0)
        terms = []
        for power, coefficient in reversed(list(enumerate(self.coefficients))):
            factors = (["n"] if times_n else []) + ["s"] * power
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            if coefficient:
                terms.append(("-" if coefficient < 0 else "+") + "*".join(factors))
        return "".join(terms).removeprefix("+") or 0

    @property
    def is_number(self) -> bool:
        """Whether it is the same for every length."""
        return len(self.coefficients) < 2

    def at(self, length: int) -> int:
        """Its value for a length."""
        value = 0
        for coefficient in reversed(self.coefficients):
            value = value * length + coefficient
        return value

    def never_falls(self, least: int) -> bool:
        """Whether it is 0 or more at this length and falls nowhere above it, seen by its coefficients in powers of
        s - least. So readers know its largest value by that of the greatest length."""
        shifted = list(self.coefficients)
        for done in range(len(shifted) - 1):
            for power in reversed(range(done, len(shifted) - 1)):
                shifted[power] += shifted[power + 1] * least
        return all(coefficient >= 0 for coefficient in shifted)

    def __add__(self, other: Polynomial) -> Polynomial:
        a, b = self.coefficients, other.coefficients
        if len(a) < 2 and len(b) < 2:
            return number(sum(a) + sum(b))
        longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
        added = [x + (shorter[i] if i < len(shorter) else 0) for i, x in enumerate(longer)]
        return Polynomial.by_power(dict(enumerate(added)))

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple(-coefficient for coefficient in self.coefficients))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other


def number(value: int) -> Polynomial:
    """A number as a polynomial."""
    return Polynomial((value,) if value else ())
