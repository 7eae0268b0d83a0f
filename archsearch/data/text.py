"""Language modelling on real text: its bytes, or tokens from files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from archsearch.config import ConfigError
from archsearch.data.base import TokenData
from archsearch.data.corpus import Corpus, check_source, open_corpus
from archsearch.data.evaluation import Buckets, EvalBatches
from archsearch.data.packing import START, PackedRows, packed_batch, plain_batch
from archsearch.data.stream import Batch
from archsearch.data.token_corpus import TokenCorpus, open_token_corpus
from archsearch.data.token_files import describe_token_files, find_token_files

CONTEXTS = Buckets("context", (0, 64, 256, 1024, 4096, 16384))


class Text(TokenData):
    """Next-token prediction on files, by default the bytes of this interpreter's standard library in Python.

    Tokens are the bytes 0 to 255, and 256 in front of every document; the target of a document's last byte is 256, so
    every position is scored. Documents are packed into rows and do not see each other; one that goes on in another row
    starts there from nothing. A file is a document; a single file is cut at line ends into documents of about 16 KiB.
    A hash of its name puts a document into the training (90 %), validation or test split (5 % each).

    Token files (`.bin` alone, or Megatron's `.bin` and `.idx`) are read in place. Their end-of-document token takes the
    part of 256; what `archsearch data prepare` wrote has the documents and splits of the text that it came from.
    """

    rows_in_turn = True

    def __init__(
        self,
        path: str | None = None,
        glob: str = "*",
        length: int = 512,
        batch_size: int = 8,
        eval_lengths: list[int] | None = None,
        eval_tokens: int = 65_536,
        cache_dir: str | None = None,
        dtype: str | None = None,
        vocabulary: int | None = None,
        eod: int | None = None,
        document_mask: bool = True,
        seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        """Describe the text; files are read when training starts.

        Args:
            path: A file, or a folder that is searched with all its sub-folders; hidden files and folders are left out.
                Default: the standard library's .py files, without site-packages. Token files by the name of a .bin or
                .idx, several of them by wildcards or between commas.
            glob: Which file names in a folder count, such as *.py or *.txt; token files with *.bin or *.idx.
            length: Tokens per training row.
            batch_size: Rows per training batch.
            eval_lengths: Lengths of the rows in validation and test besides `length`, whose metrics are also logged
                without a length, as val/loss.
            eval_tokens: Tokens of the validation (and test) split that are scored per length, at most.
            cache_dir: Where the memory-mapped bytes, and the places of documents in token files, are kept. Default:
                $XDG_CACHE_HOME/archsearch or ~/.cache/archsearch.
            dtype: Of the tokens in a raw .bin: uint8, uint16, uint32, int32 or int64. Default: what X.json beside
                X.bin says.
            vocabulary: Of token files, the number of different tokens. Default: vocab_size in X.json.
            eod: Of token files, the token between documents. Default: eod in X.json.
            document_mask: Whether documents that share a row do not see each other. Without it a row is `length` tokens
                that all see what is before them, and no batch has cu_seqlens.
            seed: Of the order of documents and rows. Default: that of `seed_everything` on the command line, else 0.
            num_workers: Processes that make batches; 0 makes them in a thread of the training process, two ahead.
        """
        super().__init__(
            length=length, batch_size=batch_size, eval_lengths=eval_lengths, seed=seed, num_workers=num_workers
        )
        if eval_tokens < 1:
            raise ConfigError(f"data.eval_tokens: must be at least 1; got {eval_tokens}")
        self.path = None if path is None else str(Path(path).expanduser())
        self.glob, self.cache_dir = glob, cache_dir
        self.token_files = find_token_files(self.path, glob)
        if self.token_files is None:
            check_source(self.path)
            _check_for_text(dtype=dtype, vocabulary=vocabulary, eod=eod)
        else:
            self.token_format = describe_token_files(self.token_files, dtype, vocabulary, eod)
        self.eval_tokens, self.document_mask = eval_tokens, document_mask
        self._corpus: Corpus | TokenCorpus | None = None
        self.save_hyperparameters(logger=False)

    @property
    def vocab_size(self) -> int:
        return 257 if self.token_files is None else self.token_format.vocab_size

    @property
    def corpus(self) -> Corpus | TokenCorpus:
        """The documents, read at first use."""
        if self._corpus is None:
            self._corpus = self._open()
        return self._corpus

    def prepare_data(self) -> None:
        """Build the cache, once per machine."""
        self._open()

    def train_batches(self) -> Callable[[int], Batch]:
        return Rows(self._packed("train", self.length, self.seed), self.batch_size, mask=self.document_mask)

    def eval_groups(self, length: int) -> tuple[str, ...]:
        """Return the groups by context, the tokens that a position sees before it: at least so many."""
        contexts = CONTEXTS.below(length).names
        return contexts if len(contexts) > 1 else ()

    def eval_batches(self, split: str, length: int) -> EvalBatches:
        packed, rows = self._packed(split, length, None), self.eval_rows(length)
        scored = min(packed.rows, max(1, self.eval_tokens // length))
        groups = bool(self.eval_groups(length))
        return Rows(packed, rows, scored, groups=groups, mask=self.document_mask), -(-scored // rows)

    def _open(self) -> Corpus | TokenCorpus:
        if self.token_files is None:
            return open_corpus(self.path, self.glob, self.cache_dir)
        return open_token_corpus(self.token_files, self.token_format, self.cache_dir)

    def _packed(self, split: str, length: int, seed: int | None) -> PackedRows:
        packed = PackedRows(self.corpus, self.corpus.documents(split), length, seed)
        if not packed.rows:
            source = self.path or "the standard library"
            rule = f"a row of length {length} needs {length + 1} tokens"
            raise ConfigError(f"data.path: {rule}; the {split} split of {source} has {packed.tokens}")
        return packed


@dataclass(frozen=True)
class Rows:
    """Batch i: `batch_size` rows from number i x `batch_size` on, up to row `stop`."""

    packed: PackedRows
    batch_size: int
    stop: int | None = None
    groups: bool = False
    mask: bool = True

    def __call__(self, index: int) -> Batch:
        first = index * self.batch_size
        last = first + self.batch_size if self.stop is None else min(self.stop, first + self.batch_size)
        rows = np.stack([self.packed.row(number) for number in range(first, last)])
        separator = self.packed.corpus.separator if self.mask else None
        batch = plain_batch(rows) if separator is None else packed_batch(rows, separator)
        if self.groups:
            batch["groups"] = torch.from_numpy(CONTEXTS.of(context_lengths(rows[:, :-1], separator)))
        return batch


def context_lengths(tokens: NDArray[np.int64], separator: int | None = START) -> NDArray[np.int64]:
    """Return how many tokens each of `tokens` `[B, T]` sees before it: of its row and, if separated, its document."""
    places = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    starts = np.maximum.accumulate(np.where(tokens == separator, places, 0), axis=1) if separator is not None else 0
    contexts: NDArray[np.int64] = places - starts
    return contexts


def _check_for_text(**arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise ConfigError(f"data.{name}: is for token files (.bin, .idx) alone; got {value!r}")
