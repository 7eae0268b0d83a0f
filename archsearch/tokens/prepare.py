"""Make a Megatron dataset of text files: shards in parallel, then one file; a killed run goes on where it was."""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from archsearch.config import ConfigError
from archsearch.files import write_atomic
from archsearch.tokens.description import Description, load_description
from archsearch.tokens.documents import walk
from archsearch.tokens.megatron import dtype_for, write_index
from archsearch.tokens.shards import Shard, Source, check_readable, plan, write_shard
from archsearch.tokens.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer

FORMAT = 1
SHARD_BYTES = 16 * 2**20
WRITTEN = (".bin", ".idx", ".json", ".hashes.npy", ".tokenizer.json", ".shards")


@dataclass(frozen=True)
class Progress:
    """How much is done: bytes of text, of how many."""

    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class Options:
    """What becomes of the text; the number of workers changes nothing."""

    tokenizer: str | None = None
    eod: str | None = None
    text_key: str = "text"
    glob: str = "*"
    workers: int = 1
    force: bool = False
    shard_bytes: int = SHARD_BYTES


def prepare(
    files: list[str], prefix: str, options: Options, report: Callable[[Progress], None] = lambda _: None
) -> Description:
    """Write PREFIX.bin, .idx, .hashes.npy, .json and the tokenizer; return what the JSON says. Raises ConfigError.

    Shards lie in PREFIX.shards until all are there. A run that is finished already is not repeated.
    """
    if options.workers < 1:
        raise ConfigError(f"--workers: must be at least 1; got {options.workers}")
    if Path(prefix).is_dir() or prefix.endswith("/"):
        raise ConfigError(f"--output: must be what the names of files begin with, not a folder; got {prefix}")
    tokenizer = build_tokenizer(options.tokenizer, options.eod)
    sources = list_sources(files, options.glob, prefix)
    key = _key(sources, tokenizer, options)
    if not options.force and (done := _finished(prefix, key)):
        return done
    folder = Path(f"{prefix}.shards")
    with _own_folder(folder, key, options.force):
        shards = plan(sources, options.text_key, options.shard_bytes)
        targets = [folder / f"{i:08}.npz" for i in range(len(shards))]
        _tokenise(shards, targets, tokenizer, options, report)
        return _merge(targets, folder, prefix, tokenizer, sources, key)


def build_tokenizer(path: str | None, eod: str | None) -> Tokenizer:
    """Return the tokenizer of a file, or that of bytes. Raises ConfigError."""
    if path is not None:
        return FileTokenizer(path, eod)
    if eod is not None:
        raise ConfigError(f"--eod: bytes have their own end of document, 256; got {eod!r} without --tokenizer")
    return ByteTokenizer()


def list_sources(files: list[str], glob: str, prefix: str) -> list[Source]:
    """Return the non-empty files among `files` and in folders among them, in order. Raises ConfigError.

    What a run with this `prefix` writes is none of them: it may lie in the same folder when the command is repeated.
    """
    sources: list[Source] = []
    own = {Path(f"{prefix}{ending}").resolve() for ending in WRITTEN}
    for name in files:
        path = Path(name)
        if path.is_dir():
            root = path.resolve()
            found = [file.relative_to(path) for file in sorted(walk(path, glob))]
            sources += [Source(path / x, x.as_posix()) for x in found if own.isdisjoint((root / x, root / x.parent))]
        elif path.is_file():
            sources += [Source(path, path.name)] if path.stat().st_size else []
        else:
            raise ConfigError(f"FILES: no such file or folder: {name}")
    if not sources:
        raise ConfigError(f"FILES: no non-empty file in {', '.join(files)}")
    for source in sources:
        check_readable(source)
    return sources


def _key(sources: list[Source], tokenizer: Tokenizer, options: Options) -> str:
    """Return a hash of all that the shards depend on."""
    facts = [FORMAT, tokenizer.name, tokenizer.sha256, tokenizer.eod, options.text_key, options.shard_bytes]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for source in sources:
        status = source.path.stat()
        facts = [source.name, str(source.path.resolve()), status.st_size, status.st_mtime_ns]
        digest.update(json.dumps(facts).encode())
    return digest.hexdigest()


def _finished(prefix: str, key: str) -> Description | None:
    """Return the description of a finished run on the same text, None where nothing is there yet."""
    existing = [name for name in (f"{prefix}.bin", f"{prefix}.idx", f"{prefix}.json") if Path(name).exists()]
    interrupted = _read(Path(f"{prefix}.shards/plan")) == key
    if not existing or interrupted:
        return None
    if len(existing) == 3 and (done := load_description(Path(f"{prefix}.json"))).sources_sha256 == key:
        return done
    raise ConfigError(f"{existing[0]}: exists, of other text, tokenizer or options; --force replaces it")


@contextmanager
def _own_folder(folder: Path, key: str, force: bool) -> Iterator[None]:
    """Hold the folder of shards, which vanishes at the end; one of another run is refused, or emptied by `force`."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder}: another process is preparing this") from None
        if (other := _read(folder / "plan")) != key:
            shards = list(folder.glob("*.npz"))
            if shards and other is not None and not force:
                raise ConfigError(f"{folder}: holds shards of other text, tokenizer or options; --force drops them")
            for shard in shards:  # without a plan they are what a run that was done had not yet removed
                shard.unlink()
            write_atomic(folder / "plan", key)
        yield
        shutil.rmtree(folder)


def _tokenise(
    shards: list[Shard],
    targets: list[Path],
    tokenizer: Tokenizer,
    options: Options,
    report: Callable[[Progress], None],
) -> None:
    dtype, total = dtype_for(tokenizer.vocab_size), sum(shard.size for shard in shards)
    todo = [(shard, target) for shard, target in zip(shards, targets, strict=True) if not target.exists()]
    done = total - sum(shard.size for shard, _ in todo)
    report(Progress(done, total))
    for size in _shards_written(todo, tokenizer, dtype, options):
        done += size
        report(Progress(done, total))


def _shards_written(
    todo: list[tuple[Shard, Path]], tokenizer: Tokenizer, dtype: np.dtype[Any], options: Options
) -> Iterator[int]:
    """Write shards, and yield the size of each as it is there."""
    workers = min(options.workers, len(todo))
    if workers <= 1:
        for shard, target in todo:
            write_shard(shard, tokenizer, dtype, target)
            yield shard.size
        return
    context = multiprocessing.get_context("spawn")
    setup = options.tokenizer, tokenizer.eod
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=setup)
    try:
        futures = {pool.submit(_work, shard, dtype, target): shard.size for shard, target in todo}
        for future in as_completed(futures):
            future.result()
            yield futures[future]
    except BrokenProcessPool:
        raise ConfigError("a worker died (out of memory?); the same command with fewer --workers goes on") from None
    finally:
        pool.shutdown(cancel_futures=True)


_worker_tokenizer: Tokenizer | None = None


def _start_worker(path: str | None, eod: int) -> None:
    global _worker_tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; this shard is finished
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _worker_tokenizer = ByteTokenizer() if path is None else FileTokenizer(path, eod)


def _end_with(parent: Any) -> None:
    """End this process when its parent has been killed: nobody else would."""
    parent.join()
    os._exit(1)


def _work(shard: Shard, dtype: np.dtype[Any], target: Path) -> None:
    assert _worker_tokenizer is not None
    write_shard(shard, _worker_tokenizer, dtype, target)


def _merge(
    targets: list[Path], folder: Path, prefix: str, tokenizer: Tokenizer, sources: list[Source], key: str
) -> Description:
    """Lay the shards end to end beside their place and rename what came out; the JSON comes last."""
    dtype = dtype_for(tokenizer.vocab_size)
    with open(folder / "bin", "wb") as file:
        digest, lengths, hashes, not_utf8 = _concatenate(targets, file)
    if not len(lengths):
        raise ConfigError("FILES: hold no text")
    with open(folder / "idx", "wb") as file:
        write_index(file, dtype, lengths)
    with open(folder / "hashes.npy", "wb") as file:
        np.save(file, hashes)
    Path(f"{prefix}.json").unlink(missing_ok=True)  # of a run that `--force` replaces
    for ending in ("bin", "hashes.npy", "idx"):
        os.replace(folder / ending, f"{prefix}.{ending}")
    description = Description(
        dtype=dtype.name,
        vocab_size=tokenizer.vocab_size,
        eod=tokenizer.eod,
        eod_token=tokenizer.eod_token,
        eod_ends_documents=True,
        tokenizer=_keep_tokenizer(tokenizer, prefix),
        tokenizer_sha256=tokenizer.sha256,
        documents=len(lengths),
        tokens=int(lengths.sum()),
        source_bytes=sum(source.path.stat().st_size for source in sources),
        not_utf8=not_utf8,
        bin_sha256=digest,
        sources_sha256=key,
    )
    description.save(Path(f"{prefix}.json"))
    return description


def _concatenate(targets: list[Path], file: BinaryIO) -> tuple[str, NDArray[np.int64], NDArray[np.uint64], int]:
    digest, lengths, hashes, not_utf8 = hashlib.sha256(), [], [], 0
    for target in targets:
        with np.load(target) as shard:
            tokens = shard["tokens"].tobytes()
            lengths.append(shard["lengths"])
            hashes.append(shard["hashes"])
            not_utf8 += int(shard["not_utf8"])
        digest.update(tokens)
        file.write(tokens)
    return digest.hexdigest(), np.concatenate(lengths), np.concatenate(hashes), not_utf8


def _keep_tokenizer(tokenizer: Tokenizer, prefix: str) -> str:
    """Copy the tokenizer's file beside the tokens, and return its name."""
    if not isinstance(tokenizer, FileTokenizer):
        return tokenizer.name
    target = Path(f"{prefix}.tokenizer.json")
    write_atomic(target, tokenizer.path.read_text(encoding="utf-8"))
    return target.name


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None
