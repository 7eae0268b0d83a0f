"""The JSON beside a token file, `X.json` beside `X.bin`: what the numbers mean, and how they came about."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from archsearch.config import Where, fill
from archsearch.files import write_atomic

BYTES = "bytes"
"""The tokenizer whose tokens are the bytes 0 to 255, and 256 between documents."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What is known of a token file; a file that was made elsewhere may say `dtype`, `vocab_size` and `eod` alone."""

    format: int = 1
    dtype: str | None = None
    vocab_size: int | None = None
    eod: int | None = None
    eod_token: str | None = None
    eod_ends_documents: bool = False
    tokenizer: str | None = None
    tokenizer_sha256: str | None = None
    documents: int | None = None
    tokens: int | None = None
    source_bytes: int | None = None
    not_utf8: int | None = None
    bin_sha256: str | None = None
    sources_sha256: str | None = None

    def save(self, path: Path) -> None:
        """Write what is known, all or nothing."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        write_atomic(path, json.dumps(known, indent=1) + "\n")


def load_description(path: Path) -> Description:
    """Return what a file says; one that is not there says nothing. Raises ConfigError."""
    where = Where(str(path))
    if not path.is_file():
        return Description()
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise where.error(f"is not valid JSON: {error}") from None
    description = fill(Description, values, where)
    if description.format != 1:
        raise (where / "format").error(f"must be 1; got {description.format}")
    return description


def beside(file: Path, ending: str) -> Path:
    """Return `X` + `ending` for a file `X.bin` or `X.idx`; X may hold dots."""
    return file.with_name(file.name.removesuffix(file.suffix) + ending)
