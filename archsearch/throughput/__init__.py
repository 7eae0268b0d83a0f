"""Measure training steps and judge them against a budget."""
