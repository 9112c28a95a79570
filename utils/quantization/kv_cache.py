"""A key-value cache in 8, 4 or 2 bits: packed codes for old tokens, floats for sinks and new ones.

    keys    per channel: `group` tokens of one channel share a grid
    values  per token: `group` channels of one token share a grid

Tokens 0 ... sinks - 1 stay as they are, and so do at least the last `residual` ones; in between
whole groups of tokens are packed. Keys come with RoPE applied, as transformers hands them over.
An update returns the new tokens exactly and the old ones as stored, so a prompt that is read in
one piece sees no error; what is generated after it does.

But: it unpacks everything at each step in plain torch, which costs time; it cannot be cropped, so
speculative decoding needs another cache; minima are free, 0 need not be on the grid.
"""

from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from utils import architecture
from utils.quantization.kv_tiles import Tiles, decode, encode

AXES = ("channel", "token")


@dataclass(frozen=True)
class Recipe:
    """How a cache is stored. bits None: that half stays in float."""

    key_bits: int | None = 4
    value_bits: int | None = 4
    keys: str = "channel"
    values: str = "token"
    group: int = 32
    residual: int = 32
    sinks: int = 0

    def __post_init__(self):
        if self.keys not in AXES or self.values not in AXES:
            raise ValueError(f"keys={self.keys!r}, values={self.values!r}: use one of {AXES}")
        for bits in (self.key_bits, self.value_bits):
            if bits is not None and bits not in range(1, 9):
                raise ValueError(f"bits={bits}: use 1 to 8, or None for float")
        if self.group < 8 or self.group % 8 or min(self.residual, self.sinks) < 0:
            raise ValueError(
                f"group={self.group}, residual={self.residual}, sinks={self.sinks}: the group is a "
                "multiple of 8, the others are 0 or more"
            )

    def split(self, length):
        """(sinks, packed, recent) tokens of a cache that holds `length` and was filled at once."""
        sinks = min(self.sinks, length)
        packed = max(0, length - sinks - self.residual) // self.group * self.group
        return sinks, packed, length - sinks - packed


class Half:
    """Keys or values of one layer: floats at both ends, tiles between."""

    def __init__(self, bits, axis, recipe):
        self.bits, self.axis, self.recipe = bits, axis, recipe
        self.first = self.recent = self.tiles = None

    def append(self, new):
        """Add tokens; returns all of them, the old ones as stored."""
        sinks = self.recipe.sinks - (0 if self.first is None else self.first.shape[2])
        self.first = _joined(self.first, new[:, :, :sinks])
        self.recent = _joined(self.recent, new[:, :, sinks:])
        result = self.restored()
        self._flush()
        return result

    def restored(self):
        """[batch, heads, tokens, dim] of everything, in order."""
        if self.tiles is None:
            return torch.cat([self.first, self.recent], dim=2)
        dim, dtype = self.recent.shape[-1], self.recent.dtype
        old = decode(self.tiles, self.bits, self.axis, self.recipe.group, dim, dtype)
        return torch.cat([self.first, old, self.recent], dim=2)

    def _flush(self):
        group = self.recipe.group
        ready = (self.recent.shape[2] - self.recipe.residual) // group * group
        if self.bits is None or ready <= 0:
            return
        made = encode(self.recent[:, :, :ready], self.bits, self.axis, group)
        self.tiles = made if self.tiles is None else self.tiles.joined(made)
        self.recent = self.recent[:, :, ready:].clone()

    def mapped(self, change):
        """Apply `change` to each tensor (all have the batch in front)."""
        self.first, self.recent = change(self.first), change(self.recent)
        if self.tiles is not None:
            self.tiles = Tiles(*(change(part) for part in self.tiles.parts()))

    @property
    def nbytes(self):
        packed = 0 if self.tiles is None else self.tiles.nbytes
        return self.first.nbytes + self.recent.nbytes + packed


def _joined(old, new):
    return new.clone() if old is None else torch.cat([old, new], dim=2)


class QuantizedLayer(CacheLayerMixin):
    """One layer of the cache, behind the interface that transformers asks for."""

    is_sliding = is_croppable = False

    def __init__(self, recipe):
        super().__init__()
        self.recipe, self.length = recipe, 0
        self.reset()

    def reset(self):
        """Forget all tokens."""
        recipe = self.recipe
        self.length, self.is_initialized = 0, False
        self.halves = (
            Half(recipe.key_bits, recipe.keys, recipe),
            Half(recipe.value_bits, recipe.values, recipe),
        )

    def lazy_initialization(self, key_states, value_states):
        """Nothing to allocate."""
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        """Add [batch, heads, tokens, dim]; returns keys and values of all tokens so far."""
        self.is_initialized = True
        self.length += key_states.shape[-2]
        return tuple(
            half.append(new)
            for half, new in zip(self.halves, (key_states, value_states), strict=True)
        )

    def get_seq_length(self):
        return self.length

    def get_max_length(self):
        return -1

    def get_mask_sizes(self, query_length):
        return self.length + query_length, 0

    def reorder_cache(self, beam_idx):
        self._map(lambda t: t.index_select(0, beam_idx.to(t.device)))

    def batch_repeat_interleave(self, repeats):
        self._map(lambda t: t.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices):
        self._map(lambda t: t[indices])

    def _map(self, change):
        for half in self.halves if self.length else ():
            half.mapped(change)

    @property
    def nbytes(self):
        """Bytes of all tensors that are kept."""
        return sum(half.nbytes for half in self.halves) if self.length else 0


def make(model, recipe):
    """An empty transformers Cache for `model` (its config is read for the number of layers).

    ValueError when a layer's attention is not full, or the head's size is no multiple of group.
    """
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(f"layers of type {sorted(kinds)}: this cache serves full attention only")
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if dim % recipe.group:
        raise ValueError(f"group={recipe.group} does not divide heads of {dim} channels")
    return Cache(layers=[QuantizedLayer(recipe) for _ in range(config.num_hidden_layers)])


def restored(cache):
    """[(keys, values) of each layer] as the model would read them, without adding tokens."""
    return [tuple(half.restored() for half in layer.halves) for layer in cache.layers]


def fill(cache, states):
    """Put [(keys, values), …] of all layers into any transformers Cache; returns it."""
    for index, (keys, values) in enumerate(states):
        cache.update(keys, values, index)
    return cache


def nbytes(cache):
    """Bytes of the tensors that a cache made here keeps."""
    return sum(layer.nbytes for layer in cache.layers)


def predicted_bytes(model, recipe, length, batch=1, float_bytes=2):
    """The same from shapes alone. float_bytes: of a number that is not packed (2: fp16)."""
    shape = architecture.read(model)
    numbers = batch * shape.layers * shape.kv_heads * shape.head_dim  # per token, of one half
    total = 0
    for bits in (recipe.key_bits, recipe.value_bits):
        _, packed, _ = recipe.split(length) if bits is not None else (0, 0, 0)
        total += numbers * (length - packed) * float_bytes
        total += numbers * packed * (bits or 0) // 8 + numbers * packed // recipe.group * 4
    return total
