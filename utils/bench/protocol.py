"""What `make bench` measures, in which order, and the record that it writes.

    decode    all contenders in one interleaved run: tokens/s, share of the measured bandwidth
    quality   the same contenders on held-out text: KL to fp32, flips
    verify    a step of 1 ... 8 rows;   context: a step after 64 ... 4,096 tokens;   prompt
    stack     30 grounded and 24 chat prompts: transformers, int8, int8 with adaptive lookup

`ratios` are what the course claims about speed, each with quartiles over rounds (over resampled
prompts, 95 %, for the stack). Where llama.cpp is not installed they are null and `reasons` says so.
"""

import copy
import datetime
import gc
import json
from dataclasses import dataclass

import jsonschema
import torch

from utils import cache, corpus, ledger, measure, prompts, quality
from utils.bench import contenders, llamacpp, speed
from utils.bench.schema import SCHEMA
from utils.device import detect, versions
from utils.engine import Engine

RECORD = ledger.RECORDS / "bench.json"
QUESTION = "Explain why the sky is blue in a paragraph."
VERIFIED = ("fp32", "int8", "int4")
ROWS = (1, 2, 3, 4, 5, 6, 8)
PACKAGES = ("torch", "transformers", "numpy", "numba", "llvmlite")
LOOKUP, PLAIN, BASELINE = "engine int8 + lookup", "engine int8", "transformers fp32"
PARTS = ("verify_ms", "context_ms", "stack")  # each is one interleaved run of its own
RATIOS = {
    "fp32_vs_llamacpp_f32": ("engine fp32", "llama.cpp F32"),
    "bf16_vs_llamacpp_f16": ("engine bf16", "llama.cpp F16"),
    "q8_vs_llamacpp_q8_0": ("engine int8", "llama.cpp Q8_0"),
    "q4_vs_llamacpp_q4_0": ("engine int4", "llama.cpp Q4_0"),
    "q8_vs_own_fp32": ("engine int8", "engine fp32"),
    "q4_vs_own_fp32": ("engine int4", "engine fp32"),
    "q8_vs_transformers_fp32": ("engine int8", BASELINE),
    "q4_vs_transformers_fp32": ("engine int4", BASELINE),
    "sparse24_vs_own_fp32": ("engine sparse24", "engine fp32"),
}


@dataclass(frozen=True)
class Plan:
    """How much is measured. prompts: of each kind (None: all). tokens: held-out, for quality."""

    rounds: int = 9
    new_tokens: int = 96
    prompts: int | None = None
    contexts: tuple = (64, 256, 1024, 2048, 4096)
    prompt_lengths: tuple = (64, 512)
    tokens: int = 4096


def run(loaded, plan, say=lambda text: None):
    """The whole study; returns the record (a dict, see schema.py)."""
    model, tokenizer = loaded.model, loaded.tokenizer
    field, reasons = _contenders(model, tokenizer, say)
    record = {"protocol": _protocol(plan, loaded), "peers": _peers(reasons)} | machine()
    results = _decode(field, chat_ids(tokenizer, QUESTION), plan, say)
    record["bandwidth_gb_s"] = speed.spread([b / 1e9 for b in results["bandwidth"]])
    record["decode"] = _rows(field, results)
    record["prompt"] = _prompts(field, tokenizer, plan, say)
    _add_quality(record["decode"], field, model, tokenizer, plan, say)
    record["ratios"] = {name: speed.ratio(results, *pair) for name, pair in RATIOS.items()}
    field.clear()
    gc.collect()
    for part in PARTS:
        record[part] = _part(part, loaded, plan, record, say)
    missing = [name for name, ratio in record["ratios"].items() if ratio is None]
    record["reasons"] = dict.fromkeys(missing, reasons.get("llama.cpp", ""))
    return record


def again(record, part, loaded, plan, say=lambda text: None):
    """The record with one of PARTS measured anew; ValueError where machine or versions changed."""
    here = machine() | {"peers": _peers(_without(record))}
    changed = [key for key in ("device", "versions", "peers") if here[key] != record[key]]
    if part not in PARTS or changed:
        raise ValueError(
            f"{part}: one of {', '.join(PARTS)} can be measured anew, on the machine and with the "
            f"versions of the record (different now: {', '.join(changed) or 'nothing'})"
        )
    record = copy.deepcopy(record)
    record[part] = _part(part, loaded, plan, record, say)
    return record


def _part(name, loaded, plan, record, say):
    """Measure one of PARTS; ratios that belong to it are entered in the record."""
    model, tokenizer, ratios = loaded.model, loaded.tokenizer, record["ratios"]
    if name == "verify_ms":
        return _verify(model, plan, ratios, say)
    if name == "context_ms":
        return _context(model, tokenizer, plan, _without(record), say)
    return _stack(model, tokenizer, plan, ratios, say)


def _without(record):
    return {} if record["peers"] else {"llama.cpp": "not installed"}


def write(record, path, schema=SCHEMA):
    """Check the record and write it under a temporary name, then rename."""
    jsonschema.validate(record, schema)
    with cache.write_atomically(path) as scratch:
        scratch.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def shown(ratio):
    """One ratio as text."""
    if ratio is None:
        return "not measured"
    return "{median:.2f} [{low:.2f}, {high:.2f}]".format(**ratio)


def _contenders(model, tokenizer, say):
    """({name: Contender}, {peer: why it is not there})."""
    threads, found, reasons = detect("cpu").threads, {}, {}
    for kind in contenders.ENGINE:
        say(f"packing {kind}")
        found[f"engine {kind}"] = contenders.engine(model, kind, threads)
    try:
        for kind in contenders.LLAMA:
            say(f"writing {kind}")
            found[f"llama.cpp {kind}"] = contenders.llama(model, tokenizer, kind, threads)
    except llamacpp.Missing as error:
        reasons["llama.cpp"] = str(error)
    return found | {BASELINE: contenders.transformers(model)}, reasons


def machine():
    """When, where and with which packages something was measured, for a record."""
    device = detect("cpu")
    about = {"kind": device.kind, "name": device.name, "threads": device.threads}
    about["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    today = datetime.date.today().isoformat()
    return {"date": today, "device": about, "versions": versions(PACKAGES)}


def _peers(reasons):
    if "llama.cpp" in reasons:
        return {}
    return {"llama.cpp": {"version": llamacpp.version(), "features": llamacpp.features()}}


def _protocol(plan, loaded):
    return (
        f"{loaded.card.name}, batch 1, greedy, {plan.new_tokens} new tokens after a chat prompt, "
        f"time after the first token; one interleaved run of {plan.rounds} rounds, medians and "
        "quartiles, ratios within a round; quality on held-out text; stack: prompt and answer, "
        "total tokens over total time, intervals over resampled prompts"
    )


def chat_ids(tokenizer, text):
    """Ids of a question in the chat format, up to where the answer starts."""
    chat = [{"role": "user", "content": text}]
    return list(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])


def _decode(field, prompt, plan, say):
    """{name: [tokens/s of each round]}, and the bandwidth (bytes/s) measured among them."""
    functions = {n: speed.decode_speed(c, prompt, plan.new_tokens) for n, c in field.items()}
    functions["bandwidth"] = lambda: measure.read_bandwidth(detect("cpu"), repeats=5)
    return speed.rounds(functions, plan.rounds, lambda text: say(f"decode, {text}"))


def _rows(field, results):
    rows = {}
    for name, contender in field.items():
        pairs = zip(results[name], results["bandwidth"], strict=True)
        shares = [speed_ * contender.bytes_per_token / b for speed_, b in pairs]
        rows[name] = {
            "tokens_per_second": speed.spread(results[name]),
            "bytes_per_token": contender.bytes_per_token,
            "megabytes_per_token": contender.bytes_per_token / 1e6,
            "bits_per_weight": contender.bits_per_weight,
            "bandwidth_share": speed.spread(shares),
        }
    return rows


def _add_quality(rows, field, model, tokenizer, plan, say):
    text = corpus.sample(tokenizer, "evaluation", plan.tokens, context=256)
    reference = quality.Reference(model, text.ids)
    for name, contender in field.items():
        say(f"quality of {name}")
        found = quality.compare(reference, contenders.AsModel(contender))
        rows[name] |= {"kl": max(found.kl, 0.0), "kl_se": found.kl_se, "flips": found.flips}


def _prompts(field, tokenizer, plan, say):
    """{name: {length: tokens/s}} of prompt processing."""
    text = corpus.sample(tokenizer, "evaluation", 512, context=512).ids[0].tolist()
    found = {name: {} for name in field}
    for length in plan.prompt_lengths:
        functions = {n: speed.prompt_speed(c, text[:length]) for n, c in field.items()}
        results = speed.rounds(functions, max(2, plan.rounds // 3), lambda t: say(f"prompt, {t}"))
        for name in field:
            found[name][str(length)] = speed.spread(results[name])
    return found


def _verify(model, plan, ratios, say):
    """{kind: {rows: ms}}; ratios of 4 rows to 1 are entered."""
    engines = {kind: Engine(model, kind, max_tokens=256) for kind in VERIFIED}
    functions = {(k, m): speed.verify_time(e, m) for k, e in engines.items() for m in ROWS}
    results = speed.rounds(functions, max(2, plan.rounds), lambda text: say(f"verify, {text}"))
    for kind in ("fp32", "int8"):
        ratios[f"verify4_vs_1_{kind}"] = speed.ratio(results, (kind, 4), (kind, 1))
    return {
        kind: {str(m): speed.spread([1e3 * s for s in results[kind, m]]) for m in ROWS}
        for kind in VERIFIED
    }


def _context(model, tokenizer, plan, reasons, say):
    """{name: {tokens held: ms of a step}}: all lengths and engines in one interleaved run."""
    longest = max(plan.contexts) + 64
    sample = corpus.sample(tokenizer, "evaluation", longest, context=512).ids
    text, functions = sample.flatten()[:longest].tolist(), {}
    slots = {"max_tokens": longest, "batch": len(plan.contexts)}
    engines = {f"engine {kind}": Engine(model, kind, **slots) for kind in ("fp32", "int8")}
    for slot, length in enumerate(plan.contexts):
        say(f"reading {length} tokens")
        for name, engine in engines.items():
            functions[name, length] = speed.engine_after(engine, text[:length], slot)
        if "llama.cpp" not in reasons:
            peer = contenders.llama_peer(model, tokenizer, "Q8_0", detect("cpu").threads, longest)
            functions["llama.cpp Q8_0", length] = speed.llama_after(peer, text[:length])
    results = speed.rounds(functions, plan.rounds, lambda t: say(f"context, {t}"))
    found = {name: {} for name, _ in functions}
    for (name, length), seconds in results.items():
        found[name][str(length)] = speed.spread([1e3 * s for s in seconds])
    return found


def _stack(model, tokenizer, plan, ratios, say):
    """Each kind of prompt decoded three ways; the two ratios of the stack are entered."""
    engine = Engine(model, "int8", max_tokens=512)
    baseline = contenders.transformers(model)
    ways = {
        PLAIN: lambda ids, n: engine.generate(ids, n),
        LOOKUP: lambda ids, n: engine.generate(ids, n, drafter="lookup"),
    }
    slow = ways | {BASELINE: lambda ids, n: baseline.generate(ids, n)}
    totals, found = {}, {}
    for kind in prompts.KINDS:
        chosen = [prompts.ids(p, tokenizer) for p in prompts.load(kind)[: plan.prompts]]
        used = ways if kind == "chat" else slow
        totals[kind] = speed.stack(
            used, chosen, plan.new_tokens, lambda t, k=kind: say(f"{k}, {t}")
        )
        found[kind] = {name: speed.summary(runs) for name, runs in totals[kind].items()}
    grounded = {n: [r for k in prompts.GROUNDED for r in totals[k][n]] for n in slow}
    found["grounded"] = {name: speed.summary(runs) for name, runs in grounded.items()}
    found["identical"] = all(
        a.answer == b.answer
        for kind in prompts.KINDS
        for a, b in zip(totals[kind][PLAIN], totals[kind][LOOKUP], strict=True)
    )
    ratios["stack_grounded_vs_transformers_fp32"] = speed.stack_ratio(
        grounded[LOOKUP], grounded[BASELINE]
    )
    ratios["stack_chat_vs_q8"] = speed.stack_ratio(totals["chat"][LOOKUP], totals["chat"][PLAIN])
    return found
