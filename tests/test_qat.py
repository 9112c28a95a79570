"""Training with rounded weights, distillation that can be stopped, adapters; on a tiny model."""

import copy

import pytest
import torch

from utils import models
from utils.quantization import adapters, distillation, fake_quant, gptq_model, qat, rtn
from utils.quantization.distillation import Plan, Trainer
from utils.quantization.fake_quant import Grid
from utils.quantization.linear import PackedLinear
from utils.quantization.model import share

IDS = torch.randint(0, 256, (12, 24), generator=torch.Generator().manual_seed(0))
PLAN = Plan(rate=3e-3, batch=2, warm_up=2)


@pytest.fixture(autouse=True, scope="module")
def _gradients_as_found():
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    yield
    torch.set_grad_enabled(before)


@pytest.fixture(scope="module")
def teacher():
    return models.tiny()


def tensors(model, bits=4, group=16):
    return {n: rtn.quantize(m.weight, bits, group, False) for n, m in models.linears(model).items()}


def logits(model, ids=IDS[:2]):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


@pytest.mark.parametrize("grid", qat.GRIDS)
def test_before_training_it_is_the_rounded_model(teacher, grid):
    made = tensors(teacher)
    student = qat.prepare(share(teacher), 4, 16, False, grid)
    assert torch.equal(logits(student), logits(gptq_model.simulate(teacher, made)))
    exported = qat.export(student)
    assert exported.keys() == made.keys()
    assert all(torch.equal(exported[n].codes, made[n].codes) for n in made)
    assert qat.flipped(made, exported) == 0


@pytest.mark.parametrize("grid", ["frozen", "learned"])
def test_a_start_is_kept(teacher, grid):
    layers = models.linears(teacher)
    other = {n: rtn.quantize(1.1 * m.weight, 3, 16, False) for n, m in layers.items()}
    student = qat.prepare(share(teacher), grid=grid, start=other)
    exported = qat.export(student)
    assert all(torch.equal(exported[n].codes, other[n].codes) for n in other)
    assert all(exported[n].bits == 3 and exported[n].group_size == 16 for n in other)


@pytest.mark.parametrize("grid", qat.GRIDS)
def test_what_was_trained_is_what_is_exported(teacher, grid):
    start = None if grid == "dynamic" else tensors(teacher, 3)
    student = qat.prepare(share(teacher), 3, 16, False, grid, start)
    Trainer(student, teacher, IDS, PLAN).run()
    seen, exported = logits(student), qat.export(student)
    if grid == "dynamic":
        for name, layer in qat.layers(student).items():
            expected = rtn.quantize(layer.weight, 3, 16, False)
            assert torch.equal(exported[name].codes, expected.codes)
            assert torch.equal(exported[name].scale, expected.scale)
    if grid == "frozen":
        assert all(torch.equal(exported[n].scale, start[n].scale) for n in start)
    if grid == "learned":
        assert any(not torch.equal(exported[n].scale, start[n].scale) for n in start)
    assert torch.equal(logits(gptq_model.simulate(teacher, exported)), seen)
    packed = qat.convert(student)
    assert sum(isinstance(m, PackedLinear) for m in packed.modules()) == len(exported)
    torch.testing.assert_close(logits(packed), seen, rtol=1e-4, atol=1e-4)
    assert qat.flipped(tensors(teacher, 3), exported) > 0


def test_training_helps_and_leaves_the_teacher_alone(teacher):
    before = copy.deepcopy(teacher.state_dict())
    student = qat.prepare(share(teacher), 2, 16, False)
    rows = IDS[:2].repeat(20, 1)
    trainer = Trainer(student, teacher, rows, PLAN).run()
    assert trainer.losses[-1] < 0.5 * trainer.losses[0]
    assert trainer.tokens == rows.numel()
    assert all(torch.equal(before[n], t) for n, t in teacher.state_dict().items())
    assert not any(p.requires_grad for p in teacher.parameters())


def test_only_the_layers_are_trained(teacher):
    student = qat.prepare(models.tiny().requires_grad_(True), 4, 16)
    trained = {n for n, p in student.named_parameters() if p.requires_grad}
    assert trained == {f"{n}.weight" for n in qat.layers(student)}
    learned = qat.prepare(share(teacher), 4, 16, grid="learned")
    assert sum(n.endswith("scale") for n, p in learned.named_parameters() if p.requires_grad) == 14


@pytest.mark.parametrize("loss", ["kl", "text"])
def test_a_stopped_run_goes_on_with_equal_losses(teacher, tmp_path, loss):
    plan = Plan(rate=3e-3, batch=2, warm_up=2, loss=loss)
    whole = Trainer(qat.prepare(share(teacher), 4, 16), teacher, IDS, plan).run()
    half = Trainer(qat.prepare(share(teacher), 4, 16), teacher, IDS, plan).run(3)
    half.save(tmp_path / "half.pt")
    again = Trainer(qat.prepare(share(teacher), 4, 16), teacher, IDS, plan)
    again.load(tmp_path / "half.pt").run()
    assert again.losses == whole.losses and len(whole.losses) == 6
    assert again.done == again.steps == 6
    one, two = qat.export(whole.student), qat.export(again.student)
    assert all(torch.equal(one[n].codes, two[n].codes) for n in one)
    other = Trainer(qat.prepare(share(teacher), 4, 16), teacher, IDS, Plan())
    with pytest.raises(ValueError, match="delete it"):
        other.load(tmp_path / "half.pt")


def test_kl_by_hand_and_its_gradient():
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    teacher, student = p.log()[None, None], (q.log()[None, None] + 3).requires_grad_()
    loss = distillation.kl(teacher, student)
    assert loss.item() == pytest.approx(0.25 * torch.tensor(2.0).log().item(), rel=1e-5)
    loss.backward()
    torch.testing.assert_close(student.grad[0, 0], q - p)
    two = distillation.kl(teacher.expand(1, 2, 3), student.detach().expand(1, 2, 3))
    assert two.item() == pytest.approx(loss.item(), rel=1e-5)  # a mean over positions


def test_text_loss_predicts_the_next_token():
    ids = torch.tensor([[0, 1, 2]])
    sure = torch.full((1, 3, 4), -30.0)
    sure[0, 0, 1] = sure[0, 1, 2] = 30
    assert distillation.text(sure, ids).item() < 1e-6


def test_the_rate_rises_and_falls():
    plan = Plan(rate=1.0, warm_up=2)
    rates = [distillation.rate(step, 11, plan) for step in range(11)]
    assert rates[0] == pytest.approx(0.5) and max(rates) == rates[1] == pytest.approx(0.91)
    assert rates[-1] == pytest.approx(0.1) and rates[1:] == sorted(rates[1:], reverse=True)


def test_adapters_start_as_the_rounded_model_and_merge(teacher):
    made = tensors(teacher, 3)
    student = adapters.attach(share(teacher), made, rank=4, alpha=8.0)
    rounded = gptq_model.simulate(teacher, made)
    torch.testing.assert_close(logits(student), logits(rounded))
    trained = {n.rsplit(".", 1)[-1] for n, p in student.named_parameters() if p.requires_grad}
    assert trained == {"down", "up"}
    trainer = Trainer(student, teacher, IDS[:2].repeat(15, 1), Plan(3e-2, warm_up=2)).run()
    assert trainer.losses[-1] < 0.8 * trainer.losses[0]
    layer = next(iter(adapters.layers(student).values()))
    x = torch.randn(3, layer.frozen.shape[1])
    torch.testing.assert_close(layer(x), x @ layer.merged().T, rtol=1e-4, atol=1e-4)
    assert torch.equal(layer.frozen, layer.quantized.dequantize())
    merged = layer.merge()
    step = merged.scale.float().repeat_interleave(16, 1)
    assert ((merged.dequantize() - layer.merged()).abs() <= 0.51 * step).all()
    assert not torch.equal(merged.dequantize(), layer.merged())
    assert layer.bits_per_weight == pytest.approx(
        layer.quantized.bits_per_weight + 16 * 4 * (64 + 64) / (64 * 64)
    )


def test_an_update_below_half_a_step_is_lost_when_merged():
    tensor = rtn.quantize(torch.randn(8, 32), 4, 16, False)
    layer = adapters.AdapterLinear(tensor, rank=1, alpha=1.0)
    with torch.no_grad():
        layer.down.fill_(1.0)
        layer.up.fill_(0.2 * float(tensor.scale.min()))
        inside = (tensor.codes > 0) & (tensor.codes < 15)
    moved = fake_quant.export(layer.merged(), Grid.of(tensor))
    assert torch.equal(moved.codes[inside], tensor.codes[inside])


def test_bytes_of_training():
    assert qat.training_bytes(100) == 1600
    assert qat.training_bytes(10, frozen=100, teacher=200) == 160 + 1200


def test_bad_input_is_named(teacher):
    layer = torch.nn.Linear(32, 8)
    with pytest.raises(ValueError, match="grid='static'"):
        qat.FakeQuantLinear(layer, grid="static")
    with pytest.raises(ValueError, match="use grid='frozen'"):
        qat.FakeQuantLinear(layer, start=rtn.quantize(layer.weight.detach()))
    with pytest.raises(ValueError, match="start has no layer"):
        qat.prepare(share(teacher), start={}, grid="frozen")
    with pytest.raises(ValueError, match="call prepare first"):
        qat.layers(teacher)
    with pytest.raises(ValueError, match="loss='mse'"):
        Trainer(teacher, teacher, IDS, Plan(loss="mse"))
    with pytest.raises(ValueError, match="prepare the student"):
        Trainer(teacher, teacher, IDS)
    with pytest.raises(ValueError, match="at least one batch"):
        Trainer(teacher, teacher, IDS[:1])
    with pytest.raises(ValueError, match="rank=0"):
        adapters.AdapterLinear(rtn.quantize(layer.weight.detach()), rank=0)
