import math

import pytest

from archsearch.config import ConfigError
from archsearch.search.choices import Choices, Match, Range


def test_a_space_is_read(parse):
    space = parse()
    (replacement,) = space.replacements
    assert (space.name, space.replace, replacement.letter, replacement.prefix) == ("tiny", "R", "M", "")
    assert space.slots.layers == (0, 1, 3, 4)
    assert space.base.pattern == "RRARRA"
    assert replacement.choices == {
        "key_head_dim": Choices(values=(4, 8)),
        "value_head_dim": Choices(values=(4, 24)),
        "num_heads": Match(tolerance=0.2),
    }
    task = space.tasks["s3"]
    assert (task.tokens, task.length, task.evaluate) == (640, 8, (16,))
    assert task.arguments == {"group": "S3", "eval_size": 16, "length": 8, "batch_size": 8}
    assert task.optimizer == {"learning_rate": 1e-3}
    assert [objective.key for objective in space.objectives] == ["accuracy/16", "loss"]
    assert space.study.timeout_per_trial == 60


def test_an_option_is_fixed_listed_or_a_range(parse):
    space = parse({"space.mixers.M": {"key_head_dim": 8, "value_head_dim": {"low": 4, "high": 12, "step": 4}}})
    assert space.replacements[0].choices == {
        "key_head_dim": Choices(values=(8,)),
        "value_head_dim": Range(low=4, high=12, step=4),
    }


def test_an_objective_at_the_training_length_is_the_plain_metric(parse):
    assert parse({"objectives.0.length": 8}).objectives[0].key == "accuracy"


def test_a_letter_that_is_not_written_has_its_defaults(parse):
    space = parse({"architecture.mixers.M": ..., "space.mixers": {}})
    assert space.replacements[0].published.num_heads == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Not a name"}, "space.yaml: name: must match [a-z0-9][a-z0-9_-]*; got 'Not a name'"),
        ({"name": "../up"}, "space.yaml: name: must match"),
        ({"spase": {}}, "space.yaml: spase: unknown key (did you mean 'space'?)"),
        ({"tasks": ...}, "space.yaml: tasks: is required"),
        ({"architecture.pattern": "R2AX"}, "space.yaml: architecture.pattern: unknown letter 'X' at position 4"),
        ({"architecture.pattern": ""}, "architecture.pattern: must hold at least one layer; got an empty pattern"),
        (
            {"architecture.mixers.M.type": "m2rn"},
            "architecture.mixers.M.type: unknown mixer 'm2rn' (did you mean 'm2rnn'?)",
        ),
        (
            {"architecture.mixers.A.num_heads": 3},
            "architecture.mixers.A: attention: num_heads must divide the hidden size",
        ),
        ({"space.replase": "R"}, "space.yaml: space.replase: unknown key (did you mean 'replace'?)"),
        ({"space.with": ...}, "space.yaml: space.with: is required"),
        ({"space.with": "R"}, "space.yaml: space.with: must be another letter than space.replace; got 'R' for both"),
        ({"space.with": "A"}, "space.yaml: space.with: must not occur in the base pattern R2AR2A; got 'A'"),
        ({"space.replace": "S"}, "space.yaml: space.replace: must occur in the base pattern R2AR2A; got 'S'"),
        ({"space.with": "Q"}, "space.yaml: space.with: must be one letter of this architecture ("),
        (
            {"space.count.high": 5},
            "space.count.high: must be at most the number of slots (the 4 places of R in R2AR2A); got 5",
        ),
        ({"space.count.low": 4}, "space.yaml: space.count: low <= high must hold; got low=4, high=3"),
        ({"space.count.low": -1}, "space.yaml: space.count.low: must be at least 0; got -1"),
        ({"space.placement.1": "frst"}, "space.placement[1]: unknown placement 'frst' (did you mean 'first'?)"),
        ({"space.placement.1": "first"}, "space.placement[1]: must name each placement once; got 'first' twice"),
        ({"space.placement": []}, "space.yaml: space.placement: must be a list of first, last"),
        (
            {"architecture.pattern": "R4"},
            "space.placement[1]: no slot stands next to attention on that side; got 'before_",
        ),
        ({"space.mixers.R": {}}, "space.mixers.R: only the shape of space.with (M) is searched; got 'R'"),
        ({"space.mixers.M.key_hed_dim": 4}, "space.mixers.M.key_hed_dim: unknown key (did you mean 'key_head_dim'?)"),
        ({"space.mixers.M.key_head_dim": [4, "wide"]}, "space.mixers.M.key_head_dim[1]: value 'wide' of type 'str'"),
        ({"space.mixers.M.key_head_dim": [4, 4]}, "space.mixers.M.key_head_dim: must list each value once; got [4, 4]"),
        ({"space.mixers.M.key_head_dim": []}, "space.mixers.M.key_head_dim: must list at least one value; got []"),
        ({"space.mixers.M.key_head_dim": [[4]]}, "space.mixers.M.key_head_dim: must list plain values; got [[4]]"),
        (
            {"space.mixers.M.key_head_dim": {"low": 8, "high": 4}},
            "low <= high, and step >= 1 dividing high - low, must",
        ),
        (
            {"space.mixers.M.key_head_dim": {"match": "parameters", "tolerance": 0.1}},
            "at most one option may match a size",
        ),
        ({"space.mixers.M.num_heads.match": "flops"}, "space.mixers.M.num_heads.match: Invalid value 'flops'"),
        ({"space.mixers.M.num_heads.tolerance": 2}, "num_heads.tolerance: must be a fraction from 0 to below 1; got 2"),
        ({"space.mixers.M.activation": {"low": 1, "high": 2}}, "space.mixers.M.activation: takes a value or a list"),
        ({"tasks.s3.lenght": 8}, "space.yaml: tasks.s3.lenght: unknown key (did you mean 'length'?)"),
        ({"tasks.s3.groop": "S3"}, "space.yaml: tasks.s3.groop: unknown key (did you mean 'group'?)"),
        (
            {"tasks.s3.data": "StateTrackin"},
            "tasks.s3.data: unknown data 'StateTrackin' (did you mean 'StateTracking'?)",
        ),
        ({"tasks.s3.data": ...}, "space.yaml: tasks.s3.data: is required"),
        ({"tasks.s3.evaluate": [16, [1]]}, "space.yaml: tasks.s3.evaluate: must list plain values; got [1]"),
        ({"tasks.s3.evaluate": [16, "x"]}, "space.yaml: tasks.s3.evaluate[1]: value 'x' of type 'str'"),
        ({"tasks.s3.evaluate": [16, 0]}, "space.yaml: tasks.s3.evaluate[1]: must be at least 1; got 0"),
        ({"tasks.s3.eval_size": "many"}, "space.yaml: tasks.s3.eval_size: value 'many' of type 'str'"),
        ({"tasks.s3.group": "Q8"}, "space.yaml: tasks.s3: "),
        ({"tasks.s3.tokens": "4X"}, "space.yaml: tasks.s3.tokens: must be a number"),
        (
            {"tasks.s3.optimizer": {"weight_deca": 0}},
            "tasks.s3.optimizer.weight_deca: unknown key (did you mean 'weight_",
        ),
        ({"tasks.s3.learning_rate": -1}, "tasks.s3.learning_rate: must be positive; got -1"),
        ({"tasks": {"text": {"data": "Text", "path": "/no/such/folder", "tokens": 1}}}, "/no/such/folder"),
        ({"tasks": {}}, "space.yaml: tasks: must name at least one task"),
        ({"objectives": []}, "space.yaml: objectives: must name at least one objective"),
        (
            {"objectives.1.task": "s4"},
            "space.yaml: objectives[1].task: unknown task 's4' (did you mean 's3'?); known: s3",
        ),
        (
            {"objectives.0.metric": "acuracy"},
            "objectives[0].metric: unknown metric 'acuracy' (did you mean 'accuracy'?)",
        ),
        (
            {"objectives.0.length": 17},
            "objectives[0].length: must be a length that task s3 is evaluated at (8, 16); got 17",
        ),
        ({"objectives": {"task": "s3"}}, "space.yaml: objectives: must be a list; got {'task': 's3'}"),
        ({"objectives.0.direction": "up"}, "objectives[0].direction: Invalid value 'up'"),
        ({"budget.params": 3}, "space.yaml: budget.params: unknown key (did you mean 'parameters'?)"),
        ({"budget.parameters": {}}, "budget.parameters: must have at_least or at_most; got neither"),
        ({"budget.parameters": {"at_most": math.nan}}, "budget.parameters.at_most: must be a number, or a number with"),
        (
            {"budget.parameters.of": "R2X"},
            "budget.parameters.of: must be base, a pattern or a file; unknown letter 'X'",
        ),
        ({"budget.time_limit": math.inf}, "budget.time_limit: must be positive and finite; got inf"),
        ({"budget.confidence": 95}, "budget.confidence: must lie between 0.5 and 1; got 95"),
        (
            {"budget.train_tokens_per_second": {"at_least": 0.9}},
            "is a number of tokens/s without `of`; write `of: base`",
        ),
        (
            {"budget.peak_memory": {"at_most": "9GB"}},
            "budget.peak_memory.at_most: must be a number, or a number with one",
        ),
        (
            {"study.sampler": "tpee"},
            "study.sampler: unknown sampler 'tpee' (did you mean 'tpe'?); known: pattern, tpe, gp, nsga2, random",
        ),
        (
            {"study.pruner": "median"},
            "study.pruner: must be pareto (or none) where there are several objectives; got 'median' with 2",
        ),
        ({"study.pruner": "ahsa"}, "study.pruner: unknown pruner 'ahsa' (did you mean 'asha'?); known: none, median, "),
        ({"study.rungs": 0}, "study.rungs: must be at least 1; got 0"),
        ({"study.rungs": 10**9, "study.pruner": "pareto"}, "study.rungs: 1000000000 with reduction 3 need tasks of"),
        ({"tasks": {"../x": {}}}, "tasks: names must match [A-Za-z0-9][A-Za-z0-9_-]*; got '../x'"),
        ({"study.seed": 2**31}, "study.seed: must be at most 2147483647; got 2147483648"),
        ({"study.reduction": 1}, "study.reduction: must be at least 2; got 1"),
        (
            {"study.pruner": "pareto", "tasks.s3.tokens": 512},
            "study.rungs: 2 with reduction 3 need tasks of at least 9 optimizer steps; got 8 of task s3",
        ),
        ({"study.confirm.tpo": 3}, "study.confirm.tpo: unknown key (did you mean 'top'?)"),
        ({"study.trials": 0}, "study.trials: must be at least 1; got 0"),
    ],
)
def test_what_a_user_writes_wrong_is_named(parse, changes, message):
    with pytest.raises(ConfigError) as error:
        parse(changes)
    assert message in str(error.value)
    assert str(error.value).startswith("space.yaml: ")
