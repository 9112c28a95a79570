"""Prompts to time generation with: 10 each of copying, summarising and editing, and 24 of chat.

A grounded prompt holds the passage that its answer repeats in part, which is what prompt lookup
feeds on; a chat prompt has no passage. All were written for the course and every fact in them is
invented, so no answer can come from memory.

But: they say how fast a model is, not how good. Nothing here scores an answer.
"""

from dataclasses import dataclass
from pathlib import Path

import jsonschema
import yaml

DATA = Path(__file__).parent / "data" / "prompts.yaml"
GROUNDED = ("copying", "summarising", "editing")
KINDS = (*GROUNDED, "chat")


@dataclass(frozen=True)
class Prompt:
    """text: what the user says. passage: the part of it to work on, None for chat."""

    kind: str
    name: str
    text: str
    passage: str | None = None


def _entries(*fields):
    """Schema of a list of entries with exactly these text fields besides `name`."""
    texts = {field: {"type": "string", "minLength": 1} for field in fields}
    names = {"name": {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"}}
    return {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["name", *fields],
            "additionalProperties": False,
            "properties": names | texts,
        },
    }


SCHEMA = {
    "type": "object",
    "required": list(KINDS),
    "additionalProperties": False,
    "properties": {kind: _entries("ask", "passage") for kind in GROUNDED}
    | {"chat": _entries("ask")},
}


def load(kind=None, path=DATA):
    """The prompts of one kind, or all in the order of KINDS.

    Raises ValueError for an unknown kind, and for a file that breaks the schema or repeats a name.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind={kind!r}: use one of {', '.join(KINDS)}, or None for all")
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    _check(content, path)
    prompts = [_prompt(k, entry) for k in KINDS for entry in content[k]]
    _check_names(prompts, path)
    return [p for p in prompts if kind in (None, p.kind)]


def ids(prompt, tokenizer):
    """Token ids of a prompt as the user's turn of a chat, up to where the answer starts.

    Raises ValueError when the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise ValueError("the tokenizer has no chat template: use that of an instruct model")
    turn = [{"role": "user", "content": prompt.text}]
    encoded = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)
    return list(encoded["input_ids"])


def _prompt(kind, entry):
    passage = entry.get("passage")
    text = entry["ask"] if passage is None else f"{entry['ask']}\n\n{passage}"
    return Prompt(kind, entry["name"], text, passage)


def _check(content, path):
    try:
        jsonschema.validate(content, SCHEMA)
    except jsonschema.ValidationError as error:
        where = "/".join(map(str, error.absolute_path)) or "the file"
        raise ValueError(f"{path}: {where}: {error.message}") from None


def _check_names(prompts, path):
    names = [p.name for p in prompts]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{path}: names used twice: {', '.join(repeated)}")
