"""Fewer weights: masks, storage, pruning of a whole model, and what is naturally sparse."""

from utils.sparsity.prune import prune_model as prune_model
