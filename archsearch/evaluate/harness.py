"""Tasks of lm-evaluation-harness on a model of ours."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from archsearch.config import ConfigError, nearest
from archsearch.data.stream import IGNORED
from archsearch.evaluate.intervals import Estimate, mean_of_positions, wilson
from archsearch.evaluate.score import default_batch_size, score
from archsearch.evaluate.tally import Figure, perplexity
from archsearch.model.generation import stream
from archsearch.model.language_model import HybridLM
from archsearch.tokens.tokenizer import Tokenizer

NEW_TOKENS = 256  # the harness's own default where a task does not say how long an answer may be
OPTIONS = ("until", "max_gen_toks", "do_sample", "temperature", "top_p")


class HarnessModel(TemplateLM):
    """A model in evaluation mode as the harness calls it. Every text starts a document."""

    def __init__(self, model: HybridLM, tokenizer: Tokenizer, batch_size: int | None = None, seed: int = 0) -> None:
        super().__init__()
        self.model, self.batch_size, self.seed = model, batch_size, seed
        self.text = tokenizer  # `tokenizer` is the harness's name for one with chat templates

    @property
    def eot_token_id(self) -> int:
        return self.text.eod

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:  # noqa: ARG002
        return self.text.encode(string)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        answers: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:  # noqa: ARG002
        """Return the log-likelihood of whole documents: no window, the state carries all that came before."""
        pairs = [([self.eot_token_id], self.tok_encode(request.args[0])) for request in requests]
        return [log_likelihood for log_likelihood, _ in self._score(pairs)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:  # noqa: ARG002
        """Return the continuation of each context up to the first of its stops, in batches of like options."""
        answers = [""] * len(requests)
        alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            alike[_options(request.args[1])].append(number)
        for options, numbers in alike.items():
            prompts = {n: [self.eot_token_id, *self.tok_encode(requests[n].args[0])] for n in numbers}
            numbers.sort(key=lambda n: len(prompts[n]))
            for part in _parts(numbers, self.batch_size or 32):
                for n, text in zip(part, self._generate([prompts[n] for n in part], *options), strict=True):
                    answers[n] = text
        return answers

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        start = [self.eot_token_id]
        return self._score([(c if c[:1] == start else start + c, continuation) for _, c, continuation in requests])

    def _score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """Return of each continuation of a context its log-likelihood and whether greedy decoding would write it."""
        answers = [(0.0, True)] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda n: -sum(map(len, pairs[n])))
        longest = sum(map(len, pairs[order[0]])) if order else 1
        for part in _parts(order, self.batch_size or default_batch_size(self.model, longest)):
            scores = score(self.model, _batch([pairs[n] for n in part], self.eot_token_id))
            for row, n in enumerate(part):
                first, last = len(pairs[n][0]) - 1, sum(map(len, pairs[n])) - 1
                answers[n] = (-float(scores.losses[row].sum()), bool(scores.hits[row, first:last].all()))
        return answers

    def _generate(
        self, prompts: list[list[int]], until: tuple[str, ...], new_tokens: int, temperature: float, top_p: float
    ) -> list[str]:
        texts, decoders = [""] * len(prompts), [self.text.decoder() for _ in prompts]
        done = [False] * len(prompts)
        sampling = {"temperature": temperature, "top_p": top_p}
        steps = stream(self.model, prompts, new_tokens, stop=self.eot_token_id, seed=self.seed, **sampling)
        for step in steps:
            for row, token in enumerate(step.tokens):
                if token is not None and not done[row]:
                    texts[row] += decoders[row]([token], False)
                    done[row] = token == self.eot_token_id or any(stop in texts[row] for stop in until)
            if all(done):
                break
        ended = (
            text + ("" if is_done else decode([], True))
            for text, is_done, decode in zip(texts, done, decoders, strict=True)
        )
        return [_cut(text, until) for text in ended]


def evaluate(
    model: HarnessModel, names: list[str], *, include_path: str | None, limit: int | None, num_fewshot: int | None
) -> list[tuple[str, Figure]]:
    """Return the figures of tasks, each with its task's name. Raises ConfigError."""
    if include_path is not None and not Path(include_path).is_dir():
        raise ConfigError(f"--include-path: no such folder: {include_path}")
    found = simple_evaluate(
        model=model,
        tasks=list(names),
        num_fewshot=num_fewshot,
        limit=limit,
        bootstrap_iters=0,  # the intervals are ours
        task_manager=_manager(names, include_path),
        random_seed=model.seed,
        numpy_random_seed=model.seed,
        torch_random_seed=model.seed,
        fewshot_random_seed=model.seed,
    )
    assert found is not None
    return [
        (task, figure)
        for task, values in found["results"].items()
        for figure in _figures(values, found["samples"].get(task, []))
    ]


def _manager(names: list[str], include_path: str | None) -> Any:
    """Return the tasks of the folder alone where they are all there, for the harness's own are 10,000 files to read."""
    manager = TaskManager(include_path=include_path, include_defaults=False) if include_path else None
    if manager is None or not set(names) <= set(manager.all_tasks):
        manager = TaskManager(include_path=include_path)
    for name in names:
        if name not in manager.all_tasks:
            hint = nearest(name, list(manager.all_tasks))
            raise ConfigError(f"--tasks: lm_eval:{name}: lm-evaluation-harness has no such task{hint}")
    return manager


def _figures(values: dict[str, Any], samples: list[dict[str, Any]]) -> list[Figure]:
    figures = []
    for key, value in values.items():
        metric, _, chosen = key.partition(",")
        if not chosen or metric.endswith("_stderr") or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        drawn = [s[metric] for s in samples if s.get("filter", chosen) == chosen and metric in s]
        estimate = _estimate(float(value), drawn)
        name = "" if chosen == "none" else chosen
        figures.append(Figure(part=name, metric=metric, estimate=estimate, count=len(drawn)))
    return figures


def _estimate(value: float, drawn: list[Any]) -> Estimate:
    """Return a value with its interval, where the documents' own values say how it came about."""
    if drawn and all(isinstance(x, tuple | list) and len(x) == 2 for x in drawn):
        mean = mean_of_positions(*zip(*drawn, strict=True))  # log-likelihoods, and words or bytes
        for change in (lambda x: perplexity(-x), lambda x: -x / math.log(2)):
            if math.isclose(change(mean.value), value, rel_tol=1e-6):
                ends = [None if x is None else change(x) for x in (mean.high, mean.low)]
                return Estimate(value, *ends)
    if drawn and all(isinstance(x, bool | int | float) for x in drawn):
        mean = mean_of_positions(drawn, [1] * len(drawn))
        if math.isclose(mean.value, value, rel_tol=1e-6, abs_tol=1e-9):
            return wilson(sum(drawn), len(drawn)) if set(drawn) <= {0, 1} else mean
    return Estimate(value, None, None)


def _batch(pairs: list[tuple[list[int], list[int]]], filler: int) -> dict[str, torch.Tensor]:
    """Return rows filled up at their ends, which nothing before them sees; only continuations are scored."""
    length = max(sum(map(len, pair)) for pair in pairs) - 1
    tokens = torch.full((len(pairs), max(1, length)), filler)
    targets = torch.full_like(tokens, IGNORED)
    for row, (context, continuation) in enumerate(pairs):
        whole = torch.tensor([*context, *continuation])
        tokens[row, : len(whole) - 1] = whole[:-1]
        targets[row, len(context) - 1 : len(whole) - 1] = whole[len(context) :]
    return {"tokens": tokens, "targets": targets}


def _options(given: dict[str, Any]) -> tuple[tuple[str, ...], int, float, float]:
    """Return stops, new tokens, temperature and top_p. Raises ConfigError."""
    for name in given:
        if name not in OPTIONS:
            raise ConfigError(f"lm_eval: generation option {name!r} is not supported; known: {', '.join(OPTIONS)}")
    until = given.get("until") or []
    stops = (until,) if isinstance(until, str) else tuple(until)
    temperature = float(given.get("temperature", 1.0 if given.get("do_sample") else 0.0))
    is_greedy = given.get("do_sample") is False
    new_tokens, top_p = int(given.get("max_gen_toks", NEW_TOKENS)), float(given.get("top_p", 1.0))
    return tuple(stop for stop in stops if stop), new_tokens, 0.0 if is_greedy else temperature, top_p


def _cut(text: str, until: tuple[str, ...]) -> str:
    return text[: min((text.index(stop) for stop in until if stop in text), default=len(text))]


def _parts(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[first : first + size] for first in range(0, len(numbers), size)]
