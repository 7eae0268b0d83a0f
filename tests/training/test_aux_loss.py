"""What the experts' load adds to the loss: in training only, over the scored tokens."""

import lightning.pytorch as lightning
import pytest
import torch
from torch.nn import functional

from archsearch.architecture import Architecture
from archsearch.config import Where
from archsearch.model.language_model import HybridLM
from archsearch.training.step import forward, train_step, training_losses

TINY = {
    "hidden_size": 16,
    "pattern": "MA",
    "mixers": {
        "M": {"type": "m2rnn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4},
        "A": {"type": "attention", "num_heads": 2},
    },
    "mlp": {
        "type": "moe",
        "num_experts": 4,
        "experts_per_token": 2,
        "intermediate_size": 8,
        "aux_loss_weight": 0.5,
    },
}


def build(weight=0.5, **changes):
    torch.manual_seed(0)
    values = {**TINY, "vocab_size": 6, "init_std": 0.5, **changes}
    if values["mlp"] is TINY["mlp"]:
        values["mlp"] = {**TINY["mlp"], "aux_loss_weight": weight}
    return HybridLM(Architecture.from_dict(values, Where("x")))


def batch(ignored=0):
    tokens = torch.randint(6, (2, 9), generator=torch.Generator().manual_seed(1))
    targets = tokens[:, 1:].clone()
    targets[:, :ignored] = -100
    return {"tokens": tokens[:, :-1], "targets": targets}


def cross_entropy(of, example):
    return functional.cross_entropy(forward(of, example).flatten(0, 1), example["targets"].flatten())


def test_the_auxiliary_loss_is_the_weighted_sum_over_layers():
    loss, auxiliary = training_losses(build(), batch())
    assert loss == cross_entropy(build(), batch())
    twice = training_losses(build(weight=1.0), batch())[1]
    assert twice.item() == pytest.approx(2 * auxiliary.item())
    assert 2 * 0.5 * 0.9 < auxiliary.item() < 2 * 0.5 * 2  # two layers, near the 1 of an even load
    plain = {"type": "swiglu", "intermediate_size": 8}
    one = training_losses(build(mlps={"A": plain}), batch())[1]
    assert 0.5 * 0.9 < one.item() < 0.5 * 2
    assert training_losses(build(mlp=plain), batch())[1] is None


def test_only_scored_tokens_count():
    model = build(pattern="M")
    model.blocks[0].mixer.out_proj.weight.data.zero_()  # now a token's routing depends on that token alone
    scored = batch(ignored=5)
    changed = {**scored, "tokens": scored["tokens"].clone()}
    expected = training_losses(model, scored)[1]
    assert not torch.allclose(training_losses(model, batch())[1], expected)
    changed["tokens"][:, :5] = (changed["tokens"][:, :5] + 1) % 6
    torch.testing.assert_close(training_losses(model, changed)[1], expected)
    changed["tokens"][:, 5:] = (changed["tokens"][:, 5:] + 1) % 6
    assert not torch.allclose(training_losses(model, changed)[1], expected)


def test_packed_rows_have_the_loss_of_their_tokens():
    model = build().double()
    packed = {**batch(ignored=2), "cu_seqlens": torch.tensor([0, 8, 16])}
    torch.testing.assert_close(training_losses(model, packed), training_losses(model, batch(ignored=2)))


def test_a_train_step_descends_on_the_sum_and_returns_the_loss_of_the_targets():
    model, reference = build(), build()
    loss, auxiliary = training_losses(reference, batch())
    (loss + auxiliary).backward()
    returned = train_step(model, torch.optim.SGD(model.parameters(), lr=1.0), batch(), grad_clip=None)
    assert returned == loss
    for moved, start in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(moved, start - start.grad)


def test_training_spreads_the_load():
    model = build(weight=1.0)
    model.embedding.weight.data += 2  # tokens that point one way, to two of the experts
    for block in model.blocks:
        block.mlp.router.weight.data[:2] += 0.2
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    before = training_losses(model, batch())[1].item()
    for _ in range(60):
        train_step(model, optimizer, batch(), grad_clip=1.0)
    assert before > 3
    assert training_losses(model, batch())[1].item() < 2.3


def test_lightning_logs_it_and_keeps_it_out_of_validation(model, trainer, words):
    lightning.seed_everything(0, verbose=False)
    module = model(architecture=TINY)
    run = trainer(max_steps=3, limit_val_batches=1, val_check_interval=3, check_val_every_n_epoch=None)
    run.fit(module, words())
    metrics = run.callback_metrics
    assert 2 * 0.5 * 0.9 < metrics["train/aux_loss"].item() < 2 * 0.5 * 2
    assert not [name for name in metrics if name.startswith("val/") and "aux" in name]
    example = next(iter(run.val_dataloaders[0]))
    expected = cross_entropy(module.model, example)
    assert metrics["val/loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_model_without_experts_logs_no_auxiliary_loss(model, trainer, words):
    run = trainer(max_steps=1)
    run.fit(model(), words())
    assert "train/aux_loss" not in run.callback_metrics


def test_lightning_trains_on_it(model, trainer, words):
    routers = []
    for weight in (0.0, 1000.0):
        module = model(architecture={**TINY, "mlp": {**TINY["mlp"], "aux_loss_weight": weight}})
        trainer(max_steps=1).fit(module, words())
        routers.append(module.model.blocks[0].mlp.router.weight.detach())
    assert not torch.allclose(*routers)
