"""What is trained, how, and from where: the arms of unit 10's study, by name.

kl           4 bits, g64, from rounding; the grid follows the weights; KL to the fp32 model
text         the same with cross-entropy on the text in place of the teacher
gptq         from unit 08's best codes (position 0 counted 64 times), on their grid, KL
adapters     rounded weights frozen, rank-8 adapters in float beside them, KL
norms        rounded weights frozen, the 61 norm weights trained, KL
A "-3" at the end: 3 bits. "rate-0.001", "gptq-rate-…", "adapter-rate-…", "norm-rate-…": an arm
with that rate, written as a decimal, and fewer tokens, to choose the rate of the arm.
"""

from dataclasses import dataclass, replace

from torch import nn

from utils import models
from utils.quantization import adapters, gptq_model, qat
from utils.quantization.distillation import Plan
from utils.quantization.model import share

GROUP, RANK, ALPHA = 64, 8, 16.0


@dataclass(frozen=True)
class Arm:
    """bits; what: "weights", "adapters", "norms"; start: a recipe of unit 08; tokens; plan."""

    bits: int = 4
    what: str = "weights"
    start: str = "rtn"
    tokens: int = 6144
    plan: Plan = Plan(rate=1e-4, batch=1, warm_up=2)


def arm(name):
    """The Arm called `name`; ValueError for an unknown one."""
    if name.endswith("-3"):
        return replace(arm(name[:-2]), bits=3)
    if name in NAMED:
        return NAMED[name]
    kind, _, value = name.partition("rate-")
    if kind not in KINDS or not value:
        raise ValueError(f"arm {name!r}: use one of {', '.join(NAMED)} or rate-VALUE")
    return replace(NAMED[KINDS[kind]], tokens=CHOICE_TOKENS, plan=plan(float(value)))


def plan(rate, loss="kl"):
    """One window per step, two steps of warm-up."""
    return Plan(rate, batch=1, loss=loss, warm_up=2)


def best(losses):
    """The trial whose last steps have the lowest mean loss. losses: {trial: losses by step}."""
    return min(losses, key=lambda trial: sum(losses[trial][-LATE:]))


CHOICE_TOKENS, LATE = 2048, 4
RATES = ("rate-0.00003", "rate-0.0001", "rate-0.0003")
TRIALS = {  # which trials choose the rate of an arm, whatever its bits
    "kl": RATES,
    "text": RATES,
    "gptq": ("gptq-rate-0.00003", "gptq-rate-0.0001"),
    "adapters": ("adapter-rate-0.001", "adapter-rate-0.003"),
    "norms": ("norm-rate-0.003", "norm-rate-0.01"),
}
KINDS = {"": "kl", "gptq-": "gptq", "norm-": "norms", "adapter-": "adapters"}
NAMED = {
    "kl": Arm(),
    "text": Arm(plan=plan(1e-4, "text")),
    "gptq": Arm(start="first-64"),
    "adapters": Arm(what="adapters"),
    "norms": Arm(what="norms"),
}


def student(model, chosen, tensors):
    """The model to train: `tensors` are the codes it starts from. Other weights are shared."""
    if chosen.what == "adapters":
        return adapters.attach(share(model), tensors, RANK, ALPHA)
    if chosen.what == "weights":
        grid, start = ("dynamic", None) if chosen.start == "rtn" else ("frozen", tensors)
        return qat.prepare(share(model), chosen.bits, GROUP, False, grid, start)
    made = gptq_model.simulate(model, tensors)
    for norm in norms(made).values():
        norm.weight = nn.Parameter(norm.weight.detach().clone())
    return made


def norms(model):
    """{name: module} of the norms of a Llama."""
    return {n: m for n, m in model.named_modules() if n.endswith(("layernorm", "norm"))}


def results(trained, chosen, model, tensors):
    """{name: model to evaluate}, from exported codes alone; "merged" for adapters too."""
    if chosen.what == "weights":
        return {"": gptq_model.simulate(model, qat.export(trained))}
    if chosen.what == "norms":
        return {"": trained}
    merged = gptq_model.simulate(model, adapters.merge(trained))
    return {"": trained, "merged": merged}


def flipped(trained, chosen, tensors):
    """Share of codes that training changed (None where codes are frozen)."""
    return qat.flipped(tensors, qat.export(trained)) if chosen.what == "weights" else None


def trained_parameters(model):
    """How many numbers are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def linear_parameters(model):
    """Weights of the linear layers that are quantized."""
    return sum(m.weight.numel() for m in models.linears(model).values())
