"""Hostile files: a generator of small functions, a case each."""

from tests.fuzz.hostile import expressions, numbers, pickles, strings, trees, zips
from tests.fuzz.hostile.cases import CASES, Case

__all__ = ["CASES", "Case", "expressions", "numbers", "pickles", "strings", "trees", "zips"]
