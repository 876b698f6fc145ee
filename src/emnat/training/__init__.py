"""The one loop that trains every model. It knows losses and validation scores, not what a model is for."""

from emnat.training.loop import Examples, train

__all__ = ["Examples", "train"]
