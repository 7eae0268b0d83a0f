import pytest
import torch
from torch import nn

from archsearch.config import ConfigError
from archsearch.training.step import (
    OptimizerOptions,
    ScheduleOptions,
    build_optimizer,
    lr_factor,
    parameter_groups,
    train_step,
)


class Gate(nn.Module):
    no_weight_decay = frozenset({"exempt"})

    def __init__(self):
        super().__init__()
        self.exempt = nn.Parameter(torch.ones(2, 2))
        self.matrix = nn.Parameter(torch.ones(2, 2))
        self.bias = nn.Parameter(torch.ones(2))


def test_only_matrices_that_no_module_exempts_decay():
    model = nn.Sequential(Gate(), nn.LayerNorm(3))
    decay, rest = parameter_groups(model, 0.1)
    assert decay["weight_decay"] == 0.1
    assert decay["params"] == [model[0].matrix]
    assert rest["weight_decay"] == 0.0
    assert len(rest["params"]) == 4


def test_a_tied_parameter_is_in_one_group_once():
    model = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
    model[1].weight = model[0].weight
    assert [len(group["params"]) for group in parameter_groups(model, 0.1)] == [1, 0]


def test_the_optimizer_is_adamw_as_the_options_say():
    optimizer = build_optimizer(nn.Linear(2, 2), OptimizerOptions(learning_rate=0.5, beta1=0.8, eps=1e-6))
    assert isinstance(optimizer, torch.optim.AdamW)
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.5, (0.8, 0.95), 1e-6)


@pytest.mark.parametrize(
    ("progress", "options", "expected"),
    [
        (0.05, {"warmup": 0.1}, 0.5),
        (0.1, {"warmup": 0.1}, 1.0),
        (0.55, {"warmup": 0.1, "final": 0.2}, 0.6),
        (1.0, {"warmup": 0.1, "final": 0.2}, 0.2),
        (2.0, {"final": 0.2}, 0.2),
        (0.9, {"type": "constant"}, 1.0),
        (0.0, {"warmup": 0.0}, 1.0),
        (1.0, {"warmup": 1.0}, 1.0),
    ],
)
def test_the_rate_warms_up_and_falls_as_a_cosine(progress, options, expected):
    assert lr_factor(progress, ScheduleOptions(**options)) == pytest.approx(expected)


def test_a_train_step_clips_the_gradient_of_everything_together():
    class Model(nn.Linear):
        def forward(self, tokens, states=None, cu_seqlens=None, *, targets):
            logits = super().forward(nn.functional.one_hot(tokens, 2).float()) * 1000
            return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), None

    model = Model(2, 2)
    start = [parameter.detach().clone() for parameter in model.parameters()]
    batch = {"tokens": torch.tensor([[0, 1, 1]]), "targets": torch.tensor([[1, 1, 0]])}
    loss = train_step(model, torch.optim.SGD(model.parameters(), lr=1.0), batch, grad_clip=0.25)
    moved = torch.cat([(a - b).flatten() for a, b in zip(start, model.parameters(), strict=True)])
    assert loss > 0
    assert moved.norm().item() == pytest.approx(0.25, rel=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("options", "values", "message"),
    [
        (OptimizerOptions, {"learning_rate": 0.0}, r"optimizer\.learning_rate: must be positive; got 0\.0"),
        (OptimizerOptions, {"beta2": 1.0}, r"optimizer\.beta2: must be at least 0 and below 1; got 1\.0"),
        (OptimizerOptions, {"weight_decay": -1.0}, r"optimizer\.weight_decay: must be at least 0; got -1\.0"),
        (OptimizerOptions, {"grad_clip": 0.0}, r"optimizer\.grad_clip: must be positive or null; got 0\.0"),
        (ScheduleOptions, {"warmup": 1.5}, r"schedule\.warmup: must be from 0 to 1; got 1\.5"),
        (ScheduleOptions, {"warmup_steps": -1}, r"schedule\.warmup_steps: must be at least 0; got -1"),
        (ScheduleOptions, {"tokens": 0}, r"schedule\.tokens: must be at least 1; got 0"),
        (ScheduleOptions, {"tokens": "4m"}, r"schedule\.tokens: must be a number, or a number with one of the units"),
    ],
)
def test_options_that_cannot_work_are_refused(options, values, message):
    with pytest.raises(ConfigError, match=message):
        options(**values)
