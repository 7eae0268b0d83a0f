"""lm-engine: its training configs both ways, and its checkpoints.

Keys, values and layouts are those of its public repository in early 2026 (configs/research/m2rnn, lm_engine/hf_models).
"""
