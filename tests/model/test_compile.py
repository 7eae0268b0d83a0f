"""Blocks under torch.compile: one graph each, the same results, the same names."""

import copy
from itertools import pairwise

import lightning.pytorch as lightning
import pytest
import torch
from torch import _dynamo as dynamo

from archsearch.architecture import Architecture
from archsearch.config import Where
from archsearch.data import StateTracking
from archsearch.kernels.packing import for_graphs, read_documents
from archsearch.model.block import run_block
from archsearch.model.generation import generate
from archsearch.model.language_model import HybridLM
from archsearch.training.module import LanguageModel
from archsearch.training.step import training_losses

pytestmark = pytest.mark.filterwarnings(  # torch.compile's own, and Lightning's
    "ignore:.*torch.jit:DeprecationWarning",
    "ignore:.*should not be instantiated:DeprecationWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    r"ignore:.*isinstance\(treespec, LeafSpec\).*",
)

HEADS = {"num_heads": 2, "key_head_dim": 8, "value_head_dim": 4}
MIXERS = {
    "G": {"type": "gated_deltanet", **HEADS},
    "S": {"type": "mamba2", "num_heads": 4, "head_dim": 3, "state_dim": 8},
    "M": {"type": "m2rnn", **HEADS},
    "A": {"type": "attention", "num_heads": 2},
    "N": {"type": "rnn", "num_heads": 2, "head_dim": 4},
    "U": {"type": "gru", "num_heads": 2, "head_dim": 4},
    "D": {"type": "gated_deltaproduct", **HEADS},
    "a": {"type": "attention", "num_heads": 2, "num_kv_heads": 1, "rope": True, "window": 3},
}
EXPERTS = {"type": "moe", "num_experts": 4, "experts_per_token": 2, "intermediate_size": 8, "aux_loss_weight": 0.5}


@pytest.fixture(autouse=True)
def _afresh():
    dynamo.reset()
    yield
    dynamo.reset()


def build(pattern, **changes):
    torch.manual_seed(0)
    values = {"hidden_size": 16, "vocab_size": 7, "init_std": 0.5, "mixers": MIXERS, "mlp": {"intermediate_size": 16}}
    return HybridLM(Architecture.from_dict({**values, "pattern": pattern, **changes}, Where("x")))


def batch(length=10):
    tokens = torch.randint(7, (2, length + 1), generator=torch.Generator().manual_seed(1))
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def losses_and_gradients(model, batch):
    model.zero_grad()
    loss, auxiliary = training_losses(model, batch)
    (loss if auxiliary is None else loss + auxiliary).backward()
    return loss, auxiliary, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("letter", list(MIXERS))
def test_a_block_is_one_graph(letter):
    (block,) = build(letter).blocks
    x = torch.randn(2, 10, 16, requires_grad=True)
    explained = dynamo.explain(run_block)(block, x, x.detach(), None, None, torch.ones(20, dtype=torch.bool))
    assert (explained.graph_count, explained.graph_break_count) == (1, 0), explained.break_reasons


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_compiled_blocks_do_what_they_did_and_share_graphs(again):
    pattern = "SMAMSMA"
    expected = losses_and_gradients(build(pattern), batch())
    graphs = []

    def counting(graph, _):
        graphs.append(graph)
        return graph

    model = build(pattern)
    model.activation_checkpointing = again
    for block in model.blocks:
        block.compile_backend = counting
    actual = losses_and_gradients(model, batch())
    torch.testing.assert_close(actual, expected)
    count = 8 if again else 4  # one per structure and one for the first block; as many for their second run
    assert len(graphs) == count
    torch.testing.assert_close(losses_and_gradients(model, batch()), expected)
    assert len(graphs) == count


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_experts_add_their_auxiliary_loss_once(again):
    expected = losses_and_gradients(build("AA", mlp=EXPERTS), batch())
    model = build("AA", mlp=EXPERTS)
    model.activation_checkpointing = again
    model.compile_blocks("eager")
    torch.testing.assert_close(losses_and_gradients(model, batch()), expected)


def test_another_length_between_two_steps_does_not_disturb_blocks_that_run_twice():
    model = build("A")
    model.activation_checkpointing = True
    model.compile_blocks("eager")
    for length in (10, 12, 10, 12):
        expected = losses_and_gradients(build("A"), batch(length))
        torch.testing.assert_close(losses_and_gradients(model, batch(length)), expected)


@pytest.mark.parametrize("letter", list(MIXERS))
def test_a_block_is_one_graph_on_packed_documents(letter):
    (block,) = build(letter).blocks
    x = torch.randn(1, 20, 16, requires_grad=True)
    documents = for_graphs(read_documents(torch.tensor([0, 3, 10, 17, 20]), 20, x.device), 10)
    explained = dynamo.explain(run_block)(block, x, x.detach(), None, documents, torch.ones(20, dtype=torch.bool))
    assert (explained.graph_count, explained.graph_break_count) == (1, 0), explained.break_reasons


@pytest.mark.parametrize(("letter", "again"), [("S", False), ("A", True)], ids=["once", "twice"])
def test_batches_of_packed_documents_share_graphs(letter, again):
    graphs = []

    def counting(graph, _):
        graphs.append(graph)
        return graph

    model, plain = build(letter).double(), build(letter).double()
    model.activation_checkpointing = again
    for block in model.blocks:
        block.compile_backend = counting
    # other documents, another number of them; the longest of 6 to 8 steps, which count as 8, and at last of 10
    for bounds in ([0, 3, 10, 17, 20], [0, 2, 4, 10, 11, 13, 20], [0, 8, 10, 16, 20], [0, 10, 15, 20]):
        packed = {**batch(), "cu_seqlens": torch.tensor(bounds)}
        torch.testing.assert_close(losses_and_gradients(model, packed), losses_and_gradients(plain, packed))
        longest = max(j - i for i, j in pairwise(bounds))
        assert len(graphs) == (1 if longest <= 8 else 2) * (1 + again)


def test_names_copies_and_decoding_stay():
    plain, model = build("N"), build("N")
    model.compile_blocks("eager")
    assert list(model.state_dict()) == list(plain.state_dict())
    assert generate(model, [[1, 2, 3]], 4) == generate(plain, [[1, 2, 3]], 4)
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.data.zero_()
    assert other(batch()["tokens"])[0].abs().max() == 0
    assert torch.equal(model(batch()["tokens"])[0], plain(batch()["tokens"])[0])


@pytest.mark.slow
def test_fit_trains_compiled_blocks(tmp_path):
    def losses(**options):
        lightning.seed_everything(1, verbose=False)
        seen = []

        class Record(lightning.Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):  # noqa: ARG002
                seen.append(outputs["loss"].item())

        trainer = lightning.Trainer(
            accelerator="cpu", max_steps=3, max_epochs=-1, limit_val_batches=0, callbacks=[Record()], logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
            default_root_dir=tmp_path,
        )  # fmt: skip
        data = StateTracking(length=6, batch_size=4, eval_size=8)
        model = LanguageModel(build("A").architecture.to_dict(), vocab_size=6, vocabulary="data", **options)
        trainer.fit(model, datamodule=data)
        return seen

    plain = losses()
    assert losses(compile="aot_eager") == pytest.approx(plain, rel=1e-5)
    assert len(plain) == 3
    assert dynamo.utils.counters["stats"]["unique_graphs"] >= 1
