"""Composable architecture search for hybrid language models."""

__version__ = "0.1.0"
