import torch

from archsearch.data.stream import IGNORED
from archsearch.training.metrics import LanguageMetrics

# the likeliest token is the first at every position, with probability 3/4
LOGITS = torch.tensor([0.75, 0.25]).log().expand(2, 3, 2)
TARGETS = torch.tensor([[0, 1, IGNORED], [IGNORED, 0, IGNORED]])
RIGHT, WRONG = 0.2877, 1.3863  # -ln 3/4, -ln 1/4


def test_only_scored_positions_count_and_a_group_without_any_is_left_out():
    metrics = LanguageMetrics(groups=("near", "far", "nowhere"))
    for _ in range(2):
        metrics.update(LOGITS, TARGETS, torch.tensor([[1, 0, 0], [2, 1, -1]]))
    found = metrics.compute()
    assert set(found) == {"", "near", "far"}
    torch.testing.assert_close(
        found["near"], {"loss": torch.tensor(WRONG), "accuracy": torch.tensor(0.0)}, atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        found["far"], {"loss": torch.tensor(RIGHT), "accuracy": torch.tensor(1.0)}, atol=1e-4, rtol=0
    )
    torch.testing.assert_close(found[""]["loss"], torch.tensor((2 * RIGHT + WRONG) / 3), atol=1e-4, rtol=0)
    assert found[""]["accuracy"] == torch.tensor(2 / 3)


def test_a_position_of_no_group_counts_only_in_the_whole():
    metrics = LanguageMetrics(groups=("near",))
    metrics.update(LOGITS, TARGETS, torch.tensor([[0, -1, -1], [-1, -1, -1]]))
    found = metrics.compute()
    assert found["near"]["accuracy"] == 1.0
    assert found[""]["accuracy"] == torch.tensor(2 / 3)


def test_rows_without_a_scored_position_are_neither_right_nor_wrong():
    metrics = LanguageMetrics(extra=("exact",))
    metrics.update(LOGITS, TARGETS)
    metrics.update(LOGITS, torch.full((2, 3), IGNORED))
    assert metrics.compute()[""]["exact"] == 0.5
    assert set(metrics.compute()[""]) == {"loss", "perplexity", "accuracy", "exact"}
