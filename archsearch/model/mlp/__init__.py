"""The feed-forward half of a block, one kind per file."""
