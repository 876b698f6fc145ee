"""The one loop that trains every model. It knows losses and validation scores, not what a model is for."""

from emnat.training.feed import Examples
from emnat.training.loop import train

__all__ = ["Examples", "train"]
