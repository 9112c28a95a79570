"""What unit 09 measures of FP8 recipes and caches at one point; plain lists for JSON.

"kv/CONTEXT": the caches of recipes.caches. The prompt of CONTEXT tokens is read by the fp32 model,
    its keys and values go into each cache, then TARGET more tokens are scored through the cache, in
    one piece: they see each other in float.
    {cache: {"kl", "same": by window}}; the targets are the same tokens at every context.
"states/CONTEXT": squared relative errors of keys and values by layer, and position 0's part.
"fp8/NAME": KL, loss and first choices by window, on the starts of unit 08's evaluation windows.
"delayed/NAME": one request is read, then its answer token by token, then the next request; KL and
    clipped values of that next request's first PROMPT tokens, by window.
"""

from functools import cached_property

import torch
from transformers import DynamicCache

from utils import corpus
from utils.gptq_study import points as texts
from utils.kv_study import recipes
from utils.quantization import fp8_recipes, kv_cache, kv_tiles
from utils.speculative.cached import cache_keyword

TARGET, WINDOWS, LONGEST = 64, 8, 2048
CALIBRATION_TOKENS, FP8_WINDOW = 2048, 256
PROMPT, ANSWER = 64, 24


class Bench(texts.Bench):
    """The model and its texts."""

    @cached_property
    def windows(self):
        """int64 [8, 2048 + TARGET] of evaluation text."""
        length = LONGEST + TARGET
        return corpus.sample(self.tokenizer, "evaluation", WINDOWS * length, length).ids

    def run(self, point):
        """The measurement named by `point`."""
        way, what = point.split("/")
        with torch.inference_mode():
            return getattr(self, f"_{way}")(what)

    def _kv(self, context):
        caches = recipes.caches(int(context))
        found = {name: {"kl": [], "same": []} for name in caches}
        for row in self.windows:
            states, target = self._prompt(row, int(context))
            exact = read(self.model, target, kv_cache.fill(DynamicCache(), states))
            for name, recipe in caches.items():
                cache = kv_cache.fill(kv_cache.make(self.model, recipe), states)
                add(found[name], exact, read(self.model, target, cache))
        return found

    def _prompt(self, row, context):
        ids = row[-(context + TARGET) :]
        return states_of(self.model, ids[:context]), ids[context:]

    def _states(self, context):
        total = {}
        for row in self.windows:
            states, _ = self._prompt(row, int(context))
            for name, values in state_errors(states).items():
                total[name] = total.get(name, 0) + torch.tensor(values) / WINDOWS
        return {name: [round(v, 6) for v in value.tolist()] for name, value in total.items()}

    def _calibrate(self, skip_first):
        ids = self.calibration.ids[: CALIBRATION_TOKENS // texts.WINDOW]
        return recipes.largest(self.model, ids, skip_first)

    def _fp8(self, name):
        per, kind = recipes.FP8[name]
        made = recipes.maker(kind, self._calibrate)
        candidate = fp8_recipes.fp8_model(self.model, made, per)
        return texts.compare(self._reference("text", self.ids("text")[:, :FP8_WINDOW]), candidate)

    def _delayed(self, name):
        found = {"kl": [], "same": [], "saturated": []}
        model = fp8_recipes.fp8_model(self.model, per="tensor")
        for row, following in zip(self.windows, self.windows.roll(-1, 0), strict=True):
            for layer in fp8_layers(model):  # each window starts without a history
                layer.activation = fp8_recipes.Delayed(*recipes.DELAYED[name])
            serve(model, row[:PROMPT], row[PROMPT : PROMPT + ANSWER])
            before = clipped(model)
            ids = following[:PROMPT]
            exact = read(self.model, ids, DynamicCache())
            add(found, exact, read(model, ids, DynamicCache()))
            found["saturated"].append(clipped(model) - before)
        return found


def read(model, ids, cache):
    """float32 log-probabilities [tokens, vocabulary]; the cache grows by the tokens."""
    logits = model(input_ids=ids[None], use_cache=True, **{cache_keyword(model): cache}).logits
    return logits[0].float().log_softmax(-1)


def states_of(model, ids):
    """[(keys, values) of each layer] after reading ids [tokens] in one piece."""
    cache = DynamicCache()
    options = {cache_keyword(model): cache, "use_cache": True, "logits_to_keep": 1}
    model(input_ids=ids[None], **options)
    return [(keys, values) for keys, values, *_ in cache]


def add(found, p, q):
    """Append the window's mean KL(p || q) in nats and its share of equal first choices."""
    found["kl"].append(round(float((p.exp() * (p - q)).sum(-1).mean()), 7))
    found["same"].append(round(float((p.argmax(-1) == q.argmax(-1)).float().mean()), 7))


def serve(model, prompt, answer):
    """Read a prompt at once and its answer token by token, as a server does."""
    cache = DynamicCache()
    for piece in (prompt, *answer.split(1)):
        read(model, piece, cache)


def clipped(model):
    """Values that the model's Delayed recipes have clipped so far."""
    return sum(layer.activation.saturated for layer in fp8_layers(model))


def fp8_layers(model):
    """The model's FP8Linear layers, in order."""
    return [m for m in model.modules() if isinstance(m, fp8_recipes.FP8Linear)]


def state_errors(states, group=32, bits=2):
    """{name: [layers]}: relative squared errors, and what position 0 does to its groups.

    "keys_channel", …: error energy over energy of whole tiles, first tile included.
    "first_norm_keys", …: norm at position 0 over the median norm of the others.
    "first_range_keys": mean range of the first tile's channels over the same without position 0.
    """
    found = {}
    for kind, layers in zip(("keys", "values"), zip(*states, strict=True), strict=True):
        for axis in kv_cache.AXES:
            found[f"{kind}_{axis}"] = [relative(x, bits, axis, group) for x in layers]
        norms = [x.norm(dim=-1)[0] for x in layers]
        ratios = [n[:, 0] / n[:, 1:].median(dim=1).values for n in norms]
        found[f"first_norm_{kind}"] = [float(r.mean()) for r in ratios]
        found[f"first_range_{kind}"] = [widening(x[0, :, :group]) for x in layers]
    return found


def relative(x, bits, axis, group):
    """Energy of the error over the energy, of the tokens that fill whole tiles."""
    x = x[:, :, : x.shape[2] // group * group]
    tiles = kv_tiles.encode(x, bits, axis, group)
    error = kv_tiles.decode(tiles, bits, axis, group, x.shape[-1]) - x
    return float(error.square().sum() / x.square().sum())


def widening(x):
    """x [heads, tokens, channels]: range of each channel with its first token over without."""
    ranges = [part.amax(1) - part.amin(1) for part in (x, x[:, 1:])]
    return float((ranges[0] / ranges[1]).mean())
