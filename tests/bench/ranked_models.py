"""Models that go wrong on rank 1 alone, in the ways that models do."""

import os
from functools import partial

from crashing_models import Small, ask_for_too_much, die, give_up


def _on_rank_1(does):
    return Small(3 if os.environ["RANK"] == "1" else 0, does)


out_of_memory, killed = partial(_on_rank_1, ask_for_too_much), partial(_on_rank_1, die)
raises = partial(_on_rank_1, partial(give_up, "rank 1 had enough"))


def never_starts():
    if os.environ["RANK"] == "1":
        raise ValueError("not here")
    return Small()
