"""The shapes of records/bench.json (SCHEMA) and records/kernel-trials.json (TRIALS)."""

NUMBER = {"type": "number", "minimum": 0}
TEXT = {"type": "string"}
SPREAD = {
    "type": "object",
    "required": ["median", "low", "high"],
    "additionalProperties": False,
    "properties": {"median": NUMBER, "low": NUMBER, "high": NUMBER},
}


def _named(value, least=1):
    """{any name: value}."""
    return {"type": "object", "minProperties": least, "additionalProperties": value}


def _exactly(optional=(), **properties):
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "required": required,
        "additionalProperties": False,
        "properties": properties,
    }


ROW = _exactly(
    tokens_per_second=SPREAD,
    bytes_per_token={"type": "integer", "minimum": 1},
    megabytes_per_token=NUMBER,
    bits_per_weight=NUMBER,
    bandwidth_share=SPREAD,
    kl=NUMBER,
    kl_se=NUMBER,
    flips=NUMBER,
)
RUN = _exactly(
    optional=("tokens_per_forward",),
    prompts={"type": "integer", "minimum": 1},
    tokens={"type": "integer", "minimum": 1},
    seconds=NUMBER,
    tokens_per_second=NUMBER,
    tokens_per_forward=NUMBER,
    looping=NUMBER,
)
RATIO = {"anyOf": [SPREAD, {"type": "null"}]}
RATIO_NAMES = (
    "fp32_vs_llamacpp_f32", "bf16_vs_llamacpp_f16", "q8_vs_llamacpp_q8_0", "q4_vs_llamacpp_q4_0",
    "q8_vs_own_fp32", "q4_vs_own_fp32", "q8_vs_transformers_fp32", "q4_vs_transformers_fp32",
    "sparse24_vs_own_fp32", "stack_grounded_vs_transformers_fp32", "stack_chat_vs_q8",
    "verify4_vs_1_fp32", "verify4_vs_1_int8",
)  # fmt: skip
SCHEMA = _exactly(
    protocol={"type": "string", "minLength": 20},
    date={"type": "string", "format": "date"},
    device={"type": "object", "required": ["kind", "name", "threads", "cpu_capability"]},
    versions=_named(TEXT),
    peers=_named(_exactly(version=TEXT, features=TEXT), least=0),
    bandwidth_gb_s=SPREAD,
    decode=_named(ROW),
    prompt=_named(_named(SPREAD)),
    verify_ms=_named(_named(SPREAD)),
    context_ms=_named(_named(SPREAD)),
    stack=_exactly(
        copying=_named(RUN),
        summarising=_named(RUN),
        editing=_named(RUN),
        chat=_named(RUN),
        grounded=_named(RUN),
        identical={"type": "boolean"},
    ),
    ratios=_exactly(**dict.fromkeys(RATIO_NAMES, RATIO)),
    reasons=_named(TEXT, least=0),
)
TRIALS = _exactly(
    protocol={"type": "string", "minLength": 20},
    date={"type": "string", "format": "date"},
    device={"type": "object", "required": ["kind", "name", "threads", "cpu_capability"]},
    versions=_named(TEXT, least=0),
    trials=_exactly(
        empty_products=_exactly(
            what=TEXT, fixed_ms=SPREAD, token_ms=SPREAD, share=SPREAD, product_us=SPREAD
        ),
        many_arrays=_exactly(
            what=TEXT, many_gb_s=SPREAD, one_gb_s=SPREAD, one_vs_many=SPREAD, huge_pages=TEXT
        ),
        kernels=_exactly(what=TEXT, time_ratio=_named(_named(SPREAD), least=0)),
    ),
)
