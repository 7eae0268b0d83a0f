"""Local tasks only: nothing is fetched."""

import json
import math
import re

import pytest
import torch

from archsearch.architecture import Architecture
from archsearch.cli import main
from archsearch.config import ConfigError, Where
from archsearch.data import Text
from archsearch.data.packing import START
from archsearch.evaluate.intervals import mean_of_positions, wilson
from archsearch.model.generation import generate
from archsearch.model.language_model import HybridLM
from archsearch.tokens.tokenizer import ByteTokenizer, FileTokenizer
from archsearch.training.checkpoint import fresh_checkpoint
from tests.tokens.tiny_tokenizer import train_tokenizer

pytest.importorskip("lm_eval", reason="needs the extra lm-eval")

from lm_eval.api.instance import Instance

from archsearch.evaluate.harness import HarnessModel

TINY = {
    "hidden_size": 16,
    "vocab_size": 280,
    "pattern": "MA",
    "mixers": {"M": {"type": "m2rnn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4}},
    "mlp": {"intermediate_size": 16},
}
CHOICES = [
    {"text": "def f(x):\n    return", "choices": [" x", " yy", "z"], "label": 0},
    {"text": "de", "choices": ["f", "gh", " f(x)"], "label": 1},
    {"text": "naïve ", "choices": ["é", "x", "yz"], "label": 2},
    {"text": "ret", "choices": ["urn", "x"], "label": 0},
]
TEXTS = ["def f(x): pass\n", "return x é", "x" * 50]
TASKS = {
    "tiny_choice": """
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
""",
    "tiny_rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - {metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
  - {metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}
""",
    "tiny_generate": """
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["STOP"], max_gen_toks: 6, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = HybridLM(Architecture.from_dict(TINY, Where("test"))).eval()
    with torch.no_grad():
        model.head.weight[256:] = 0  # so that bytes are what it writes
        model.head.weight *= 20
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model):
    """Write a checkpoint of a model of bytes, and the tasks beside it."""
    folder = tmp_path_factory.mktemp("harness")
    (folder / "text.txt").write_text("x\n")
    checkpoint = fresh_checkpoint(model.architecture, model.state_dict())
    checkpoint["data_class"] = f"{Text.__module__}.{Text.__qualname__}"
    checkpoint["datamodule_hyper_parameters"] = {"path": str(folder / "text.txt")}
    torch.save(checkpoint, folder / "last.ckpt")
    answers = [written(model, ByteTokenizer(), doc["text"], 6) for doc in CHOICES]
    wrong_once = ["never", *answers[1:]]
    docs = {
        "tiny_choice": CHOICES,
        "tiny_rolling": [{"text": text} for text in TEXTS],
        "tiny_generate": [{**doc, "answer": a} for doc, a in zip(CHOICES, wrong_once, strict=True)],
    }
    for name, body in TASKS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs[name]))
        where = f"data_files: {{test: {folder / name}.jsonl}}, cache_dir: {folder / 'cache'}"
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{{where}}}\ntest_split: test"
        (folder / f"{name}.yaml").write_text(head + body)
    return folder


def log_likelihood(model, tokenizer, text, continuation):
    """Compute by hand, one sequence at a time, and return whether it is the likeliest, too."""
    context, whole = [START, *text], [START, *text, *continuation]
    if isinstance(tokenizer, FileTokenizer):
        context[0] = whole[0] = tokenizer.eod
    with torch.inference_mode():
        log_p = model(torch.tensor([whole[:-1]]))[0][0].double().log_softmax(-1)
    steps = [log_p[len(context) - 1 + i] for i in range(len(continuation))]
    total = sum(float(step[token]) for step, token in zip(steps, continuation, strict=True))
    return total, all(int(step.argmax()) == token for step, token in zip(steps, continuation, strict=True))


def written(model, tokenizer, text, new_tokens):
    prompt = [tokenizer.eod, *tokenizer.encode(text)]
    return tokenizer.decode(generate(model, [prompt], new_tokens, stop=tokenizer.eod)[0])


def requests(kind, *arguments):
    return [Instance(request_type=kind, doc={}, arguments=each, idx=i) for i, each in enumerate(arguments)]


def evaluate(folder, *arguments):
    return main(["evaluate", str(folder), "--include-path", str(folder), "--device", "cpu", *arguments])


@pytest.fixture(scope="module")
def found(folder):
    """Run the three tasks once, by the command."""
    tasks = [f"lm_eval:{name}" for name in TASKS]
    assert evaluate(folder, "--tasks", *tasks, "--batch-size", "2", "--output", str(folder / "found.json")) == 0
    rows = json.loads((folder / "found.json").read_text())["figures"]
    return {(row["task"].removeprefix("lm_eval:"), row["metric"]): row for row in rows}


def test_multiple_choice_is_what_the_log_likelihoods_say(model, found):
    tokenizer = ByteTokenizer()
    right, right_by_length = 0, 0
    for doc in CHOICES:
        text = tokenizer.encode(doc["text"].rstrip())  # the harness moves spaces to the continuation
        space = doc["text"][len(doc["text"].rstrip()) :] + " "
        scores = [
            log_likelihood(model, tokenizer, text, tokenizer.encode(space + choice))[0] for choice in doc["choices"]
        ]
        normed = [score / len(choice) for score, choice in zip(scores, doc["choices"], strict=True)]
        right += scores.index(max(scores)) == doc["label"]
        right_by_length += normed.index(max(normed)) == doc["label"]
    for metric, count in (("acc", right), ("acc_norm", right_by_length)):
        row = found["tiny_choice", metric]
        assert (row["value"], row["low"], row["high"]) == pytest.approx(tuple(wilson(count, 4)))
        assert (row["count"], row["unit"], row["length"]) == (4, "documents", None)


def test_rolling_perplexity_is_that_of_whole_documents(model, found):
    tokenizer = ByteTokenizer()
    totals = [log_likelihood(model, tokenizer, [], tokenizer.encode(text))[0] for text in TEXTS]
    words, sizes = [len(re.split(r"\s+", text)) for text in TEXTS], [len(text.encode()) for text in TEXTS]
    row = found["tiny_rolling", "bits_per_byte"]
    mean = mean_of_positions(totals, sizes)
    expected = [-x / math.log(2) for x in (mean.value, mean.high, mean.low)]
    assert [row["value"], row["low"], row["high"]] == pytest.approx(expected, rel=1e-4)
    row = found["tiny_rolling", "word_perplexity"]
    assert math.log(row["value"]) == pytest.approx(-sum(totals) / sum(words), rel=1e-4)
    assert row["low"] < row["value"] < row["high"]


def test_answers_are_generated_greedily(found):
    row = found["tiny_generate", "exact_match"]
    assert (row["value"], row["low"], row["high"]) == pytest.approx(tuple(wilson(3, 4)))


@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_requests_of_all_lengths_are_answered_in_their_order(model, tmp_path, kind):
    tokenizer = ByteTokenizer() if kind == "bytes" else FileTokenizer(train_tokenizer(tmp_path / "tokenizer.json"))
    adapter = HarnessModel(model, tokenizer, batch_size=2)
    greedy = written(model, tokenizer, "the cat", 1)
    pairs = [
        ("the cat", " sat on the mat"),
        ("", "the"),
        ("the dog sat on", " the log"),
        ("x", "y"),
        ("the cat", greedy),
        ("the cat", greedy + "#?"),  # greedy at first, not to the end
    ]
    answers = adapter.loglikelihood(requests("loglikelihood", *pairs))
    for (context, continuation), (total, is_greedy) in zip(pairs, answers, strict=True):
        text = tokenizer.encode(context)
        rest = tokenizer.encode(context + continuation)[len(text) :]
        by_hand = log_likelihood(model, tokenizer, text, rest)
        assert total == pytest.approx(by_hand[0], rel=1e-4)
        assert is_greedy == by_hand[1]
    assert [is_greedy for _, is_greedy in answers][-2:] == [True, False]
    texts = ["the cat sat", "x", "été"]
    totals = adapter.loglikelihood_rolling(requests("loglikelihood_rolling", *((text,) for text in texts)))
    expected = [log_likelihood(model, tokenizer, [], tokenizer.encode(text))[0] for text in texts]
    assert totals == pytest.approx(expected, rel=1e-4)


def test_a_text_ends_before_the_first_stop_or_after_its_tokens(model):
    tokenizer = ByteTokenizer()
    adapter = HarnessModel(model, tokenizer, batch_size=2)
    contexts = ["def f(x):", "de", "x = [1, 2", ""]
    whole = [written(model, tokenizer, context, 12) for context in contexts]
    stop = whole[0][4:6]
    asked = [(context, {"until": [stop, whole[0][8:]], "max_gen_toks": 12}) for context in contexts]
    answers = adapter.generate_until(requests("generate_until", *asked))
    assert answers == [text.split(stop)[0].split(whole[0][8:])[0] for text in whole]
    assert answers[0] == whole[0][: whole[0].index(stop)]
    short = adapter.generate_until(requests("generate_until", *((c, {"max_gen_toks": 3}) for c in contexts)))
    assert short == [written(model, tokenizer, context, 3) for context in contexts]


def test_drawn_answers_depend_on_the_seed(model):
    asked = requests("generate_until", ("def", {"do_sample": True, "temperature": 5.0, "max_gen_toks": 9}))
    one, same, other = (HarnessModel(model, ByteTokenizer(), seed=seed).generate_until(asked) for seed in (1, 1, 2))
    assert one == same != other


def test_options_that_would_be_ignored_are_refused(model):
    asked = requests("generate_until", ("def", {"top_k": 3}))
    with pytest.raises(ConfigError, match="lm_eval: generation option 'top_k' is not supported; known: until, "):
        HarnessModel(model, ByteTokenizer()).generate_until(asked)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tasks", "lm_eval:tiny_choice", "--tokenizer", "nowhere"], "--tokenizer: nowhere: no such file"),
        (["--tasks", "lm_eval:tiny_choice", "--include-path", "nowhere"], "--include-path: no such folder: nowhere"),
    ],
)
def test_a_users_errors_are_one_line(folder, capfd, flags, message):
    assert evaluate(folder, *flags) == 1
    assert capfd.readouterr().err == f"error: {message}\n"


def test_a_misspelt_task_is_refused_with_the_nearest_name(folder, capfd, monkeypatch):
    from archsearch.evaluate import harness

    manager = harness.TaskManager
    monkeypatch.setattr(
        harness, "TaskManager", lambda include_path, **_: manager(include_path=include_path, include_defaults=False)
    )
    assert evaluate(folder, "--tasks", "lm_eval:tiny_choise") == 1
    message = "--tasks: lm_eval:tiny_choise: lm-evaluation-harness has no such task (did you mean 'tiny_choice'?)"
    assert capfd.readouterr().err == f"error: {message}\n"


def test_a_model_without_text_needs_a_tokenizer(folder, capfd, model, tmp_path):
    torch.save(fresh_checkpoint(model.architecture, model.state_dict()), tmp_path / "last.ckpt")
    flags = ["--include-path", str(folder), "--device", "cpu", "--tasks", "lm_eval:tiny_rolling", "--rows", "2"]
    assert main(["evaluate", str(tmp_path), *flags]) == 1
    message = (
        "lm_eval: the model was trained on data that its checkpoint does not name, not on text; say by --tokenizer"
    )
    assert capfd.readouterr().err.startswith(f"error: {message}")
    file = train_tokenizer(tmp_path / "tokenizer.json")
    assert main(["evaluate", str(tmp_path), *flags, "--tokenizer", str(file), "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["figures"]
    tokenizer = FileTokenizer(file)
    totals = [log_likelihood(model, tokenizer, [], tokenizer.encode(text))[0] for text in TEXTS[:2]]
    expected = -sum(totals) / math.log(2) / sum(len(text.encode()) for text in TEXTS[:2])
    bits = next(row for row in rows if row["metric"] == "bits_per_byte")
    assert (bits["value"], bits["count"]) == (pytest.approx(expected, rel=1e-4), 2)
