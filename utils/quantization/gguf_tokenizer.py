"""The tokenizer's part of a GGUF file: tokens, their types, merges, special ids, chat template.

But: only byte-level BPE (llama.cpp calls it gpt2) with GPT-2's pattern of words, digits split
off one by one or not. Reading a GGUF file, transformers forgets the split of digits; so a
vocabulary without any token of two digits counts as one that was made with it ("smollm").
"""

import json

from gguf import TokenType

WORDS = (["ByteLevel"], ["Digits", "ByteLevel"])  # the steps that cut text into words


def describe(writer, tokenizer, vocab_size):
    """Add the tokenizer's keys to a GGUFWriter; ids without a token become unused padding.

    Raises ValueError for another kind of tokenizer, or one with more tokens than `vocab_size`.
    """
    layout = json.loads(tokenizer.backend_tokenizer.to_str())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer(layout))
    tokens, types = _tokens(tokenizer, layout, vocab_size)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in layout["model"]["merges"]])
    for name in ("bos", "eos", "unk", "pad"):
        token_id = getattr(tokenizer, f"{name}_token_id")
        if token_id is not None:
            getattr(writer, f"add_{name}_token_id")(token_id)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def pre_tokenizer(layout):
    """llama.cpp's name for how a tokenizer cuts text into words: "smollm" or "gpt-2"."""
    model, cut = layout["model"]["type"], layout["pre_tokenizer"] or {}
    steps = cut.get("pretokenizers", [cut])
    kinds = [step.get("type") for step in steps]
    if (model, layout["normalizer"]) != ("BPE", None) or kinds not in WORDS:
        raise ValueError(
            f"tokenizer of {model} behind {kinds}: only byte-level BPE with GPT-2's words is known"
        )
    if not steps[-1]["use_regex"] or steps[-1]["add_prefix_space"]:
        raise ValueError("the byte-level step must cut words and add no space before the text")
    digits = any(_has_two_digits(token) for token in layout["model"]["vocab"])
    return "gpt-2" if digits else "smollm"


def _has_two_digits(token):
    return any(a.isdigit() and b.isdigit() for a, b in zip(token, token[1:], strict=False))


def _tokens(tokenizer, layout, vocab_size):
    vocabulary = {index: token for token, index in tokenizer.get_vocab().items()}
    if max(vocabulary) >= vocab_size:
        raise ValueError(
            f"the tokenizer has a token {max(vocabulary)}, the model only {vocab_size} rows: "
            "they don't belong together"
        )
    added = {token["id"]: token["special"] for token in layout["added_tokens"]}
    tokens = [vocabulary.get(i, f"[PAD{i}]") for i in range(vocab_size)]
    return tokens, [_type(i, vocabulary, added) for i in range(vocab_size)]


def _type(i, vocabulary, added):
    if i not in vocabulary:
        return TokenType.UNUSED
    if i not in added:
        return TokenType.NORMAL
    return TokenType.CONTROL if added[i] else TokenType.USER_DEFINED
