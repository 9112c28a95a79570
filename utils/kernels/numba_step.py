"""The Numba back end: packed matrices, buffers and a team of threads around `step.forward`.

`step(tokens, slots, positions, wanted)` is the interface that all back ends share.
But: no checks of lengths and ids; the engine does them once for all back ends.
"""

import ctypes
import sys
from functools import cache as once

import numpy as np
import torch
from numba import njit

from utils.kernels import attention, entries, jit, layout, step, team
from utils.kernels.blocks import FIELDS

FILL = 64  # rows of activations end on a multiple of this many numbers


def _up(count, step=FILL):
    return -(-count // step) * step


@once
def _compiled():
    with jit.cached():
        options = {"nogil": True, "cache": True, "error_model": "numpy"}
        return [njit(**options)(f) for f in (step.work, team.announce)]


class NumbaStep:
    """The model's forward on the CPU. weights: pairs (matrix name, Weight), see `select.each`.

    states: after how many layers `states` keeps each row (0: what enters the first).
    """

    def __init__(self, spec, weights, slots, max_tokens, threads, max_rows, states=()):
        self.spec, self.threads, self.max_rows, self.kept = spec, threads, max_rows, states
        self.packed = self._pack(weights)
        self.biases = {n: _vector(b) for n, b in spec.biases.items()}
        self.state = self._state(slots, _up(max_tokens, attention.BLOCK))
        work, announce = self._compile()
        numbers, model, state = team.shared(threads), self.model, self.state
        self.team = team.Team(
            numbers,
            threads,
            lambda thread: work(numbers, thread, threads, model, state),
            announce,
        )

    def _compile(self):
        """The functions of the team, compiled here and not by several threads at a time."""
        work, announce = _compiled()
        kinds = {packed.kind for packed in self.packed.values()}
        with jit.announced([*entries.names(kinds), "step"]):
            self.model = self._model()
            announce(team.shared(1))
            work(team.shared(2), 1, 2, self.model, self.state)  # no step comes: it returns
        return work, announce

    @property
    def nbytes_weights(self):
        """Bytes of the packed matrices (norms and biases are not counted)."""
        return sum(packed.nbytes for packed in self.packed.values())

    @property
    def nbytes_cache(self):
        """Bytes of keys and values."""
        return self.state.keys.nbytes + self.state.values.nbytes

    @property
    def nbytes_buffers(self):
        """Bytes of everything else that was allocated."""
        parts = [part for part in self.state if part.base is None]
        return sum(part.nbytes for part in parts) - self.nbytes_cache

    def step(self, tokens, slots, positions, wanted, inputs=None):
        """Logits fp32 [len(wanted), vocabulary], valid until the next step; see step.py.

        inputs: fp32 [len(tokens), hidden] to start from in place of the tokens' embeddings.
        """
        state, rows = self.state, len(tokens)
        state.counts[:] = rows, len(wanted)
        state.slots[:rows], state.positions[:rows] = slots, positions
        state.wanted[: len(wanted)] = wanted
        if inputs is None:
            given = layout.rows(self.packed["model.embed_tokens"], tokens)
        else:
            given = inputs.cpu().numpy()
        state.x[:rows, : self.spec.hidden] = given[:, : self.spec.hidden]
        self.team.run()
        return torch.from_numpy(state.logits[: len(wanted), : self.spec.vocabulary])

    def states(self, rows):
        """fp32 [rows, len(kept), hidden] of the last step's first rows; valid until the next."""
        return torch.from_numpy(self.state.kept[:, :rows]).transpose(0, 1)

    def close(self):
        """End the threads."""
        self.team.close()

    def _pack(self, weights):
        """All matrices in one arena, in the order in which a step reads them."""
        numbers = sum(_up(out, 16) * _up(into) for out, into in self.spec.matrices().values())
        arena, packed = layout.Arena(8 * numbers), {}
        for name, weight in weights:
            packed[name] = layout.pack(weight, arena.room)
        _return_free_memory()
        return packed

    def _model(self):
        spec = self.spec
        names = [
            [spec.name(i, part) for part in "q k v o gate up down".split()]
            for i in range(spec.layers)
        ]
        norms = {name: _fill(t.numpy()) for name, t in spec.norms.items()}
        return step.Model(
            matrices=np.array([[self._row(name) for name in row] for row in names], np.int64),
            head=np.array(self._row(spec.head), np.int64),
            keep=self._places(),
            attention_norm=norms["attention"],
            mlp_norm=norms["mlp"],
            final_norm=norms["final"],
            cos=spec.cos.numpy(),
            sin=spec.sin.numpy(),
            eps=np.float32(spec.eps),
            hidden=spec.hidden,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            intermediate=spec.intermediate,
            attention_scale=np.float32(spec.head_dim**-0.5),
        )

    def _places(self):
        places = np.full(self.spec.layers + 1, -1, np.int64)
        places[list(self.kept)] = range(len(self.kept))
        return places

    def _row(self, name):
        packed, bias = self.packed[name], self.biases.get(name)
        return [
            entries.address(packed.kind),
            packed.weights.ctypes.data,
            packed.scales.ctypes.data,
            packed.zeros.ctypes.data if packed.zeros.size else 0,
            packed.inputs,
            packed.group,
            packed.scales.itemsize,
            packed.tiles,
            packed.kind in ("int8", "int4"),
            bias.ctypes.data if bias is not None else 0,
        ]

    def _state(self, slots, tokens):
        s, rows, threads = self.spec, self.max_rows, self.threads
        width = max(s.heads * s.head_dim, s.hidden)
        widest = _up(max(width, s.intermediate))
        group = s.heads // s.kv_heads
        blocks = tokens // attention.BLOCK

        def floats(*shape):
            return np.zeros(shape, np.float32)

        return step.State(
            counts=np.zeros(2, np.int64),
            slots=np.zeros(rows, np.int64),
            positions=np.zeros(rows, np.int64),
            wanted=np.zeros(rows, np.int64),
            keys=floats(slots, s.layers, s.kv_heads, tokens // 16, s.head_dim, 16),
            values=floats(slots, s.layers, s.kv_heads, tokens, s.head_dim),
            x=floats(rows, _up(s.hidden)),
            q=floats(rows, _up(s.heads * s.head_dim)),
            k=floats(rows, _up(s.kv_heads * s.head_dim)),
            v=floats(rows, _up(s.kv_heads * s.head_dim)),
            gate=floats(rows, _up(s.intermediate)),
            up=floats(rows, _up(s.intermediate)),
            act=floats(rows, _up(s.intermediate)),
            logits=floats(rows, _up(s.vocabulary)),
            kept=floats(len(self.kept), rows, s.hidden),
            partial=floats(rows, s.kv_heads, blocks, group, s.head_dim + 16),
            normed=floats(threads, rows, _up(width)),
            whole=np.zeros((threads, rows, widest), np.int16),
            scale=floats(threads, rows),
            sums=np.zeros((threads, rows, widest // 8), np.int32),
            scores=floats(threads, group, attention.BLOCK),
            turned=floats(threads, s.head_dim),
            jobs=np.zeros((threads, FIELDS), np.int64),
        )


def _fill(matrix):
    """Zeros at the end of each row, up to a multiple of FILL."""
    padding = [(0, 0)] * (matrix.ndim - 1) + [(0, _up(matrix.shape[-1]) - matrix.shape[-1])]
    return np.ascontiguousarray(np.pad(matrix, padding), np.float32)


def _vector(tensor):
    return _fill(tensor.numpy())


def _return_free_memory():
    """Give the system back what packing used in passing; glibc would keep it."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
