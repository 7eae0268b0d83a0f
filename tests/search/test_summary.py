"""What is said of a result, where there is little to say."""

from pathlib import Path

from archsearch.search.summary import _missing_seeds, verdict

BASE = {"number": 0, "given": "base", "pattern": "R3A", "shape": "", "outcome": "completed", "reason": None}
SLOW = "train_tokens_per_second 0.9 of base, budget 0.95, p = 0.99 (measured)"
OPEN = "train_tokens_per_second 0.95 of base, budget 0.95: undecided, from 0.9 to 1 (measured; counts as infeasible)"


def says(*others):
    rest = [{**BASE, "number": i + 1, "given": None, **other} for i, other in enumerate(others)]
    confirmed = [{"trial": 0, "is_base": True}]
    text = verdict({"winner": 0, "confirmed": confirmed, "trials": [BASE, *rest], "ties": []}, Path("studies/tiny"))
    return text.splitlines()[0]


def test_a_base_that_nothing_was_compared_with_is_no_winner_of_a_comparison():
    refused = [{"outcome": "refused", "reason": reason} for reason in (OPEN, SLOW)]
    assert says(*refused, {"outcome": "illegal", "reason": "too large"}) == (
        "winner: trial 0, R3A; the base itself: no other candidate was trained (2 refused, 1 illegal); a longer "
        f"budget.time_limit, or a cost table, decides more; the first: {OPEN}"
    )
    assert says(refused[1]).endswith(f"no other candidate was trained (1 refused); the first: {SLOW}")
    assert says(refused[0], {"outcome": "completed"}).endswith("the base itself: nothing that was tried is better")


def test_a_seed_that_is_missing_is_said_with_its_reason():
    late = "timed out after 180 s (study.timeout_per_trial) in train text"
    assert _missing_seeds([{"trial": 0, "failures": {"1000": late}}, {"trial": 2, "failures": {}}]) == [
        f"trial 0 with seed 1000 failed: {late}",
        "with a longer study.timeout_per_trial and --accept-changes these seeds go on",
    ]
    assert _missing_seeds([{"trial": 0, "failures": {"1001": "CUDA error"}}]) == [
        "trial 0 with seed 1001 failed: CUDA error"
    ]
