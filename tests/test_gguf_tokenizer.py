"""The tokenizer's keys in a GGUF file, and the tokenizers that are refused."""

import gguf
import pytest
from small_gguf import SPECIAL, VOCABULARY, make_model, make_tokenizer
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from transformers import PreTrainedTokenizerFast

from utils import models
from utils.quantization import gguf_file


def content(reader, key):
    return reader.fields[key].contents()


def test_tokens_types_and_merges(tmp_path):
    gguf_file.write(make_model(), make_tokenizer(), tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    tokens = content(reader, "tokenizer.ggml.tokens")
    kinds = content(reader, "tokenizer.ggml.token_type")
    size = len(make_tokenizer())
    assert len(tokens) == len(kinds) == VOCABULARY > size
    assert tokens[:3] == SPECIAL and kinds[:3] == [gguf.TokenType.CONTROL] * 3
    assert set(kinds[3:size]) == {gguf.TokenType.NORMAL}
    assert set(kinds[size:]) == {gguf.TokenType.UNUSED} and tokens[-1] == "[PAD319]"
    merges = content(reader, "tokenizer.ggml.merges")
    assert "t h" in merges or "h e" in merges
    assert {merge.replace(" ", "") for merge in merges} <= set(tokens)


def test_numbers_of_several_digits_in_the_vocabulary_change_the_pre_tokenizer(tmp_path):
    tokenizer = make_tokenizer("1234 1234 the year 1234")
    gguf_file.write(make_model(), tokenizer, tmp_path / "m.gguf")
    assert content(gguf.GGUFReader(tmp_path / "m.gguf"), "tokenizer.ggml.pre") == "gpt-2"


def test_tokenizers_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match="don't belong together"):
        gguf_file.write(models.tiny(), make_tokenizer(), tmp_path / "m.gguf")
    core = Tokenizer(WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words = PreTrainedTokenizerFast(tokenizer_object=core)
    with pytest.raises(ValueError, match="WordLevel"):
        gguf_file.write(make_model(), words, tmp_path / "m.gguf")
    core = Tokenizer(BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(use_regex=False)
    with pytest.raises(ValueError, match="cut words"):
        gguf_file.write(
            make_model(), PreTrainedTokenizerFast(tokenizer_object=core), tmp_path / "m.gguf"
        )
