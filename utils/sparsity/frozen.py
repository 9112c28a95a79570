"""Keep pruned weights at zero while the others are trained.

Does: undo what an optimizer does to masked weights after each step, and clear its state there.
Does not: prune, or speed anything up. Why a mask on the gradient is not enough: momentum gathered
before pruning, and weight decay's update of the state, move a weight whose gradient is zero.
"""

import torch

from utils import models


def zero_masks(model, skip=("lm_head",)):
    """{name: bool [as stored]}: True where a linear layer's weight is exactly zero now."""
    return {
        name: module.weight.detach() == 0 for name, module in models.linears(model, skip).items()
    }


class FrozenZeros:
    """After every `optimizer.step()`, the weights that are zero now are zero again.

    Use as a context manager, or call `.remove()`; `.zeros` is the number of weights held.
    """

    def __init__(self, model, optimizer, skip=("lm_head",)):
        layers = models.linears(model, skip)
        self.masks = [(layers[name].weight, mask) for name, mask in zero_masks(model, skip).items()]
        self.zeros = sum(int(mask.sum()) for _, mask in self.masks)
        self._handle = optimizer.register_step_post_hook(lambda opt, args, kwargs: self.apply(opt))
        self.apply(optimizer)

    @torch.no_grad()
    def apply(self, optimizer):
        """Zero the masked weights and the optimizer's state there."""
        for weight, mask in self.masks:
            weight.masked_fill_(mask, 0)
            for state in optimizer.state.get(weight, {}).values():
                if torch.is_tensor(state) and state.shape == weight.shape:
                    state.masked_fill_(mask, 0)

    def remove(self):
        """Let the weights go."""
        self._handle.remove()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()
