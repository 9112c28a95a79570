"""llama.cpp as a peer: greedy decoding through its own library, without Python's sampling chain.

One call of `llama_decode` per token with a batch of one, then NumPy's argmax over the logits that
the library keeps: what remains of Python is a few microseconds per token. Weights are repacked at
load where llama.cpp knows a faster layout; its flash attention rounds keys and values to fp16,
even those of an fp32 file, unless `exact_attention` is asked for.

But: nothing is measured here, and the tokenizer inside the file isn't used: prompts are ids. The
package is an optional install (requirements-bench.txt).
"""

import ctypes
import logging
import re
from pathlib import Path

import numpy as np

REMEDY = (
    "llama-cpp-python is not installed: set CMAKE_ARGS=-DGGML_NATIVE=ON and run "
    "`python -m pip install -r requirements-bench.txt` (it compiles for some minutes and needs "
    "cmake and a C++ compiler)"
)
F32 = 0  # of enum ggml_type
NO_FLASH_ATTENTION = 0  # of enum llama_flash_attn_type


class Missing(RuntimeError):
    """The optional package is not installed; the message says how to get it."""


def library():
    """The package's low-level bindings, with its messages down to errors. Raises Missing."""
    try:
        import llama_cpp
    except ImportError:
        raise Missing(REMEDY) from None
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
    return llama_cpp


def features():
    """The CPU features that this build uses, such as "AVX AVX2 FMA", to keep with a result."""
    info = library().llama_print_system_info().decode()
    return " ".join(re.findall(r"(\w+) = 1", info))


def version():
    """Version of the Python package, which pins one of llama.cpp."""
    return library().__version__


class LlamaCpp:
    """A GGUF file loaded for one sequence; use it in a `with` block or call `close`.

    threads: for prompt and decoding alike; no more than there are idle cores, because the threads
    wait for each other by spinning.  context: most tokens of prompt and answer together.
    exact_attention: fp32 keys and values and no flash attention, to compare logits.
    Raises Missing without the package, FileNotFoundError, and ValueError for a broken file.
    """

    def __init__(self, path, threads=2, context=1024, exact_attention=False):
        self._model = self._context = None
        self._api = library()
        self.context = context
        if not Path(path).is_file():
            raise FileNotFoundError(f"no GGUF file {path}: write it with gguf_file.write")
        self._model = self._load(path)
        self._context = self._start(threads, context, exact_attention)
        vocabulary = self._api.llama_model_get_vocab(self._model)
        self.vocab_size = self._api.llama_vocab_n_tokens(vocabulary)
        self._one = (self._api.llama_token * 1)()
        self._length = 0

    def prefill(self, ids):
        """Start anew with a prompt; logits [V] after its last token, valid until the next call."""
        self._clear(len(ids))
        tokens = (self._api.llama_token * len(ids))(*ids)
        self._decode(self._api.llama_batch_get_one(tokens, len(ids)))
        return self._row(-1)

    def step(self, token):
        """Add one token; logits [V] after it, valid until the next call."""
        self._check_room(1)
        self._one[0] = token
        self._decode(self._api.llama_batch_get_one(self._one, 1))
        return self._row(-1)

    def generate(self, ids, n):
        """n new tokens after the prompt, greedily and through any end-of-text token."""
        token = int(self.prefill(ids).argmax())
        answer = [token]
        while len(answer) < n:
            token = int(self.step(token).argmax())
            answer.append(token)
        return answer[:n]

    def logits(self, ids):
        """Logits at every position of a text, float32 [n, V]."""
        self._clear(len(ids))
        batch = self._api.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            self._decode(batch)
        finally:
            self._api.llama_batch_free(batch)
        return np.stack([self._row(i) for i in range(len(ids))])

    def close(self):
        """Free the model; calling it twice does no harm."""
        if self._context:
            self._api.llama_free(self._context)
        if self._model:
            self._api.llama_model_free(self._model)
        self._model = self._context = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _load(self, path):
        self._api.llama_backend_init()
        settings = self._api.llama_model_default_params()
        settings.n_gpu_layers = 0
        model = self._api.llama_model_load_from_file(str(path).encode(), settings)
        if not model:
            raise ValueError(f"llama.cpp can't load {path}: its reason is on the error output")
        return model

    def _start(self, threads, context, exact_attention):
        settings = self._api.llama_context_default_params()
        settings.n_ctx = settings.n_batch = context
        settings.n_threads = settings.n_threads_batch = threads
        if exact_attention:
            settings.type_k = settings.type_v = F32
            settings.flash_attn_type = NO_FLASH_ATTENTION
        settings.no_perf = True
        started = self._api.llama_init_from_model(self._model, settings)
        if not started:
            self.close()
            raise ValueError(f"llama.cpp can't start with context={context}, threads={threads}")
        return started

    def _clear(self, n):
        """Empty the cache for a text of n tokens."""
        if n < 1:
            raise ValueError("no ids: a prompt needs at least one token")
        self._length = 0
        self._check_room(n)
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), False)

    def _check_room(self, n):
        if self._length + n > self.context:
            raise ValueError(
                f"{self._length + n} tokens do not fit context={self.context}: ask for a larger one"
            )

    def _decode(self, batch):
        status = self._api.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode failed with status {status}")
        self._length += batch.n_tokens

    def _row(self, i):
        """Logits of the batch's i-th token (-1: the last) as an array over the library's memory."""
        pointer = self._api.llama_get_logits_ith(self._context, i)
        address = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(address, (self.vocab_size,))
