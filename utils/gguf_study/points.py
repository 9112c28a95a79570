"""What unit 09 measures at one point of its study of GGUF files; plain lists for JSON.

"block/KIND": all linear layers in one of our block formats; "rtn/BITS-GROUP-GRID": rounded to
    nearest instead; "head/KIND": the embedding, which is also the head, and nothing else.
"file/LABEL", "file/LABEL-imatrix": a file that llama.cpp quantized from our F32 file, its table and
    its weights as our codecs decode them; with the mean squares of 4,096 calibration tokens.
"run/KIND": a file that we wrote, run by llama.cpp, against our dequantized copy of it.

KL, loss and first choices are means by window. "file" and "run" need llama-cpp-python.
"""

from functools import cached_property
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from utils import models
from utils.bench import llamacpp, llamacpp_quantize
from utils.gguf_study.summary import NEW_TOKENS
from utils.gptq_study import points as texts
from utils.quantization import gguf as codec
from utils.quantization import gguf_content, gguf_file, gptq_model, rtn
from utils.quantization.model import share
from utils.sparsity import statistics

PROMPTS, PROMPT_TOKENS, RUN_WINDOWS = 8, 64, 2
IMATRIX_TOKENS = 4096


class Bench(texts.Bench):
    """The model and the texts of unit 08's study; files live in a folder that is thrown away."""

    @cached_property
    def _files(self):
        return TemporaryDirectory(dir=self.folder, prefix="09-gguf-")

    def path(self, name):
        """Path of a file in the throw-away folder."""
        return f"{self._files.name}/{name}.gguf"

    @cached_property
    def source(self):
        """The model as an F32 file."""
        return gguf_file.write(self.model, self.tokenizer, self.path("f32"))

    def run(self, point):
        """The measurement named by `point`."""
        way, what = point.split("/")
        return getattr(self, f"_{way}")(what)

    def _against_fp32(self, candidate):
        return texts.compare(self._reference("text", self.ids("text")), candidate)

    def _block(self, kind):
        return self._against_fp32(in_blocks(self.model, kind))

    def _rtn(self, recipe):
        bits, group, grid = recipe.split("-")
        options = (int(bits), int(group), grid == "sym")
        layers = models.linears(self.model).items()
        made = {n: rtn.quantize(m.weight.detach(), *options) for n, m in layers}
        weights = sum(m.weight.numel() for _, m in layers)
        bits = 8 * sum(t.nbytes for t in made.values()) / weights
        return self._against_fp32(gptq_model.simulate(self.model, made)) | {"bits": bits}

    def _head(self, kind):
        return self._against_fp32(with_head(self.model, kind))

    def _file(self, what):
        label = what.removesuffix("-imatrix")
        importance = self.importance if what != label else None
        path = self.path(what)
        llamacpp_quantize.quantize(self.source, path, label, importance)
        rows = gguf_content.table(path)
        found = self._against_fp32(gguf_content.restore(path, self.model))
        found["types"] = [[r.name, r.kind, list(r.shape), r.nbytes] for r in rows]
        if what in codec.TYPES:
            found["same_bytes"] = same_bytes(path, gguf_file.plan(self.model, what))
        return found

    @cached_property
    def importance(self):
        """{matrix: mean square of each input}, the squares of Wanda's norms over the tokens."""
        short = {module: name for name, module in gguf_file.MATRICES.items()}
        rows = self.calibration.ids[: IMATRIX_TOKENS // texts.WINDOW]
        found = {}
        for name, seen in statistics.collect(self.model, rows).items():
            _, _, layer, module = name.split(".", 3)
            mean = (seen.sum_squares / seen.tokens).float().numpy()
            found[f"blk.{layer}.{short[module]}.weight"] = mean
        return found

    def _run(self, kind):
        path = gguf_file.write(self.model, self.tokenizer, self.path(f"run-{kind}"), kind)
        twin = gguf_content.restore(path, self.model)
        ids = self.ids("text")
        with llamacpp.LlamaCpp(path, threads=1, context=texts.WINDOW, exact_attention=True) as peer:
            found = compare_logits(twin, peer, ids[:RUN_WINDOWS])
            prompts = ids[:PROMPTS, :PROMPT_TOKENS].tolist()
            return found | {"greedy": [same_greedy(twin, peer, p) for p in prompts]}


def in_blocks(model, kind):
    """A copy of the model whose linear layers hold what a block format makes of them."""
    made = share(model)
    for layer in models.linears(made).values():
        _replace(layer, kind)
    return made


def with_head(model, kind):
    """A copy whose embedding, tied to the head, went through a block format."""
    made = share(model)
    _replace(made.model.embed_tokens, kind)
    made.lm_head.weight = made.model.embed_tokens.weight
    return made


def _replace(layer, kind):
    weight = layer.weight.detach()
    new = codec.dequantize(codec.quantize(weight, kind), kind, weight.shape)
    layer.weight = nn.Parameter(new, requires_grad=False)


def same_bytes(path, entries):
    """(tensors whose bytes are those that our codec writes, tensors) of a file."""
    theirs = {tensor.name: tensor for tensor in gguf_content.gguf.GGUFReader(path).tensors}
    same = [
        theirs[e.name].tensor_type.name == e.kind
        and np.array_equal(theirs[e.name].data.view(np.uint8).ravel(), gguf_file.encode(e))
        for e in entries
    ]
    return [sum(same), len(same)]


@torch.no_grad()
def compare_logits(twin, peer, ids):
    """Window means of KL(twin || llama.cpp), agreement, and the largest difference of a logit."""
    found = {"kl": [], "same": [], "largest": []}
    for row in ids:
        ours = twin(input_ids=row[None], use_cache=False).logits[0]
        theirs = torch.from_numpy(peer.logits(row.tolist()))
        p, q = ours.log_softmax(-1), theirs.log_softmax(-1)
        found["kl"].append(float((p.exp() * (p - q)).sum(-1).mean()))
        found["same"].append(float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()))
        found["largest"].append(float((ours - theirs).abs().max()))
    return found


@torch.no_grad()
def same_greedy(twin, peer, prompt):
    """How many greedy tokens agree before the first difference, of NEW_TOKENS."""
    ids = torch.tensor([prompt])
    settings = dict(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1)
    ours = twin.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :]
    theirs = peer.generate(prompt, NEW_TOKENS)
    equal = [a == b for a, b in zip(ours.tolist(), theirs, strict=True)]
    return (equal + [False]).index(False)
