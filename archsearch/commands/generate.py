"""`archsearch generate`: let a checkpoint go on from a prompt."""

from __future__ import annotations

import argparse
import codecs
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsearch.commands.options import add_json_argument, add_plugin_argument

if TYPE_CHECKING:
    from archsearch.model.generation import Step

FIELD = "CHECKPOINT"
CONTROL = {code: "\ufffd" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("checkpoint", metavar=FIELD, help="last.ckpt of a run of archsearch fit, or the run's folder")
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", action="append", metavar="TEXT", help="what the text begins with (repeatable)")
    prompts.add_argument("--prompts", metavar="FILE", help="a prompt per line; empty lines are left out")
    prompts.add_argument(
        "--tokens", action="append", metavar="1,2,3", help="a prompt as token numbers, for other data than text"
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
    from archsearch.data.packing import START
    from archsearch.model.generation import state_bytes, stream
    from archsearch.pattern import compact
    from archsearch.throughput.conditions import PRECISIONS, Conditions, describe_device
    from archsearch.training.checkpoint import find_checkpoint, load_checkpoint, load_model

    device = Conditions(precision=args.precision, device=args.device).resolve_device()
    path = find_checkpoint(args.checkpoint)
    checkpoint = load_checkpoint(path, FIELD)
    prompts = _prompts(args, path, checkpoint)
    as_text, stop = args.tokens is None, START if args.tokens is None else None
    writer = Writer(prompts, as_text, args.max_new_tokens, stop, quiet=args.json)
    seconds, states = [], []
    try:
        model = load_model(checkpoint, path, FIELD).to(device, PRECISIONS[args.precision] or torch.float32)
        sampling = {"temperature": args.temperature, "top_p": args.top_p}
        steps = stream(model, prompts, args.max_new_tokens, stop=stop, seed=args.seed, **sampling)
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
        self, prompts: list[list[int]], as_text: bool, max_new_tokens: int, stop: int | None, *, quiet: bool
    ) -> None:
        from rich.console import Console

        self.prompts, self.as_text, self.max_new_tokens, self.stop = prompts, as_text, max_new_tokens, stop
        self.rows: list[list[int]] = [[] for _ in prompts]
        self._console = Console() if sys.stdout.isatty() else None
        self._row = len(prompts) if quiet else -1
        self._printed = 0
        self._decode = _text_decoder()

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
            self._print(self._text(tokens[self._printed :], done))
            self._printed = len(tokens)
            if not done:
                break
            self._print("\n")
            self._begin_row()

    def continuations(self) -> list[dict[str, Any]]:
        """Return prompt, continuation, its tokens and whether it has come to its end by itself, per row."""
        from archsearch.data.text import decode

        texts = [
            {"prompt": decode(prompt), "text": decode(row)} if self.as_text else {"prompt": prompt}
            for prompt, row in zip(self.prompts, self.rows, strict=True)
        ]
        ended = [self.stop is not None and row[-1] == self.stop for row in self.rows]
        return [{**text, "tokens": row, "ended": end} for text, row, end in zip(texts, self.rows, ended, strict=True)]

    def _begin_row(self) -> None:
        self._row, self._printed, self._decode = self._row + 1, 0, _text_decoder()
        if self._row == len(self.rows):
            return
        if len(self.rows) > 1:
            self._print(f"--- {self._row + 1} of {len(self.rows)} ---\n", "dim")
        self._print(self._text(self.prompts[self._row], done=False), "bold")

    def _is_done(self, tokens: list[int]) -> bool:
        return len(tokens) == self.max_new_tokens or (bool(tokens) and tokens[-1] == self.stop)

    def _text(self, tokens: list[int], done: bool) -> str:
        from archsearch.data.text import to_bytes

        if not self.as_text:
            return "".join(f"{token} " for token in tokens)
        return self._decode(to_bytes(tokens), done)

    def _print(self, text: str, style: str | None = None) -> None:
        if self._console is not None:  # a terminal must not obey what a model writes
            self._console.out(text.translate(CONTROL), style=style, highlight=False, end="")
        else:
            sys.stdout.write(text)
            sys.stdout.flush()


def _text_decoder() -> Callable[[bytes, bool], str]:
    """Return a decoder that keeps the bytes of a character until all have come."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode


def _prompts(args: argparse.Namespace, path: Path, checkpoint: dict[str, Any]) -> list[list[int]]:
    """Return the tokens of every prompt. Raises ConfigError."""
    from archsearch.config import ConfigError
    from archsearch.data.text import Text, encode

    if args.tokens is not None:
        return [_numbers(text) for text in args.tokens]
    if checkpoint.get("data_class") != f"{Text.__module__}.{Text.__qualname__}":
        data = str(checkpoint.get("data_class")).rsplit(".", 1)[-1]
        raise ConfigError(f"{FIELD}: {path} was trained on {data}, not on Text; prompt it with --tokens 1,2,3")
    if args.prompt is not None:
        return [encode(text) for text in args.prompt]
    try:
        lines = Path(args.prompts).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise ConfigError(f"--prompts: {args.prompts}: cannot be read: {error.strerror}") from None
    if not any(lines):
        raise ConfigError(f"--prompts: {args.prompts}: holds no prompt")
    return [encode(line) for line in lines if line]


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
