"""The demo's task: sort digits, ascending. Every answer can be checked, digit by digit.

Its demonstrators disagree: some of them sort the wrong way round. A policy that learned from them
sorts either way, and policy gradient has to find out which one is rewarded.
"""

from __future__ import annotations

import torch

DIGITS = 5
BASE = 10
START = BASE  # separates the question from the answer
VOCABULARY = BASE + 1
PROMPT_LENGTH = DIGITS + 1
CONTEXT = PROMPT_LENGTH + DIGITS


def prompts(count: int, generator: torch.Generator) -> torch.Tensor:
    """[count, PROMPT_LENGTH]: random digits, then START."""
    digits = torch.randint(0, BASE, (count, DIGITS), generator=generator)
    return torch.cat([digits, torch.full((count, 1), START)], 1)


def solutions(questions: torch.Tensor) -> torch.Tensor:
    """[count, DIGITS]: the digits of each prompt, ascending."""
    ordered: torch.Tensor = questions[:, :DIGITS].sort(1).values
    return ordered


def demonstrations(
    questions: torch.Tensor, wrong_share: float, generator: torch.Generator
) -> torch.Tensor:
    """[count, DIGITS]: answers, the share `wrong_share` of which are sorted descending."""
    right = solutions(questions)
    wrong = torch.rand((len(right), 1), generator=generator) < wrong_share
    return torch.where(wrong, right.flip(1), right)


def rewards(questions: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """[count], 0…1: the share of digits in their right places."""
    return (answers == solutions(questions)).float().mean(1)
