"""Who is measured: transformers, the engine at each precision, llama.cpp at each of its formats.

A contender decodes greedily, token by token, through its own best path, and tells a
GenerationTimer when each token is there. It also gives all logits of a text, so that what was
measured for speed is what is judged for quality.

But: batch 1 only, and one thread count for all.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from utils import cache, measure
from utils.bench.llamacpp import LlamaCpp, library
from utils.engine import Engine
from utils.quantization import gguf_file

ENGINE = ("fp32", "bf16", "fp8_e4m3", "int8", "int4", "nf4", "sparse24")
LLAMA = ("F32", "F16", "Q8_0", "Q4_0")


@dataclass
class Contender:
    """decode(prompt, n, timer): n new tokens; returns them.  logits(ids): fp32 [len(ids), V].

    bytes_per_token: all matrices, as they are read; the cache is not counted.
    """

    name: str
    decode: object
    logits: object
    bytes_per_token: int
    parameters: int

    def generate(self, prompt, n):
        """n new tokens, untimed."""
        return self.decode(prompt, n, measure.GenerationTimer())

    @property
    def bits_per_weight(self):
        return 8 * self.bytes_per_token / self.parameters


class AsModel:
    """A contender that looks like a transformers model to utils.quality."""

    def __init__(self, contender):
        self.contender = contender

    def parameters(self):
        """quality asks where the model lives."""
        yield torch.zeros(0)

    def __call__(self, input_ids, **_):
        return SimpleNamespace(logits=torch.stack([self.contender.logits(i) for i in input_ids]))


def matrices(model):
    """Numbers in the matrices that one token reads (a tied head counts once); norms don't."""
    return sum(p.numel() for p in model.parameters() if p.dim() == 2)


def transformers(model):
    """transformers' generate, greedy, in the model's own dtype."""

    def decode(prompt, n, timer):
        ids = torch.tensor([prompt])
        timer.start()
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n,
            min_new_tokens=n,
            do_sample=False,
            streamer=_Arrivals(timer),
            pad_token_id=model.generation_config.eos_token_id,
        )
        return out[0, len(prompt) :].tolist()

    @torch.inference_mode()
    def logits(ids):
        return model(ids[None]).logits[0].float()

    count = matrices(model)
    return Contender("transformers fp32", decode, logits, 4 * count, count)


class _Arrivals:
    """A streamer that only reports when tokens arrive; the first call brings the prompt."""

    def __init__(self, timer):
        self.timer, self.prompt = timer, True

    def put(self, _):
        if not self.prompt:
            self.timer.token()
        self.prompt = False

    def end(self):
        """Nothing to flush."""


def engine(model, kind, threads, max_tokens=1024):
    """Our engine with one form of weights."""
    machine = Engine(model, kind, threads=threads, max_tokens=max_tokens)
    return from_engine(machine, f"engine {kind}", model)


def from_engine(machine, name, model):
    """An Engine made of `model` as a contender."""

    def decode(prompt, n, timer):
        timer.start()
        tokens = []
        for token in machine.stream(prompt, n, eos_token_id=()):
            timer.token()
            tokens.append(token)
        return tokens

    def logits(ids):
        machine.reset()
        return machine.step(ids.tolist())

    return Contender(name, decode, logits, machine.nbytes, matrices(model))


def llama_peer(model, tokenizer, kind, threads, max_tokens, exact_attention=False):
    """llama.cpp on a file that holds the same weights in one of its formats (written once).

    Raises llamacpp.Missing without the package.
    """
    library()
    path = cache.folder() / "bench" / f"model-{kind}.gguf"
    if not path.exists():
        gguf_file.write(model, tokenizer, path, kind)
    return LlamaCpp(path, threads, max_tokens, exact_attention)


def llama(model, tokenizer, kind, threads, max_tokens=1024):
    """llama.cpp as it comes for speed; for logits with fp32 keys and values, which is kinder."""
    peer = llama_peer(model, tokenizer, kind, threads, max_tokens)

    def decode(prompt, n, timer):
        timer.start()
        tokens = [int(peer.prefill(prompt).argmax())]
        timer.token()
        while len(tokens) < n:
            tokens.append(int(peer.step(tokens[-1]).argmax()))
            timer.token()
        return tokens

    def logits(ids):
        with llama_peer(model, tokenizer, kind, threads, len(ids), True) as exact:
            return torch.from_numpy(exact.logits(ids.tolist()).copy())

    data = gguf_file.data_bytes(model, kind)
    norms = sum(4 * p.numel() for p in model.parameters() if p.dim() == 1)
    return Contender(f"llama.cpp {kind}", decode, logits, data - norms, matrices(model))
