"""`python -m archsearch`."""

from archsearch.cli import script

script()
