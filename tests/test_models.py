"""utils.models: the embedded model, the hub's failures, the tiny model (field case 42)."""

import socket
import subprocess
import sys
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors

from utils import models


def raising(error):
    def download(*_, **__):
        raise error

    return download


def http_error(kind, status):
    """A hub error as the library builds it, without its constructor's response parsing."""
    error = kind.__new__(kind)
    Exception.__init__(error, f"HTTP {status}")
    error.response = SimpleNamespace(status_code=status)
    return error


HUB_FAILURES = {
    "offline": (errors.LocalEntryNotFoundError("no network"), "can't be reached"),
    "offline mode": (errors.OfflineModeIsEnabled("offline"), "can't be reached"),
    "gated, no token": (http_error(errors.GatedRepoError, 403), "hf auth login"),
    "absent": (http_error(errors.RepositoryNotFoundError, 404), "check the name"),
    "rate limit": (http_error(errors.HfHubHTTPError, 429), "429"),
    "server error": (http_error(errors.HfHubHTTPError, 503), "HTTP status 503"),
    "read-only cache": (PermissionError(13, "Permission denied", "/ro"), "HF_HOME"),
    "connection": (ConnectionError("refused"), "HF_HOME|network"),
}


@pytest.mark.parametrize("name", HUB_FAILURES)
def test_each_failure_of_a_hub_is_one_clear_message(monkeypatch, name):
    error, message = HUB_FAILURES[name]
    monkeypatch.setattr(huggingface_hub, "snapshot_download", raising(error))
    with pytest.raises(models.HubError, match=message) as caught:
        models.load("org/model")
    text = str(caught.value)
    assert "org/model" in text and models.DEFAULT in text and "\n" not in text.strip()


def test_an_unknown_name_says_what_is_possible():
    with pytest.raises(ValueError, match="org/model"):
        models.load("smollm")


def test_the_tiny_model_is_reproducible_and_small():
    one, two = models.tiny(seed=1), models.tiny(seed=1)
    assert models.weights_sha256(one) == models.weights_sha256(two)
    assert models.weights_sha256(models.tiny(seed=2)) != models.weights_sha256(one)
    assert sum(p.numel() for p in one.parameters()) < 300_000
    logits = one(torch.arange(10)[None]).logits
    assert logits.softmax(-1).max() > 0.02  # far from uniform: greedy choices are no ties


def test_tiny_leaves_the_global_generator_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    models.tiny()
    assert torch.equal(torch.rand(1), expected)


def test_linears_lists_each_layer_once_and_leaves_the_tied_head_out():
    model = models.tiny()
    names = list(models.linears(model))
    assert len(names) == 14 and not any("lm_head" in name for name in names)
    assert "lm_head" in models.linears(model, skip=())
    assert len(models.linears(model, skip=("lm_head", "down_proj"))) == 12


OFFLINE = """
import socket
def refuse(*args, **kwargs):
    raise OSError("the network is blocked by the test")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from utils import models
loaded = models.load()
print(sum(p.numel() for p in loaded.model.parameters()), loaded.card.licence)
"""


@pytest.mark.slow
def test_a_warm_cache_needs_no_network(monkeypatch, tmp_path):
    """Sockets blocked, a hub folder that can't be written, no token: the model still loads."""
    models.load()
    read_only = tmp_path / "hub"
    read_only.mkdir(mode=0o500)
    environment = {"HF_HOME": str(read_only), "HF_TOKEN": ""}
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], capture_output=True, text=True, cwd=_root(), check=False
    )
    assert done.stdout.split() == ["134515008", "Apache-2.0"], done.stderr
    assert not list(read_only.iterdir())
    assert socket.socket.connect  # the parent's sockets were not touched


def _root():
    from pathlib import Path

    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def loaded():
    return models.load()


@pytest.mark.slow
def test_the_embedded_model_is_the_one_the_course_was_made_with(loaded):
    assert models.weights_sha256(loaded.model) == models.WEIGHTS_SHA256
    config = loaded.model.config
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert loaded.card.parameters == 134_515_008
    assert not loaded.model.training and not any(p.requires_grad for p in loaded.model.parameters())


@pytest.mark.slow
def test_the_tokenizer_is_complete(loaded):
    tokenizer = loaded.tokenizer
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer("Hello").input_ids[0] != tokenizer.bos_token_id
    assert tokenizer.chat_template and len(tokenizer) == 49152


@pytest.mark.slow
def test_the_shuffle_keeps_the_real_models_logits(loaded):
    original = models.load(original_order=True).model
    ids = torch.arange(1000, 1064)[None]
    before, after = original(ids).logits, loaded.model(ids).logits
    assert (after - before).abs().max() <= 1e-4 * before.abs().max()


@pytest.mark.slow
def test_the_model_answers_sanely(loaded):
    ids = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True, return_tensors="pt", return_dict=True,
    )  # fmt: skip
    out = loaded.model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in loaded.tokenizer.decode(out[0, ids.input_ids.shape[1] :])
