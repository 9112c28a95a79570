"""Mixture of experts: what nn.Linear hides, counts per expert, Hessians per expert, the router."""

import pytest
import torch
from torch import nn

from utils import models
from utils.quantization import experts, gptq, rtn

IDS = torch.randint(0, 256, (4, 64), generator=torch.Generator().manual_seed(0))


def mixtral(seed=0, **overrides):
    from transformers import MixtralConfig, MixtralForCausalLM

    shape = dict(
        vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2,
        initializer_range=0.2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MixtralForCausalLM(MixtralConfig(**(shape | overrides)))
    return model.eval().requires_grad_(False)


def qwen():
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=256, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_experts=16, num_experts_per_tok=4,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config).eval().requires_grad_(False)


def test_experts_are_no_linear_layers():
    model = mixtral()
    found = sum(m.weight.numel() for m in models.linears(model).values())
    inside = sum(getattr(m, p).numel() for m in experts.find(model).values() for p in experts.PARTS)
    assert inside > 5 * found
    assert not any("experts" in name or "gate" in name for name in models.linears(model))


@pytest.mark.parametrize("make, chosen, layers", [(mixtral, 2, 2), (qwen, 4, 2)])
def test_every_token_is_counted_once_per_expert_chosen(make, chosen, layers):
    seen = experts.collect(make(), IDS)
    assert len(seen) == layers
    assert all(int(s.tokens.sum()) == IDS.numel() * chosen for s in seen.values())


def test_hessians_are_of_the_experts_own_tokens():
    model = mixtral()
    name, module = next(iter(experts.find(model).items()))
    kept = {}
    handle = module.register_forward_pre_hook(lambda _m, inputs: kept.update(x=inputs))
    seen = experts.collect(model, IDS)[name]
    handle.remove()
    x, chosen, _ = kept["x"]
    for expert in range(8):
        mine = x[(chosen == expert).any(1)]
        assert int(seen.tokens[expert]) == len(mine)
        if len(mine):
            gram = mine.double().T @ mine.double()
            torch.testing.assert_close(seen.hessians["gate_up_proj"][expert], gram)
            gate, up = (mine @ module.gate_up_proj[expert].T).chunk(2, -1)
            inner = (nn.functional.silu(gate) * up).double()
            torch.testing.assert_close(seen.hessians["down_proj"][expert], inner.T @ inner)


def test_experts_are_quantized_one_by_one_and_the_router_is_not():
    model, before = mixtral(), mixtral()
    seen = experts.collect(model, IDS)
    made = experts.quantize(model, seen, bits=4, group_size=16)
    assert len(made) == 2 * 8 * 2
    for (name, expert, part), tensor in made.items():
        weight = getattr(model.get_submodule(name), part)[expert]
        assert torch.equal(weight, tensor.dequantize())
    changed = {
        n for n, p in model.named_parameters() if not torch.equal(p, before.get_parameter(n))
    }
    assert changed == {f"{name}.{part}" for name in seen for part in experts.PARTS}
    name = next(iter(seen))
    expert = int(seen[name].tokens.argmax())
    weight = before.get_submodule(name).gate_up_proj[expert]
    expected = gptq.quantize(weight, seen[name].hessians["gate_up_proj"][expert], 4, 16)
    assert torch.equal(made[name, expert, "gate_up_proj"].codes, expected.codes)


def test_an_expert_that_saw_nothing_is_rounded_to_nearest():
    model, before = mixtral(), mixtral()
    seen = experts.collect(model, IDS[:1, :3])
    name = next(n for n, s in seen.items() if (s.tokens == 0).any())
    expert = int(seen[name].tokens.argmin())
    made = experts.quantize(model, seen, bits=4, group_size=16)
    weight = before.get_submodule(name).down_proj[expert]
    expected = rtn.quantize(weight, 4, 16, False).codes
    assert torch.equal(made[name, expert, "down_proj"].codes, expected)


def test_least_keeps_gptq_from_experts_with_few_tokens():
    model = mixtral()
    seen = experts.collect(model, IDS)
    made = experts.quantize(model, seen, bits=4, group_size=16, least=10**6)
    name, module = next(iter(experts.find(mixtral()).items()))
    expected = rtn.quantize(module.down_proj[0], 4, 16, False).codes
    assert torch.equal(made[name, 0, "down_proj"].codes, expected)


def test_a_dense_model_is_refused():
    with pytest.raises(ValueError, match="no module holds experts"):
        experts.collect(models.tiny(), IDS)
