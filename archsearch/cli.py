"""The `archsearch` program. Commands import what they need when they run, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from archsearch import __version__

COMMANDS = {
    "search": "run or resume a study of a search space",
    "fit": "train one pattern (LightningCLI)",
    "validate": "evaluate a checkpoint on the validation data (LightningCLI)",
    "test": "evaluate a checkpoint on the test data (LightningCLI)",
    "predict": "write a checkpoint's predictions on the test data (LightningCLI)",
    "generate": "let a checkpoint go on from a prompt",
    "evaluate": "measure what a checkpoint can do: our own suites, or tasks of lm-evaluation-harness",
    "export": "write a study's best architecture, or a file's, for another program",
    "import": "read another program's model back: a file, or a folder with its weights",
    "inspect": "show layers, parameters, state, FLOPs and legality of an architecture",
    "measure": "measure throughput of architectures, side by side, or what the blocks of a space cost",
    "status": "show what a study ran, is running and refused, and why",
    "bench": "time the kernels of a mixer on this GPU, and check them",
    "tune": "find the fastest configurations of library kernels for an architecture's shapes on this GPU",
    "data": "make token files of text (data prepare)",
    "mixers": "list what can be composed, and which backend each has on this machine",
}
MODULES = {"import": "import_"}  # where a command's name is no module's
LIGHTNING = ("fit", "validate", "test", "predict")


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns 0 done, 1 the user's error (one line), 2 usage, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if arguments and arguments[0] in LIGHTNING:
            from archsearch.training.cli import main as lightning_main

            return lightning_main(arguments)
        return _run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def script() -> None:
    """Entry point of the console script."""
    sys.exit(main())


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="archsearch",
        description="Find how many M²RNN layers a hybrid language model needs, where, and what shape.",
    )
    parser.add_argument("--version", action="version", version=f"archsearch {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((argument for argument in arguments if argument in COMMANDS), None)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == chosen:
            module = importlib.import_module(f"archsearch.commands.{MODULES.get(name, name)}")
            module.add_arguments(command)
    args = parser.parse_args(arguments)
    for plugin in getattr(args, "plugin", []):
        from archsearch.registry import import_plugin

        import_plugin(plugin)
    result: int = module.run(args)
    return result


if __name__ == "__main__":
    script()
