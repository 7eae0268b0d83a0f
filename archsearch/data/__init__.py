"""What models are trained on: each task is a LightningDataModule."""

from archsearch.data.mixture import Mixture
from archsearch.data.needle import Needle
from archsearch.data.recall import Recall
from archsearch.data.state_tracking import StateTracking
from archsearch.data.text import Text

__all__ = ["StateTracking", "Text", "Recall", "Needle", "Mixture"]  # noqa: RUF022 - in the order of the help
