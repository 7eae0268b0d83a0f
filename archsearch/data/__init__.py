"""What models are trained on: each task is a LightningDataModule."""

from archsearch.data.state_tracking import StateTracking
from archsearch.data.text import Text

__all__ = ["StateTracking", "Text"]
