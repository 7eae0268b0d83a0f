"""The LightningModule around the model of an architecture and the plain training step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

import lightning.pytorch as lightning
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from archsearch.architecture import Architecture, small
from archsearch.config import ConfigError, Where, fill, nearest
from archsearch.data.base import TokenData
from archsearch.data.evaluation import Evaluation
from archsearch.data.stream import IGNORED
from archsearch.model.language_model import HybridLM
from archsearch.training.metrics import LanguageMetrics
from archsearch.training.ranks import sum_over_ranks
from archsearch.training.step import (
    Batch,
    OptimizerOptions,
    ScheduleOptions,
    build_optimizer,
    forward,
    lr_factor,
    training_losses,
)
from archsearch.training.strategy import shard
from archsearch.training.warm_up import compile_kernels

OPTIMIZER = OptimizerOptions()
SCHEDULE = ScheduleOptions()
SHOWN = ("loss", "accuracy")  # in the progress bar

Options = TypeVar("Options")


class LanguageModel(lightning.LightningModule):
    """A hybrid language model in training."""

    def __init__(
        self,
        architecture: dict[str, Any] | str | None = None,
        pattern: str | None = None,
        vocab_size: int | None = None,
        optimizer: OptimizerOptions = OPTIMIZER,
        schedule: ScheduleOptions = SCHEDULE,
        vocabulary: Literal["architecture", "data"] = "architecture",
        activation_checkpointing: bool = False,
        compile: bool | str = False,
        cuda_graphs: bool = False,
    ) -> None:
        """Build the model with fresh weights.

        Args:
            architecture: An architecture as a mapping, or the path of its YAML file. Default: the built-in small one
                (hidden size 128), which needs a pattern.
            pattern: One letter per layer, such as RRRRRRMA or R6MA; replaces the architecture's.
            vocab_size: The data's vocabulary.
            optimizer: AdamW.
            schedule: Of the learning rate.
            vocabulary: Whose counts where the architecture says another than the data: `architecture` refuses the
                data, `data` resizes the embedding and the head.
            activation_checkpointing: Keep only the inputs of blocks for the backward pass, and compute the rest again:
                less memory, about a third more time.
            compile: Let torch.compile translate the blocks: true for its inductor backend, or a backend's name.
            cuda_graphs: Record the blocks as CUDA graphs, once for each shape of batch, and replay them: launching a
                step costs the CPU next to nothing, which is what small models wait for. One GPU, a batch a step;
                packed documents run as they do without. Each shape keeps memory for about one more forward pass.
        """
        super().__init__()
        self.architecture = describe(architecture, pattern, vocab_size, resize=vocabulary == "data")
        self.optimizer_options = _options(OptimizerOptions, optimizer, "model.optimizer")
        self.schedule_options = _options(ScheduleOptions, schedule, "model.schedule")
        self.model = HybridLM(self.architecture)
        self.model.activation_checkpointing = activation_checkpointing
        if compile:
            self.model.compile_blocks(check_backend("inductor" if compile is True else compile))
        self.cuda_graphs = cuda_graphs
        self.tokens_seen = 0
        self._stopping = False
        self._metrics = nn.ModuleList()
        # plain values only: a checkpoint has to load with weights_only=True
        self.save_hyperparameters(
            {
                "architecture": self.architecture.to_dict(),
                "optimizer": dataclasses.asdict(self.optimizer_options),
                "schedule": dataclasses.asdict(self.schedule_options),
                "activation_checkpointing": activation_checkpointing,
                "compile": compile,
                "cuda_graphs": cuda_graphs,
            }
        )

    def configure_model(self) -> None:
        """Cut the model into shards where the strategy asks for that."""
        if self.device_mesh is not None:
            shard(self.model, self.device_mesh)

    def forward(self, tokens: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        """Return logits `[B, T, vocabulary]` for `tokens` `[B, T]`."""
        packed = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens}
        return forward(self.model, {"tokens": tokens, **packed})

    def on_train_start(self) -> None:
        """Set what the options say: a checkpoint would bring its own rate, decay and accumulated batches along."""
        options = self.optimizer_options
        optimizer, scheduler = self.trainer.optimizers[0], self.trainer.lr_scheduler_configs[0].scheduler
        assert isinstance(scheduler, LambdaLR)
        scheduler.base_lrs = [options.learning_rate] * len(optimizer.param_groups)
        factor = scheduler.lr_lambdas[0](scheduler.last_epoch)
        for group in optimizer.param_groups:
            group["initial_lr"], group["lr"] = options.learning_rate, options.learning_rate * factor
            group["betas"], group["eps"] = (options.beta1, options.beta2), options.eps
        optimizer.param_groups[0]["weight_decay"] = options.weight_decay
        self._stopping = False
        self._begin_window()

    def on_fit_start(self) -> None:
        """Raise ConfigError where CUDA graphs would replay what others have written to; compile a GPU's kernels."""
        accumulated = self.trainer.accumulate_grad_batches
        if self.cuda_graphs and (self.trainer.world_size > 1 or accumulated > 1):
            got = f"{self.trainer.world_size} and trainer.accumulate_grad_batches={accumulated}"
            raise ConfigError(f"model.cuda_graphs: needs one device and one batch a step; got {got}")
        if self.device.type == "cuda":
            packed = getattr(getattr(self.trainer, "datamodule", None), "document_mask", False)
            context = self.trainer.precision_plugin.forward_context
            compile_kernels(self.architecture, self.device, context, packed)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        if self.cuda_graphs and "cu_seqlens" not in batch:
            rows, length = batch["tokens"].shape
            self.model.record_blocks(rows, length)
        loss, auxiliary = training_losses(self.model, batch)
        self.tokens_seen += sum_over_ranks(batch["tokens"].numel())
        self.log("train/loss", loss, prog_bar=True, sync_dist=True)
        # a tensor on the CPU: Lightning would copy a number to the GPU, and wait until it has done all it has to
        self.log("train/tokens", torch.tensor(float(self.tokens_seen)))
        if auxiliary is None:
            return loss
        self.log("train/aux_loss", auxiliary, sync_dist=True)
        return loss + auxiliary

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Stop when the tokens are seen; between accumulated batches, put off that stop or a callback's."""
        trainer = self.trainer
        self._stopping |= trainer.should_stop or 0 < self.schedule_options.total_tokens <= self.tokens_seen
        # a checkpoint holds no gradients: the run that goes on from it would lose those of the first batches
        trainer.should_stop = self._stopping and not trainer.fit_loop._should_accumulate()

    def on_validation_epoch_start(self) -> None:
        self._start_evaluation()

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_start(self) -> None:
        self._start_evaluation()

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, dataloader_idx)

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Return `tokens`, `targets`, likeliest `predictions` and the targets' `log_probabilities`, each `[B, T]`."""
        log_probabilities = forward(self.model, batch).float().log_softmax(-1)
        targets = batch["targets"]
        chosen = log_probabilities.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        return {
            "tokens": batch["tokens"],
            "targets": targets,
            "predictions": log_probabilities.argmax(-1),
            "log_probabilities": chosen.masked_fill(targets == IGNORED, 0.0),
        }

    def configure_optimizers(self) -> Any:
        # a gradient scaler (fp16) cannot be combined with a fused optimizer and clipping
        fused = False if self._scales_gradients() else None
        optimizer = build_optimizer(self.model, self.optimizer_options, fused=fused)
        scheduler = LambdaLR(optimizer, self._lr_schedule())
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip as the Trainer says, or else to the optimizer options' norm."""
        if gradient_clip_val is not None or self._scales_gradients():
            value = self.optimizer_options.grad_clip if gradient_clip_val is None else gradient_clip_val
            self.clip_gradients(optimizer, value, gradient_clip_algorithm or "norm")
        elif self.optimizer_options.grad_clip is not None:
            nn.utils.clip_grad_norm_(self.parameters(), self.optimizer_options.grad_clip)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["tokens_seen"] = self.tokens_seen
        data = type(getattr(self.trainer, "datamodule", None))
        checkpoint["data_class"] = f"{data.__module__}.{data.__qualname__}"

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.tokens_seen = checkpoint["tokens_seen"]

    def _begin_window(self) -> None:
        """Let the next batch be the first of those accumulated for a step, however many the checkpoint's run took.

        Lightning counts them from the beginning of an epoch; where that has an end, a step has to keep to it.
        """
        loop = self.trainer.fit_loop.epoch_loop
        if self.trainer.num_training_batches != math.inf:
            return
        done = loop.batch_progress.current
        beyond = done.ready % self.trainer.accumulate_grad_batches
        for name in ("ready", "started", "processed", "completed"):
            setattr(done, name, getattr(done, name) - beyond)

    def _scales_gradients(self) -> bool:
        return getattr(self.trainer.precision_plugin, "scaler", None) is not None

    def _lr_schedule(self) -> Any:
        """Return the learning rate's factor as a function of the optimizer steps done."""
        total_steps = self.trainer.estimated_stepping_batches
        step_tokens = self._tokens_per_step()
        options, warmup = self.schedule_options, None
        total_tokens = options.total_tokens
        expected = min(total_steps, total_tokens / step_tokens if total_tokens and step_tokens else math.inf)
        if expected == math.inf and (options.type != "constant" or options.warmup_steps is None):
            rule = "the schedule needs the length of the run: give trainer.max_steps or model.schedule.tokens"
            raise ConfigError(f"model.schedule: {rule}, or type constant with warmup_steps")
        if options.warmup_steps is not None:
            warmup = options.warmup_steps / (expected if expected < math.inf else max(1, options.warmup_steps))

        def factor(steps_done: int) -> float:
            # counted with the step that is about to be taken, so that no step has rate 0
            if expected == math.inf:
                return min(1.0, (steps_done + 1) / max(1, options.warmup_steps or 0))
            by_steps = (steps_done + 1) / total_steps
            by_tokens = (self.tokens_seen + step_tokens) / total_tokens if total_tokens else 0.0
            return lr_factor(min(1.0, max(by_steps, by_tokens)), options, warmup)

        return factor

    def _tokens_per_step(self) -> int:
        data = getattr(self.trainer, "datamodule", None)
        at_once: int = getattr(data, "batches_at_once", self.trainer.world_size)
        tokens_per_batch: int = getattr(data, "tokens_per_batch", 0)
        return tokens_per_batch * self.trainer.accumulate_grad_batches * at_once

    def _evaluations(self) -> list[Evaluation]:
        """Return what each evaluation loader is of; a loader that no data module made is named by its number."""
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, TokenData):
            return data.evaluations()
        loaders = self.trainer.num_test_batches if self.trainer.testing else self.trainer.num_val_batches
        return [Evaluation(length=i, standard=i == 0) for i in range(len(loaders))]

    def _start_evaluation(self) -> None:
        metrics = (LanguageMetrics(evaluation.metrics, evaluation.groups) for evaluation in self._evaluations())
        self._metrics = nn.ModuleList(metrics).to(self.device)

    def _evaluate(self, batch: Batch, dataloader_idx: int) -> None:
        logits = forward(self.model, batch)
        self._metrics[dataloader_idx].update(logits, batch["targets"], batch.get("groups"))  # type: ignore[operator]

    def _log_evaluation(self, stage: str) -> None:
        for evaluation, metrics in zip(self._evaluations(), self._metrics, strict=True):
            for name, value, shown in named(evaluation, metrics.compute()):  # type: ignore[operator]
                self.log(f"{stage}/{name}", value, prog_bar=shown, sync_dist=True)
        self._metrics = nn.ModuleList()  # their states do not belong into a checkpoint


def named(evaluation: Evaluation, computed: Mapping[str, Mapping[str, Tensor]]) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield an evaluation's metrics under their names, and whether each is one for a progress bar."""
    for group, values in computed.items():
        for name, value in values.items():
            yield _path(name, evaluation.name, group), value, False
            if evaluation.standard and not group:
                yield _path(name, evaluation.part), value, name in SHOWN


def describe(
    architecture: Mapping[str, Any] | str | None, pattern: str | None, vocab_size: int | None, *, resize: bool = False
) -> Architecture:
    """Return the architecture to build, `resize`d to another vocabulary if need be.

    Raises ConfigError where pattern or vocabulary do not fit.
    """
    where = Where("model.architecture")
    if architecture is None:
        if pattern is None:
            raise ConfigError("model.pattern: is required unless model.architecture is given")
        described = small()
    elif isinstance(architecture, str):
        described, where = Architecture.load(architecture), Where(architecture)
    else:
        described = Architecture.from_dict({"pattern": pattern, **architecture} if pattern else architecture, where)
    if pattern is not None:
        described = described.with_pattern(pattern)
        described.check(where)
    if vocab_size is not None and described.vocab_size not in (None, vocab_size) and not resize:
        way_out = "--model.vocabulary=data takes the data's"
        raise (where / "vocab_size").error(
            f"must be {vocab_size}, the data's vocabulary; got {described.vocab_size} ({way_out})"
        )
    return described if vocab_size is None else dataclasses.replace(described, vocab_size=vocab_size)


def check_backend(name: str) -> str:
    """Return the name of a backend of torch.compile. Raises ConfigError where there is none of that name."""
    from torch._dynamo import list_backends  # a second of imports

    known = list_backends(exclude_tags=())
    if name not in known:
        raise ConfigError(f"model.compile: unknown backend {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    return name


def _path(*names: str) -> str:
    return "/".join(filter(None, names))


def _options(schema: type[Options], values: Any, name: str) -> Options:
    return fill(schema, values, Where(name)) if isinstance(values, Mapping) else values
