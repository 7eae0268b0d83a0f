"""Megatron-LM: the arguments of its hybrid models, both ways.

One symbol of `--hybrid-layer-pattern` is one sub-layer, so each of our blocks is two. Arguments and rules are those of
its public documentation in 2026 (docs/user-guide/hybrid-model-migration.md).
"""
