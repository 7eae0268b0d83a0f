"""Build the network that an architecture describes."""
