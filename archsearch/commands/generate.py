"""`archsearch generate`: let a checkpoint go on from a prompt."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsearch.commands.options import add_json_argument, add_plugin_argument

if TYPE_CHECKING:
    from archsearch.model.generation import Step
    from archsearch.tokens.tokenizer import Decoder, Tokenizer

FIELD = "CHECKPOINT"
CONTROL = {code: "\ufffd" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("checkpoint", metavar=FIELD, help="last.ckpt of a run of archsearch fit, or the run's folder")
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", action="append", metavar="TEXT", help="what the text begins with (repeatable)")
    prompts.add_argument("--prompts", metavar="FILE", help="a prompt per line; empty lines are left out")
    prompts.add_argument(
        "--tokens", action="append", metavar="1,2,3", help="a prompt as token numbers, where no tokenizer is known"
    )
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="per prompt (256)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token (0.8)")
    parser.add_argument("--top-p", type=float, default=1.0, help="draw from the likeliest tokens of this mass (1.0)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (0)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the GPU where there is one)")
    parser.add_argument("--precision", default="fp32", help="of weights and caches: fp32, bf16 or fp16 (fp32)")
    add_plugin_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print each prompt and its continuation as it comes; figures go to stderr."""
    import torch

    from archsearch.config import ConfigError
    from archsearch.model.generation import state_bytes, stream
    from archsearch.pattern import compact
    from archsearch.throughput.conditions import PRECISIONS, Conditions, describe_device
    from archsearch.training.checkpoint import find_checkpoint, load_checkpoint, load_model

    device = Conditions(precision=args.precision, device=args.device).resolve_device()
    path = find_checkpoint(args.checkpoint)
    checkpoint = load_checkpoint(path, FIELD)
    tokenizer = _tokenizer(path, checkpoint) if args.tokens is None else None
    prompts = _prompts(args, tokenizer)
    writer = Writer(prompts, tokenizer, args.max_new_tokens, quiet=args.json)
    seconds, states = [], []
    try:
        model = load_model(checkpoint, path, FIELD).to(device, PRECISIONS[args.precision] or torch.float32)
        sampling = {"temperature": args.temperature, "top_p": args.top_p}
        steps = stream(model, prompts, args.max_new_tokens, stop=writer.stop, seed=args.seed, **sampling)
        started = time.perf_counter()
        for step in steps:
            seconds.append(time.perf_counter() - started)  # the tokens of a step have left the device
            writer.add(step)
            states = step.states
            started = time.perf_counter()
    except torch.OutOfMemoryError:
        raise ConfigError(f"out of memory with {len(prompts)} prompts on {device}") from None
    figures = {
        "pattern": compact(model.architecture.pattern),
        "device": describe_device(device),
        "precision": args.precision,
        "prefill": _speed(len(prompts) * min(map(len, prompts)), seconds[0]),
        "decode": _speed(len(prompts) * (len(seconds) - 1), sum(seconds[1:])),
        "state_bytes": state_bytes(states),
    }
    if args.json:
        print(json.dumps({**figures, "continuations": writer.continuations()}, indent=1))
    else:
        print(_summary(figures, len(prompts)), file=sys.stderr)
    return 0


class Writer:
    """Collect the continuations, and print one after the other, each as it comes."""

    def __init__(
        self, prompts: list[list[int]], tokenizer: Tokenizer | None, max_new_tokens: int, *, quiet: bool
    ) -> None:
        """Write text, or without a tokenizer numbers."""
        from rich.console import Console

        self.prompts, self.max_new_tokens = prompts, max_new_tokens
        self.stop = None if tokenizer is None else tokenizer.eod
        self.rows: list[list[int]] = [[] for _ in prompts]
        self._console = Console() if sys.stdout.isatty() else None
        self._row = len(prompts) if quiet else -1
        self._printed = 0
        self._tokenizer = tokenizer
        self._decode = _decoder(tokenizer)

    def add(self, step: Step) -> None:
        """Take the new token of every row."""
        for row, token in zip(self.rows, step.tokens, strict=True):
            if token is not None:
                row.append(token)
        if self._row < 0:
            self._begin_row()
        while self._row < len(self.rows):
            tokens = self.rows[self._row]
            done = self._is_done(tokens)
            self._print(self._decode(tokens[self._printed :], done))
            self._printed = len(tokens)
            if not done:
                break
            self._print("\n")
            self._begin_row()

    def continuations(self) -> list[dict[str, Any]]:
        """Return prompt, continuation, its tokens and whether it has come to its end by itself, per row."""
        decode = None if self._tokenizer is None else self._tokenizer.decode
        texts = [
            {"prompt": decode(prompt), "text": decode(row)} if decode else {"prompt": prompt}
            for prompt, row in zip(self.prompts, self.rows, strict=True)
        ]
        ended = [self.stop is not None and row[-1] == self.stop for row in self.rows]
        return [{**text, "tokens": row, "ended": end} for text, row, end in zip(texts, self.rows, ended, strict=True)]

    def _begin_row(self) -> None:
        self._row, self._printed, self._decode = self._row + 1, 0, _decoder(self._tokenizer)
        if self._row == len(self.rows):
            return
        if len(self.rows) > 1:
            self._print(f"--- {self._row + 1} of {len(self.rows)} ---\n", "dim")
        self._print(self._decode(self.prompts[self._row], False), "bold")

    def _is_done(self, tokens: list[int]) -> bool:
        return len(tokens) == self.max_new_tokens or (bool(tokens) and tokens[-1] == self.stop)

    def _print(self, text: str, style: str | None = None) -> None:
        if self._console is not None:  # a terminal must not obey what a model writes
            self._console.out(text.translate(CONTROL), style=style, highlight=False, end="")
        else:
            sys.stdout.write(text)
            sys.stdout.flush()


def _decoder(tokenizer: Tokenizer | None) -> Decoder:
    """Return a decoder of one row."""
    if tokenizer is None:
        return lambda tokens, _: "".join(f"{token} " for token in tokens)
    return tokenizer.decoder()


def _tokenizer(path: Path, checkpoint: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of the data that a checkpoint was trained on. Raises ConfigError."""
    from archsearch.config import ConfigError
    from archsearch.data.text import Text
    from archsearch.data.token_files import find_tokenizer

    way_out = "prompt it with --tokens 1,2,3"
    if checkpoint.get("data_class") != f"{Text.__module__}.{Text.__qualname__}":
        data = str(checkpoint.get("data_class", "data that it does not name")).rsplit(".", 1)[-1]
        raise ConfigError(f"{FIELD}: {path} was trained on {data}, not on Text; {way_out}")
    arguments = checkpoint.get("datamodule_hyper_parameters", {})
    files = arguments.get("path")
    try:
        tokenizer = find_tokenizer(files, arguments.get("glob", "*"), arguments.get("eod"))
    except ConfigError as error:
        raise ConfigError(f"{FIELD}: {path}: {error}; {way_out}") from None
    if tokenizer is None:
        raise ConfigError(f"{FIELD}: {path} was trained on {files}, which has no tokenizer beside it; {way_out}")
    return tokenizer


def _prompts(args: argparse.Namespace, tokenizer: Tokenizer | None) -> list[list[int]]:
    """Return the tokens of every prompt. Raises ConfigError."""
    from archsearch.config import ConfigError

    if tokenizer is None:
        return [_numbers(text) for text in args.tokens]
    texts = args.prompt
    if texts is None:
        try:
            with open(args.prompts, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
                lines = [line.removesuffix("\n").removesuffix("\r") for line in file]
        except OSError as error:
            raise ConfigError(f"--prompts: {args.prompts}: cannot be read: {error.strerror}") from None
        texts = [line for line in lines if line]
        if not texts:
            raise ConfigError(f"--prompts: {args.prompts}: holds no prompt")
    return [[tokenizer.eod, *tokenizer.encode(text)] for text in texts]


def _numbers(text: str) -> list[int]:
    from archsearch.config import ConfigError

    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"--tokens: must be numbers between commas; got {text!r}") from None


def _speed(tokens: int, seconds: float) -> dict[str, float]:
    return {"tokens": tokens, "seconds": seconds, "tokens_per_second": tokens / seconds if tokens else 0.0}


def _summary(figures: dict[str, Any], rows: int) -> str:
    parts = [
        f"{name} {speed['tokens']:,} tokens at {speed['tokens_per_second']:,.0f} tokens/s"
        for name in ("prefill", "decode")
        if (speed := figures[name])["tokens"]
    ]
    state = f"state {figures['state_bytes']:,} bytes" + (f" of {rows} sequences" if rows > 1 else "")
    return f"{figures['pattern']}: {', '.join([*parts, state])}, {figures['precision']} on {figures['device']}"
