"""`archsearch fit`, `validate`, `test` and `predict`: LightningCLI with errors in one line."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from jsonargparse import ArgumentError, Namespace, set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import StrategyRegistry

from archsearch import data as data_modules
from archsearch.config import ConfigError, nearest
from archsearch.data.base import TokenData
from archsearch.registry import import_plugin
from archsearch.training.callbacks import PredictionWriter, ProgressBar, SaveLast, StopOnInterrupt, TokensPerSecond
from archsearch.training.checkpoint import load_checkpoint
from archsearch.training.cli_errors import TRUSTED, UsageError, explain, innermost
from archsearch.training.module import LanguageModel
from archsearch.training.ranks import leave
from archsearch.training.run import be_quiet
from archsearch.training.strategy import NAME as FSDP2

MAX_STEPS = 500  # where nothing says when to stop
VALIDATE_EVERY = 250  # batches, about, where nothing is said: so that the last step is validated
TRAINER_DEFAULTS = {
    "max_epochs": -1,
    "num_sanity_val_steps": 0,
    "check_val_every_n_epoch": None,
    "val_check_interval": None,  # about VALIDATE_EVERY
    "log_every_n_steps": 10,
    "enable_model_summary": False,
}
HELP = """Besides the arguments below: --plugin MODULE imports a module that registers mixers (may be repeated); --trust
allows class paths from outside archsearch, lightning and torch, which run the code that they name."""


def main(argv: list[str]) -> int:
    """Run `fit`, `validate`, `test` or `predict`; returns 0, 1 (the user's error) or 2 (usage).

    ValueError and OSError are the caller's to print; what only Lightning and jsonargparse raise is printed here.
    """
    be_quiet()
    _ignore_hints()
    argv, plugins, trust = _take_own_flags(argv)
    for plugin in plugins:
        import_plugin(plugin)
    if not trust:
        set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=[*TRUSTED, *plugins])
    interrupt = StopOnInterrupt()
    try:
        Command(argv, interrupt)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ValueError as error:
        if "Does not validate" in str(error):  # the parser's wrapping around what a class says about its arguments
            raise ConfigError(innermost(str(error))) from None
        raise
    except (MisconfigurationException, torch.OutOfMemoryError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except SystemExit:
        if interrupt.interrupted:
            raise KeyboardInterrupt from None
        raise
    leave()
    if interrupt.interrupted:
        raise KeyboardInterrupt
    return 0


class Command(LightningCLI):
    """LightningCLI with this project's defaults, and checkpoints whose hyperparameters are defaults, not commands."""

    def __init__(self, argv: list[str], interrupt: StopOnInterrupt) -> None:
        quiet = {"exit_on_error": False, "allow_abbrev": False, "description": HELP}
        super().__init__(
            LanguageModel,
            TokenData,
            subclass_mode_data=True,
            save_config_callback=SaveConfig,
            trainer_defaults={**TRAINER_DEFAULTS, "callbacks": [TokensPerSecond(), interrupt]},
            seed_everything_default=0,
            parser_kwargs={"prog": "archsearch", **quiet, **{name: dict(quiet) for name in self.subcommands()}},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            args=argv,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        # checkpoints are always loaded as plain data, results are printed and predictions written here
        unused = {"weights_only", "verbose", "return_predictions"}
        return {name: skipped | unused for name, skipped in LightningCLI.subcommands().items()}

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(Trainer, "trainer")
        parser.set_defaults({f"trainer.{name}": x for name, x in self.trainer_defaults.items() if name != "callbacks"})
        parser.add_lightning_class_args(LanguageModel, "model")
        # not required by the parser: a checkpoint may give it
        parser.add_lightning_class_args(TokenData, "data", subclass_mode=True, required=False)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(SaveLast, "checkpoint")
        parser.add_lightning_class_args(PredictionWriter, "predictions")
        parser.link_arguments("data.vocab_size", "model.vocab_size", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, a checkpoint's hyperparameters being the defaults that flags and files override."""
        self.checkpoint: dict[str, Any] | None = None
        flag = _value_of("--ckpt_path", args)
        if flag is not None:
            self._take_defaults(args[0], flag)
        self.config = self._parse(parser, args)
        path = self._own_config().get("ckpt_path")
        if path and path != flag:  # it stands in a config file
            self._take_defaults(args[0], path)
            self.config = self._parse(parser, args)

    def _take_defaults(self, subcommand: str, path: str) -> None:
        self.checkpoint = load_checkpoint(path)
        defaults = _as_defaults(self.checkpoint) | (_run_defaults(self.checkpoint) if subcommand == "fit" else {})
        self._subcommand_parsers[subcommand].set_defaults(defaults)

    def _parse(self, parser: LightningArgumentParser, args: list[str]) -> Namespace:
        try:
            config: Namespace = parser.parse_args(args)
        except ArgumentError as error:
            subparser = self._subcommand_parsers.get(args[0] if args else "")
            options = [option for action in subparser._actions for option in action.option_strings] if subparser else []
            message = explain(str(error), args, options)
            raise (ConfigError if "is not allowed" in message else UsageError)(message) from None
        return config

    def _parse_ckpt_path(self) -> None:
        """Do nothing: `parse_arguments` has done it, and what is said explicitly has won."""

    def before_instantiate_classes(self) -> None:
        config = self._own_config()
        if not config.get("data"):
            choices = " or ".join(f"--data={name}" for name in data_modules.__all__)
            raise ConfigError(f"data: is required: {choices}")
        arguments = config["data"].get("init_args")
        if arguments is not None and arguments.get("seed", 0) is None:
            arguments["seed"] = config["seed_everything"]
        trainer = config["trainer"]
        check_strategy(trainer["strategy"])
        check_positive(trainer, "accumulate_grad_batches", "val_check_interval")
        endless = trainer["max_steps"] == -1 and trainer["max_epochs"] in (None, -1) and trainer["max_time"] is None
        if endless and config["model"]["schedule"]["tokens"] is None:
            trainer["max_steps"] = MAX_STEPS

    def instantiate_classes(self) -> None:
        super().instantiate_classes()
        if self.checkpoint is not None:
            check_same_model(self._own_config()["ckpt_path"], self.checkpoint, self.model)

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Any]) -> Trainer:
        if config["logger"] in (None, True):
            config["logger"] = CSVLogger(config["default_root_dir"] or ".")
        if config["val_check_interval"] is None:
            config["val_check_interval"] = _validate_every(config["max_steps"] * config["accumulate_grad_batches"])
        if config["enable_checkpointing"] is False:
            callbacks = [x for x in callbacks if not isinstance(x, SaveLast)]
        if config["enable_progress_bar"] is not False:
            callbacks = [*callbacks, ProgressBar()]
        trainer: Trainer = super()._instantiate_trainer(config, callbacks)
        return trainer

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        arguments: dict[str, Any] = super()._prepare_subcommand_kwargs(subcommand)
        if arguments.get("ckpt_path"):
            arguments["weights_only"] = True
        if subcommand == "predict":
            arguments["return_predictions"] = False  # PredictionWriter has them
        elif subcommand != "fit":
            arguments["verbose"] = False  # Lightning's table has every figure once per evaluation length
        return arguments

    def after_fit(self) -> None:
        """Say what came out and where it is."""
        self._print_metrics("val")
        for saver in (x for x in vars(self.trainer)["callbacks"] if isinstance(x, SaveLast)):
            path = saver.path(self.trainer)  # asked of all ranks
            if self.trainer.is_global_zero and path.is_file():
                print(f"checkpoint: {path}")

    def after_validate(self) -> None:
        self._print_metrics("val")

    def after_test(self) -> None:
        self._print_metrics("test")

    def _print_metrics(self, stage: str) -> None:
        if not self.trainer.is_global_zero:
            return
        metrics = {name: x for name, x in self.trainer.callback_metrics.items() if name.startswith(f"{stage}/")}
        width = max([24, *(len(name) + 2 for name in metrics)])
        for name, value in metrics.items():
            print(f"{name:<{width}}{value:.4f}")

    def _own_config(self) -> Namespace:
        config: Namespace = self.config[self.config["subcommand"]]
        return config


class SaveConfig(SaveConfigCallback):
    """Save what a run was started with: `config.yaml` of `fit`, `validate.yaml` and so on of the others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "overwrite": True})

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        name = str(trainer.state.fn.value) if trainer.state.fn else stage
        self.config_filename = "config.yaml" if name == "fit" else f"{name}.yaml"
        super().setup(trainer, pl_module, stage)


def check_strategy(strategy: object) -> None:
    """Raise ConfigError where a strategy given by its name does not exist."""
    known = ["auto", *StrategyRegistry.available_strategies()]
    if isinstance(strategy, str) and strategy not in known:
        common = f"auto, ddp, {FSDP2} or another name or class of Lightning's strategies"
        raise ConfigError(f"trainer.strategy: unknown {strategy!r}{nearest(strategy, known)}; known: {common}")


def check_positive(trainer: Mapping[str, Any], *names: str) -> None:
    """Raise ConfigError where one of these arguments of the Trainer is a number that is not positive."""
    for name in names:
        if isinstance(trainer[name], int | float) and not trainer[name] > 0:
            raise ConfigError(f"trainer.{name}: must be positive; got {trainer[name]}")


def check_same_model(path: str, checkpoint: Mapping[str, Any], model: LanguageModel) -> None:
    """Raise ConfigError where flags or files ask for another model than the checkpoint's weights are of."""
    from archsearch.architecture import Architecture
    from archsearch.config import Where
    from archsearch.pattern import compact

    saved = Architecture.from_dict(checkpoint["hyper_parameters"]["architecture"], Where(path))
    if saved.id != model.architecture.id:
        asked = model.architecture
        raise ConfigError(
            f"ckpt_path: {path} holds pattern {compact(saved.pattern)}, hidden size {saved.hidden_size}, vocabulary "
            f"{saved.vocab_size} (id {saved.id}); asked for is pattern {compact(asked.pattern)}, hidden size "
            f"{asked.hidden_size}, vocabulary {asked.vocab_size} (id {asked.id})"
        )


def _validate_every(batches: int) -> int:
    """Return about VALIDATE_EVERY, so that one of the last of so many batches is validated; below 1: without end."""
    return batches // math.ceil(batches / VALIDATE_EVERY) if batches > 0 else VALIDATE_EVERY


def _as_defaults(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of model and data as defaults of the parser."""
    model = checkpoint["hyper_parameters"]
    defaults: dict[str, Any] = {"model.architecture": model["architecture"]}
    for group in ("optimizer", "schedule"):
        defaults |= {f"model.{group}.{name}": value for name, value in model[group].items()}
    if "datamodule_hyper_parameters" in checkpoint:
        arguments = dict(checkpoint["datamodule_hyper_parameters"])
        defaults["data"] = {"class_path": checkpoint["data_class"], "init_args": arguments}
    return defaults


def _run_defaults(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the training ran, which has no meaning for an evaluation."""
    model, names = checkpoint["hyper_parameters"], ("activation_checkpointing", "compile", "cuda_graphs")
    return {f"model.{name}": model[name] for name in names if name in model}


def _take_own_flags(argv: list[str]) -> tuple[list[str], list[str], bool]:
    """Split off what has to act before a parser can be built: `--plugin MODULE` and `--trust`."""
    rest, plugins, trust = [], [], False
    arguments = iter(argv)
    for argument in arguments:
        if argument == "--trust":
            trust = True
        elif argument == "--plugin":
            plugins.append(next(arguments, ""))
        elif argument.startswith("--plugin="):
            plugins.append(argument.removeprefix("--plugin="))
        else:
            rest.append(argument)
    return rest, plugins, trust


def _value_of(flag: str, argv: list[str]) -> str | None:
    values = [value for name, value in pairwise(argv) if name == flag]
    values += [argument.removeprefix(f"{flag}=") for argument in argv if argument.startswith(f"{flag}=")]
    return values[-1] if values else None


def _ignore_hints() -> None:
    """Silence what no user of these commands can or should act on."""
    for hint in (
        r"(?s).*was deprecated in v4.*",  # jsonargparse, in Lightning
        r"(?s).*JsonargparseDeprecationWarning.*",
    ):
        warnings.filterwarnings("ignore", message=hint)
