"""Search a space of architectures: sample, refuse what a budget forbids, train the rest, name a winner."""
