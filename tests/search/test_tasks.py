"""Objectives that name what a task is evaluated on."""

import pytest

from archsearch.config import ConfigError, Where
from archsearch.search.tasks import parse_objectives, parse_tasks

RECALL = {"data": "Recall", "num_pairs": 4, "length": 16, "evaluate": [64], "eval_pairs": [16], "tokens": 64}
MIXED = {
    "data": "Mixture",
    "tokens": 64,
    "parts": {
        "text": {"class": "Text", "length": 128, "weight": 0.7},
        "needle": {"class": "Needle", "length": 32, "eval_lengths": [128], "weight": 0.3},
    },
}


def objective(**values):
    tasks = parse_tasks({"recall": RECALL, "mixed": MIXED}, Where("space.yaml", "tasks"))
    written = {"metric": "accuracy", "direction": "maximize", **values}
    return parse_objectives([written], tasks, Where("space.yaml", "objectives"))[0]


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"task": "recall"}, "accuracy"),
        ({"task": "recall", "length": 16}, "accuracy"),
        ({"task": "recall", "length": 64}, "accuracy/64"),
        ({"task": "recall", "metric": "exact", "length": 64, "group": "16_pairs"}, "exact/64/16_pairs"),
        ({"task": "recall", "group": "distance_4"}, "accuracy/16/distance_4"),
        ({"task": "recall", "length": 64, "group": "16_pairs/distance_16"}, "accuracy/64/16_pairs/distance_16"),
        ({"task": "mixed", "part": "text", "metric": "loss"}, "loss/text"),
        ({"task": "mixed", "part": "text", "metric": "loss", "group": "context_64"}, "loss/text/128/context_64"),
        ({"task": "mixed", "part": "needle", "metric": "exact", "length": 128}, "exact/needle/128"),
        ({"task": "mixed", "part": "needle", "length": 32, "group": "depth_75"}, "accuracy/needle/32/depth_75"),
    ],
)
def test_an_objective_names_its_metric(values, key):
    assert objective(**values).key == key


def test_a_label_says_task_part_metric_length_and_group():
    assert objective(task="recall", length=64, group="16_pairs").label == "recall accuracy @64 16_pairs"
    assert objective(task="mixed", part="needle", length=128).label == "mixed needle accuracy @128"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"task": "recall", "length": 64, "group": "17_pairs"},
            r"\[0\]\.group: unknown group '17_pairs' \(did you",
        ),
        ({"task": "recall", "group": "16_pairs"}, r"\[0\]\.group: unknown group '16_pairs'"),
        ({"task": "recall", "metric": "exat"}, r"\[0\]\.metric: unknown metric 'exat' \(did you mean 'exact'\?\)"),
        ({"task": "recall", "metric": "exact", "group": "distance_4"}, r"\[0\]\.metric: unknown metric 'exact'"),
        ({"task": "recall", "part": "text"}, r"\[0\]\.part: task recall is no mixture; got 'text'"),
        ({"task": "mixed"}, r"\[0\]\.part: is required: task mixed is a mixture of text, needle"),
        ({"task": "mixed", "part": "txt"}, r"\[0\]\.part: unknown part 'txt' \(did you mean 'text'\?\)"),
        ({"task": "mixed", "part": "text", "metric": "exact"}, r"\[0\]\.metric: unknown metric 'exact'"),
        (
            {"task": "mixed", "part": "text", "length": 32},
            r"\[0\]\.length: must be a length that task mixed is evaluated at \(128\); got 32",
        ),
    ],
)
def test_an_objective_that_names_nothing_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        objective(**values)


def test_a_misspelt_key_of_a_part_is_named():
    parts = {"needle": {"class": "Needle", "lenght": 32}}
    with pytest.raises(ConfigError, match=r"space\.yaml: tasks\.mixed: data\.parts\.needle: lenght: unknown key"):
        parse_tasks({"mixed": {**MIXED, "parts": parts}}, Where("space.yaml", "tasks"))
