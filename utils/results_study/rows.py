"""The rows of the page: which method, at which bits, in which form it is stored.

A row's `form` decides its bytes and its kernel, its `recipe` the numbers: "round" (to nearest),
"awq-BITS", a recipe of unit 08 ("plain", "plain-3", "first-64"), "awq+gptq", "activations-WAY".

But: no row is chosen by its result here, and none of pruned models: see unit 11.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """name: as the table prints it. family: colour and marker of the figure."""

    name: str
    family: str
    form: str
    recipe: str = "round"


_CALIBRATED = (
    Row("AWQ 4 bit g64", "calibrated", "int4 asym g64", "awq-4"),
    Row("GPTQ 4 bit g64", "calibrated", "int4 asym g64", "plain"),
    Row("GPTQ 4 bit g64, first token × 64", "calibrated", "int4 asym g64", "first-64"),
    Row("AWQ, then GPTQ, 4 bit g64", "calibrated", "int4 asym g64", "awq+gptq"),
    Row("AWQ 3 bit g64", "calibrated", "int3 asym g64", "awq-3"),
    Row("GPTQ 3 bit g64", "calibrated", "int3 asym g64", "plain-3"),
)
ROWS = (
    Row("fp32", "float", "fp32"),
    Row("fp16", "float", "fp16"),
    Row("bf16", "float", "bf16"),
    Row("int8 per channel", "integer", "int8 channel"),
    Row("int8 g64", "integer", "int8 g64"),
    Row("int8 per channel, activations int8", "activations", "int8 channel, fp32 scales",
        "activations-token"),
    Row("LLM.int8()", "activations", "int8 channel, fp32 scales", "activations-llm-6"),
    Row("Q8_0", "GGUF", "Q8_0"),
    Row("fp8 E4M3 per channel", "float", "fp8 channel"),
    Row("Q5_1", "GGUF", "Q5_1"),
    Row("Q5_0", "GGUF", "Q5_0"),
    Row("4 bit g32", "integer", "int4 asym g32"),
    Row("4 bit g64", "integer", "int4 asym g64"),
    Row("4 bit g192", "integer", "int4 asym g192"),
    Row("4 bit per channel", "integer", "int4 asym channel"),
    Row("4 bit g32, 16 levels, symmetric", "integer", "int4 full range g32"),
    Row("Q4_1", "GGUF", "Q4_1"),
    Row("Q4_0", "GGUF", "Q4_0"),
    Row("NF4 g64", "table", "nf4"),
    Row("NF4 g64, bitsandbytes", "table", "nf4, library"),
    Row("FP4 g64", "table", "fp4"),
    Row("NVFP4", "table", "nvfp4"),
    Row("MXFP4", "table", "mxfp4"),
    *_CALIBRATED[:4],
    Row("3 bit g32", "integer", "int3 asym g32"),
    Row("3 bit g64", "integer", "int3 asym g64"),
    *_CALIBRATED[4:],
    Row("2 bit g32", "integer", "int2 asym g32"),
)  # fmt: skip
BY_NAME = {row.name: row for row in ROWS}
_FIRST = (
    "int8 per channel", "4 bit g64", "AWQ 4 bit g64", "AWQ, then GPTQ, 4 bit g64",
    "GPTQ 4 bit g64", "GPTQ 4 bit g64, first token × 64", "3 bit g64", "GPTQ 3 bit g64",
    "Q8_0", "Q4_0", "NF4 g64", "fp8 E4M3 per channel", "MXFP4", "NVFP4", "bf16",
    "4 bit per channel", "4 bit g32", "4 bit g32, 16 levels, symmetric", "int8 g64",
    "int8 per channel, activations int8",
)  # fmt: skip
ORDER = (*_FIRST, *(name for name in BY_NAME if name not in _FIRST))  # in which they are measured
