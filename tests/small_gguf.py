"""A tiny model and a tiny byte-level BPE tokenizer that fit together, for tests of GGUF files."""

from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from utils import models

VOCABULARY = 320
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def make_tokenizer(text="the cat sat on the mat and the hat"):
    """A byte-level BPE with a few merges and three control tokens."""
    core = Tokenizer(BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        [text] * 20,
        trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2]
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(**overrides):
    return models.tiny(vocab_size=VOCABULARY, **overrides)
