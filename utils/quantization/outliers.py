"""LLM.int8(): the few input columns that hold outliers stay in floating point.

    O = {j : some token has |x[t, j]| >= threshold}
    y = sum_{j in O} x_j w_j   (float)   +   scale_x scale_w sum_{j not in O} c_x c_w   (int8)

The scale of a token no longer sees the outliers, so the other columns keep their resolution.
Dettmers et al. 2022 (arXiv:2208.07339), section 3. As in bitsandbytes, the weights of the float
columns come from the int8 codes too: one copy of the weights is stored.

But: which columns are outliers is decided anew for each call, from all its tokens together, so a
token's result depends on its companions in the batch.
"""

from dataclasses import dataclass

from utils.quantization.activations import dynamic, integer_product, require_finite

THRESHOLD = 6.0


def columns(x, threshold=THRESHOLD):
    """bool [in]: the columns of x [..., in] in which some value reaches the threshold."""
    if not threshold > 0:
        raise ValueError(f"threshold={threshold}: must be above 0 (infinity: no float columns)")
    return (x.abs() >= threshold).reshape(-1, x.shape[-1]).any(dim=0)


@dataclass(frozen=True)
class Decomposed:
    """For activations.Int8Linear: outlier columns in float, the rest int8 per token."""

    threshold: float = THRESHOLD

    def product(self, x, codes, scale):
        """x [n, in], weight codes int8 [out, in] and scale [out] -> y [n, out]."""
        out = columns(require_finite(x), self.threshold)
        kept_codes, kept_scale = dynamic(x.masked_fill(out, 0))  # code 0 adds nothing
        y = integer_product(kept_codes, codes).float() * kept_scale
        return (y + x[:, out].float() @ codes[:, out].float().T) * scale
