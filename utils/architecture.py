"""The sizes of a decoder-only language model, and its parameters counted from its configuration.

    a = architecture.read("llama-3-8b")      a preset, a dict of a config.json, or model.config
    a.parameters()                           {part: count};  a.total, a.active

Every weight matrix is listed with its shape, how often the model holds it (`copies`) and how many
of these one token passes through (`used`: fewer for routed experts). All other figures of this
file and of `roofline.py` are sums over that list. The presets and their sources are in
`data/architectures.yaml`.
But: RMSNorm, gated MLPs and full attention only. Sliding windows, norms after the layers (Gemma 2)
and heads for several tokens (the extra layer of DeepSeek-V3) are refused or left out.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

PRESETS = Path(__file__).resolve().parent / "data" / "architectures.yaml"
MODEL_TYPES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "mixtral", "qwen3_moe", "deepseek_v3",
)  # fmt: skip
PARTS = ("embedding", "attention", "mlp", "experts", "router", "norms", "head")


@dataclass(frozen=True)
class Matrix:
    """A weight [rows, columns] that a token's vector [columns] is multiplied by.

    part: one of PARTS.  copies: in the whole model.  used: of these, by one token.
    bias: has a bias [rows].  shared: its weights are the embedding's (a tied head).
    """

    name: str
    part: str
    rows: int
    columns: int
    copies: int
    used: int
    bias: bool = False
    shared: bool = False

    @property
    def weights(self):
        """Weights of one copy, without its bias."""
        return self.rows * self.columns

    @property
    def biases(self):
        """Biases of one copy."""
        return self.rows if self.bias else 0


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: ranks and the sizes of a head's parts."""

    query_rank: int | None
    rank: int
    plain: int
    rotary: int
    value: int


@dataclass(frozen=True)
class Architecture:
    """Sizes. experts, experts_per_token: 0 for a dense model.  dense_layers: with a plain MLP.

    intermediate: of a plain MLP; expert_intermediate: of one expert; shared_experts: always used.
    latent: None, or the sizes of multi-head latent attention.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    dense_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_experts: int = 0
    latent: Latent | None = None

    @property
    def cache_values(self):
        """Numbers that one token leaves in the cache of one layer."""
        if self.latent:
            return self.latent.rank + self.latent.rotary
        return 2 * self.kv_heads * self.head_dim

    @property
    def norms(self):
        """Norm weights of the whole model."""
        inside = 2 * self.head_dim if self.qk_norm else 0
        if self.latent:
            inside = (self.latent.query_rank or 0) + self.latent.rank
        return self.layers * (2 * self.hidden + inside) + self.hidden

    @property
    def biases(self):
        """Biases of the whole model."""
        return sum(m.copies * m.biases for m in self.matrices())

    def matrices(self):
        """All weight matrices but the embedding, as Matrix, in the order of a step."""
        head = Matrix("head", "head", self.vocabulary, self.hidden, 1, 1, shared=self.tied)
        return [*self._attention(), *self._mlp(), *self._experts(), head]

    def parameters(self):
        """{part: parameters}, biases with their matrix. A tied head is 0; shared experts are mlp.

        The sum is what `sum(p.numel() for p in model.parameters())` gives.
        """
        found = dict.fromkeys(PARTS, 0)
        found["embedding"] = self.vocabulary * self.hidden
        found["norms"] = self.norms
        for m in self.matrices():
            found[m.part] += 0 if m.shared else m.copies * (m.weights + m.biases)
        return found

    @property
    def total(self):
        """All parameters: what must be stored."""
        return sum(self.parameters().values())

    @property
    def active(self):
        """Parameters that one token touches: its experts only, and one row of the embedding.

        With a tied head the row lies in the head and isn't counted again.
        """
        row = 0 if self.tied else self.hidden
        used = sum(m.used * (m.weights + m.biases) for m in self.matrices())
        return used + self.norms + row

    def _attention(self):
        n, wide = self.layers, self.heads * self.head_dim
        if self.latent:
            return self._latent_attention()
        narrow = self.kv_heads * self.head_dim
        inputs = [
            Matrix(name, "attention", rows, self.hidden, n, n, self.qkv_bias)
            for name, rows in (("q", wide), ("k", narrow), ("v", narrow))
        ]
        return [*inputs, Matrix("o", "attention", self.hidden, wide, n, n, self.o_bias)]

    def _latent_attention(self):
        p, n, query = self.latent, self.layers, self.heads * self.head_dim
        shapes = {"q": (query, self.hidden)}
        if p.query_rank:
            shapes = {"q_a": (p.query_rank, self.hidden), "q_b": (query, p.query_rank)}
        shapes |= {
            "kv_a": (p.rank + p.rotary, self.hidden),
            "kv_b": (self.heads * (p.plain + p.value), p.rank),
            "o": (self.hidden, self.heads * p.value),
        }
        return [Matrix(name, "attention", *shape, n, n) for name, shape in shapes.items()]

    def _mlp(self):
        n, sparse = self.dense_layers, self.layers - self.dense_layers
        shared = self.shared_experts * self.expert_intermediate
        plain = self._gated("", "mlp", self.intermediate, n, n) if n else []
        return plain + (self._gated("shared_", "mlp", shared, sparse, sparse) if shared else [])

    def _experts(self):
        n = self.layers - self.dense_layers
        if not self.experts:
            return []
        copies, used = n * self.experts, n * self.experts_per_token
        router = Matrix("router", "router", self.experts, self.hidden, n, n)
        wide = self.expert_intermediate
        return [router, *self._gated("expert_", "experts", wide, copies, used)]

    def _gated(self, prefix, part, wide, copies, used):
        shapes = {"gate": (wide, self.hidden), "up": (wide, self.hidden)}
        shapes["down"] = (self.hidden, wide)
        return [
            Matrix(prefix + name, part, *shape, copies, used, self.mlp_bias)
            for name, shape in shapes.items()
        ]


def presets():
    """{name: entry} of data/architectures.yaml: config, source and published totals."""
    return deepcopy(_presets())


@cache
def _presets():
    return yaml.safe_load(PRESETS.read_text(encoding="utf-8"))


def read(config):
    """Architecture of a preset's name, a dict with the keys of a config.json, or a model's config.

    An Architecture is returned as it is. ValueError names what is unknown, missing or impossible.
    """
    if isinstance(config, Architecture):
        return config
    from utils.architecture_config import parse

    if isinstance(config, str):
        if config not in _presets():
            known = ", ".join(sorted(_presets()))
            raise ValueError(f"unknown preset {config!r}: use a model's config or one of {known}")
        return parse(_presets()[config]["config"], config)
    if not isinstance(config, Mapping) and hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise ValueError(
            f"{type(config).__name__} is no configuration: give a preset's name, a dict with the "
            "keys of a config.json, or model.config"
        )
    return parse(config, config.get("_name_or_path") or config.get("model_type", ""))
