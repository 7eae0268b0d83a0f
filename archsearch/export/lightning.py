"""A complete training config for `archsearch fit -c FILE`."""

from __future__ import annotations

from omegaconf import OmegaConf

from archsearch.architecture import Architecture
from archsearch.export.task import TrainingTask


def to_lightning(architecture: Architecture, task: TrainingTask) -> str:
    """Return the LightningCLI config that trains the architecture from scratch as the task says.

    The vocabulary is left to the data, as it is when the task trains a candidate; a note says where that is another.
    """
    from archsearch.training.run import build_data

    arguments = {**task.arguments, "eval_lengths": list(task.evaluate) or None}
    data = build_data(task.data, arguments)
    config = {
        "seed_everything": 0,
        "trainer": {"max_steps": data.steps_for(task.tokens), "gradient_clip_val": 1.0},
        "model": {
            "architecture": {**architecture.to_dict(), "vocab_size": data.vocab_size},
            "optimizer": dict(task.optimizer),
            "schedule": dict(task.schedule),
        },
        "data": {
            "class_path": f"archsearch.data.{task.data}",
            "init_args": {key: value for key, value in arguments.items() if value is not None},
        },
    }
    own = architecture.vocab_size
    changed = f"# note: vocab_size is that of the data, {data.vocab_size}, and not {own}: set your own data\n"
    return (changed if own not in (None, data.vocab_size) else "") + OmegaConf.to_yaml(OmegaConf.create(config))
