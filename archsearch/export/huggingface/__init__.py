"""A folder that transformers loads where archsearch is not installed."""

from archsearch.export.huggingface.folder import write_huggingface

__all__ = ["write_huggingface"]
