"""llama.cpp as a peer: the same numbers as transformers. Needs the optional llama-cpp-python."""

import sys

import numpy as np
import pytest
import torch
from small_gguf import make_model, make_tokenizer

from utils.bench import llamacpp
from utils.quantization import gguf_file

IDS = [5, 17, 200, 31, 8, 99, 250, 3]


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(llamacpp.Missing, match="requirements-bench.txt"):
        llamacpp.features()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(path of an F32 file, the model)."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    model = make_model()
    gguf_file.write(model, make_tokenizer(), path)
    return path, model


@pytest.fixture
def peer(tiny):
    with llamacpp.LlamaCpp(tiny[0], threads=1, context=256, exact_attention=True) as opened:
        yield opened


def test_logits_are_those_of_transformers(tiny, peer):
    expected = tiny[1](torch.tensor([IDS])).logits[0].numpy()
    np.testing.assert_allclose(peer.logits(IDS), expected, atol=1e-3)


def test_prefill_and_steps_give_the_same_rows_as_the_whole_text(peer):
    whole = peer.logits(IDS)
    rows = [peer.prefill(IDS[:4]).copy()] + [peer.step(i).copy() for i in IDS[4:]]
    np.testing.assert_allclose(np.stack(rows), whole[3:], atol=1e-3)
    np.testing.assert_allclose(peer.prefill(IDS[:4]), rows[0], atol=1e-6)  # starts anew


def test_greedy_text_is_that_of_transformers(tiny, peer):
    ids = torch.tensor([IDS])
    settings = dict(max_new_tokens=24, do_sample=False, eos_token_id=-1)
    expected = tiny[1].generate(ids, attention_mask=torch.ones_like(ids), **settings)
    assert peer.generate(IDS, 24) == expected[0, len(IDS) :].tolist()
    assert peer.generate(IDS, 1) == expected[0, len(IDS) : len(IDS) + 1].tolist()


def test_flash_attention_is_close(tiny, peer):
    exact = peer.logits(IDS)
    with llamacpp.LlamaCpp(tiny[0], threads=1, context=256) as usual:
        difference = np.abs(usual.logits(IDS) - exact).max()
    assert 0 < difference < 0.1


def test_texts_that_do_not_fit_are_refused(peer):
    with pytest.raises(ValueError, match="context=256"):
        peer.prefill([3] * 257)
    peer.prefill([3] * 256)
    with pytest.raises(ValueError, match="257 tokens"):
        peer.step(3)
    with pytest.raises(ValueError, match="at least one"):
        peer.prefill([])


def test_files_that_can_not_be_loaded(tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match="gguf_file.write"):
        llamacpp.LlamaCpp(tmp_path / "absent.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ValueError, match="broken.gguf"):
        llamacpp.LlamaCpp(broken)


def test_features_name_the_instructions(tiny):
    assert llamacpp.features()


def test_closing_twice_does_no_harm(tiny):
    peer = llamacpp.LlamaCpp(tiny[0], threads=1, context=64)
    peer.close()
    peer.close()
