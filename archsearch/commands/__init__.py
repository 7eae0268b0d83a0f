"""The commands of the `archsearch` program, one module each with `add_arguments(parser)` and `run(args)`."""
