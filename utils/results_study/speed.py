"""How fast the engine decodes with the layers in each form that it has a kernel for.

    python -m utils.results_study.speed [--rounds 9] [--tokens 64]

Alone on a quiet machine, after the study: the result goes into `speed` of the record, with
its own date and versions. All forms run in turn, round after round, ratios to fp32 are taken within
a round. The layers of a row that GPTQ or AWQ made are stored like those of plain rounding, so they
are read by the same kernel at the same speed, and each form is timed once.

But: the embedding, which is the head, stays fp32 as in the rows; for whole models see `make bench`.
"""

import argparse
import json

from utils import models
from utils.bench import protocol, speed
from utils.bench.contenders import from_engine
from utils.device import detect
from utils.engine import Engine
from utils.results_study import study, summary
from utils.results_study.forms import FORMS
from utils.results_study.points import each
from utils.results_study.rows import ROWS

MAX_TOKENS = 256
BASE = "fp32"


def timed_forms():
    """Names of the forms that some row has and the engine reads, in the order of the rows."""
    used = [row.form for row in ROWS if FORMS[row.form].kernel and row.family != "activations"]
    return tuple(dict.fromkeys(used))


def contender(model, name, threads):
    """The engine with all linear layers in a form."""
    stored = {layer: made.kernel for layer, made in each(model, FORMS[name]).items()}
    machine = Engine(model, stored, threads=threads, max_tokens=MAX_TOKENS)
    return from_engine(machine, name, model)


def run(loaded, rounds, tokens, say=lambda text: None, forms=None):
    """The `speed` of the record."""
    threads, field = detect("cpu").threads, {}
    for name in forms or timed_forms():
        say(f"packing {name}")
        field[name] = contender(loaded.model, name, threads)
    prompt = protocol.chat_ids(loaded.tokenizer, protocol.QUESTION)
    functions = {n: speed.decode_speed(c, prompt, tokens) for n, c in field.items()}
    results = speed.rounds(functions, rounds, say)
    found = {
        name: {
            "ratio": speed.ratio(results, name, BASE),
            "tokens_per_second": speed.spread(results[name]),
            "bytes_per_token": one.bytes_per_token,
        }
        for name, one in field.items()
    }
    said = summary.SPEED_PROTOCOL.format(tokens=tokens, rounds=rounds)
    return {"protocol": said} | protocol.machine() | {"forms": found}


def main(arguments=None):
    """Measure and enter the result in the record."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--tokens", type=int, default=64)
    chosen = options.parse_args(arguments)
    if chosen.rounds < 2:
        raise ValueError(f"rounds={chosen.rounds}: quartiles need two or more")
    record = json.loads(study.RECORD.read_text(encoding="utf-8"))
    loaded = models.load(device=detect("cpu"))
    record["speed"] = run(
        loaded, chosen.rounds, chosen.tokens, lambda text: print(text, flush=True)
    )
    protocol.write(record, study.RECORD, summary.SCHEMA)


if __name__ == "__main__":
    main()
