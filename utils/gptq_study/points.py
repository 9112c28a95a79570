"""What unit 08 measures at one point of its study; plain lists, so that JSON can hold them.

"text/RECIPE", "chat/RECIPE", "choice/RECIPE": KL, loss and first choices against fp32 by window, on
    evaluation text, on evaluation text in the chat format, and on the text that chooses the factor.
"restored/RECIPE": as text, with fp32 keys and values at position 0.
"positions/RECIPE": squared error of keys and values by position, on the inputs of the fp32 model.
"""

from contextlib import contextmanager
from functools import cached_property

import torch

from utils import corpus, models, quality
from utils.gptq_study import recipes
from utils.quantization import gptq_model
from utils.sparsity import statistics

CHOICE_TOKENS, EVALUATION_TOKENS, CHAT_TOKENS = 4096, 4096, 4096
WINDOW = recipes.WINDOW


class Bench:
    """The model, its texts, its Hessians; the last quantized model is kept."""

    def __init__(self, folder):
        loaded = models.load(dtype=torch.float32)
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        self.folder, self._kept, self._references = folder, ("", None), {}

    @cached_property
    def calibration(self):
        """Calibration ids and, from the same documents, the windows that choose the factor."""
        tokens = recipes.TOKENS + CHOICE_TOKENS
        return corpus.sample(self.tokenizer, "calibration", tokens, WINDOW)

    @cached_property
    def evaluation(self):
        return corpus.sample(self.tokenizer, "evaluation", EVALUATION_TOKENS + CHAT_TOKENS, WINDOW)

    def ids(self, kind):
        """int64 [windows, 512] of one of the texts."""
        cut = recipes.TOKENS // WINDOW
        if kind == "choice":
            return self.calibration.ids[cut:]
        text = EVALUATION_TOKENS // WINDOW
        if kind == "chat":
            return chats(self.tokenizer, self.evaluation.ids[text:])
        return self.evaluation.ids[:text]

    @cached_property
    def hessians(self):
        ids = self.calibration.ids[: recipes.TOKENS // WINDOW]
        return recipes.Hessians(self.model, ids, self.folder / "08-gptq.safetensors")

    def tensors(self, recipe):
        if self._kept[0] != recipe:
            self._kept = ("", None)
            self._kept = (recipe, recipes.make(recipe, self.model, self.hessians))
        return self._kept[1]

    def run(self, point):
        """The measurement named by `point`."""
        kind, recipe = point.split("/")
        return self._positions(recipe) if kind == "positions" else self._text(kind, recipe)

    def _text(self, kind, recipe):
        candidate = gptq_model.simulate(self.model, self.tensors(recipe))
        ids = self.ids(kind)
        if kind != "restored":
            return compare(self._reference(kind, ids), candidate)
        with restored(self.model, candidate):
            return compare(self._reference("text", ids), candidate)

    def _reference(self, kind, ids):
        if kind not in self._references:  # 0.8 GB each
            self._references[kind] = quality.Reference(self.model, ids, batch=1)
        return self._references[kind]

    def _positions(self, recipe):
        """{"key": [layers][positions], "value": …}: mean over windows of ||(W_hat - W) x||²."""
        ids, tensors = self.ids("text"), self.tensors(recipe)
        layers = {n: m for n, m in models.linears(self.model).items() if n.endswith(KV)}
        found = {name: 0.0 for name in layers}

        def hook(name, layer):
            change = tensors[name].dequantize() - layer.weight

            def record(_module, inputs):
                found[name] = found[name] + (inputs[0] @ change.T).square().sum(-1).sum(0)

            return record

        handles = [m.register_forward_pre_hook(hook(n, m)) for n, m in layers.items()]
        try:
            for row in ids:
                statistics.forward(self.model, row[None])
        finally:
            for handle in handles:
                handle.remove()
        rows = {n: [float(f"{v:.5g}") for v in e / len(ids)] for n, e in found.items()}
        return {kind: [rows[n] for n in rows if n.endswith(end)] for kind, end in KINDS.items()}


KINDS = {"key": "k_proj", "value": "v_proj"}
KV = tuple(KINDS.values())


def chats(tokenizer, windows):
    """Windows in the chat format: half of each is the user's text, half the answer; cut to 512."""
    rows = []
    for row in windows:
        half = len(row) // 2
        user, answer = tokenizer.decode(row[:half]), tokenizer.decode(row[half:])
        messages = [{"role": "user", "content": f"Go on with this text.\n\n{user}"},
                    {"role": "assistant", "content": answer}]  # fmt: skip
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        rows.append(tokenizer(text, add_special_tokens=False)["input_ids"][: len(row)])
    return torch.tensor(rows)


@contextmanager
def restored(reference, candidate):
    """While the block runs, the candidate's keys and values at position 0 are the reference's.

    The first token sees only itself, so its keys and values come from the reference on it alone.
    """
    kept, handles = {}, []

    def keep(name):
        return lambda _module, _inputs, output: kept.__setitem__(name, output)

    def first(_module, _args, kwargs):
        statistics.forward(reference, kwargs["input_ids"][:, :1])

    def replace(name):
        return lambda _m, _i, output: torch.cat([kept[name], output[:, 1:]], dim=1)

    handles.append(candidate.register_forward_pre_hook(first, with_kwargs=True))
    for name, layer in models.linears(reference).items():
        if name.endswith(KV):
            handles.append(layer.register_forward_hook(keep(name)))
            handles.append(candidate.get_submodule(name).register_forward_hook(replace(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def compare(reference, candidate):
    """Window means of KL, loss, loss of the reference, and agreement."""
    token = quality.per_token(reference, candidate)
    return {key: [round(float(x), 7) for x in token[key].mean(-1)] for key in token}
