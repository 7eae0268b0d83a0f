"""Training that begins with a smaller task and grows to the whole one."""

from __future__ import annotations

from dataclasses import dataclass

from archsearch.config import ConfigError


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """The size of the task (a length, a number of pairs) at each training batch; without `start` it is always whole.

    Raises ConfigError where the arguments `curriculum_start`, `curriculum_hold` and `curriculum_steps` do not fit.
    """

    size: int
    size_name: str
    start: int | None
    hold: int
    steps: int
    low: int = 1

    def __post_init__(self) -> None:
        if self.start is not None and not self.low <= self.start <= self.size:
            rule = f"must be from {self.low} to {self.size_name} ({self.size})"
            raise ConfigError(f"data.curriculum_start: {rule}; got {self.start}")
        if self.steps < 0 or (self.start is not None and self.steps == 0):
            rule = f"must be the number of batches after which the {self.size_name} is reached"
            raise ConfigError(f"data.curriculum_steps: {rule}; got {self.steps}")
        if not 0 <= self.hold <= self.steps:
            rule = f"must be from 0 to curriculum_steps ({self.steps})"
            raise ConfigError(f"data.curriculum_hold: {rule}; got {self.hold}")

    def __call__(self, index: int) -> int:
        return grown_size(index, size=self.size, start=self.start, hold=self.hold, steps=self.steps)


def grown_size(index: int, *, size: int, start: int | None, hold: int, steps: int) -> int:
    """Return the size at training batch `index`: `start` for `hold` batches, then by equal factors up to `size`.

    Growing by factors spends most batches on small tasks, where the rule is found and a batch costs least.
    """
    if start is None or index >= steps:
        return size
    grown = max(0, index - hold) / (steps - hold)
    return int(start * (size / start) ** grown + 1e-6)
