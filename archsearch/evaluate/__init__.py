"""Evaluate a checkpoint: suites of our own data, and tasks of lm-evaluation-harness."""
