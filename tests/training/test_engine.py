import pytest
import torch
from torch import nn

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.settings.definition import ExecutionSettings, OptimiserSettings
from benchmd_ray.training.engine import (
    DeepSpeedEngine,
    TorchEngine,
    choose_device,
    deepspeed_config,
    gather,
    make_engine,
    uses_bf16,
)
from benchmd_ray.training.state import PARTS

ENGINES = {"torch": TorchEngine, "deepspeed": DeepSpeedEngine}
OPTIMISER = OptimiserSettings(lr=1e-2, weight_decay=0.1)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def engine(name, module=None, optimiser=OPTIMISER, **execution):
    settings = ExecutionSettings(engine=name, **execution)
    return ENGINES[name](module or network(), optimiser, settings, Worker())


def steps(stepper, first=0, count=6, scale=1.0):
    """Train on fixed batches with a rate that changes; the losses."""
    losses = []
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(2, 16, 5, generator=generator)
        loss = scale * ((stepper(x).float() - y[:, :3]) ** 2).mean()
        stepper.set_lr(1e-2 / (1 + step))
        stepper.backward(loss)
        stepper.update()
        losses.append(loss.item())
    return losses


def require_equal(one, other, tolerance=1e-6):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], atol=tolerance, rtol=0, msg=name)


def slow_adamw(module, first, count, weight_decay):
    """AdamW by its formula (Loshchilov and Hutter), on the same batches as `steps`."""
    parameters = list(module.parameters())
    means, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    for step in range(first, first + count):
        x, y = torch.randn(2, 16, 5, generator=torch.Generator().manual_seed(step))
        loss = ((module(x) - y[:, :3]) ** 2).mean()
        lr, t = 1e-2 / (1 + step), step - first + 1
        for p, g, m, v in zip(
            parameters, torch.autograd.grad(loss, parameters), means, squares, strict=True
        ):
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.999).add_(g * g, alpha=0.001)
            update = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
            p.data = p.data * (1 - lr * weight_decay) - lr * update
    return {name: value.detach() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("name", ENGINES)
def test_steps_are_adamw_with_decoupled_decay_and_the_given_rate(name):
    stepper = engine(name)
    steps(stepper)
    require_equal(stepper.weights(), slow_adamw(network(), 0, 6, weight_decay=0.1))


def test_both_engines_give_the_same_losses_and_weights():
    one, other = engine("torch"), engine("deepspeed")
    assert steps(one) == pytest.approx(steps(other), abs=1e-6)
    require_equal(one.weights(), other.weights())


def largest_difference(one, other):
    return max((value - other[name]).abs().max().item() for name, value in one.items())


def test_gradients_are_not_clipped():
    # Adam takes out a factor that all gradients share, so the factor changes after the first step.
    found = {}
    for name in ENGINES:
        stepper = engine(name)
        steps(stepper, 0, 1)
        steps(stepper, 1, 5, scale=1e3)
        found[name] = stepper.weights()
    require_equal(found["torch"], found["deepspeed"])

    clipped = engine("torch")
    parameters, norms = list(clipped.module.parameters()), []
    clip = torch.nn.utils.clip_grad_norm_
    clipped._optimiser.register_step_pre_hook(lambda *_: norms.append(clip(parameters, 1.0)))
    steps(clipped, 0, 1)
    steps(clipped, 1, 5, scale=1e3)
    assert max(norms) > 100
    assert largest_difference(clipped.weights(), found["torch"]) > 1e-3


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_is_configured_from_the_settings(stage):
    config = deepspeed_config(OPTIMISER, ExecutionSettings(zero_stage=stage), 1000)
    assert config["zero_optimization"]["stage"] == stage
    assert config["zero_optimization"]["reduce_bucket_size"] == 1000
    assert config["gradient_clipping"] == 0.0
    assert config["optimizer"]["params"]["weight_decay"] == 0.1


@pytest.mark.parametrize("name", ENGINES)
def test_bf16_runs_the_forward_pass_and_keeps_float32_weights(name):
    stepper, seen = engine(name, precision="bf16"), []
    stepper.module[0].register_forward_hook(lambda m, inputs, output: seen.append(output.dtype))
    losses = steps(stepper)
    assert set(seen) == {torch.bfloat16}
    assert {value.dtype for value in stepper.weights().values()} == {torch.float32}
    exact = steps(engine(name, precision="float32"))
    assert losses == pytest.approx(exact, rel=0.02)
    assert losses != exact


def test_bf16_is_the_default_on_a_gpu_only():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    found = [uses_bf16(p, d) for p in ("auto", "float32", "bf16") for d in (cpu, gpu)]
    assert found == [False, True, False, False, True, True]


@pytest.mark.parametrize("reads", ENGINES)
@pytest.mark.parametrize("writes", ENGINES)
def test_a_state_saved_by_one_engine_goes_on_in_the_other(writes, reads, tmp_path):
    writer = engine(writes)
    steps(writer, 0, 4)
    writer.save(tmp_path)
    expected = steps(writer, 4, 4)
    reader = engine(reads, network(seed=9))
    reader.load(tmp_path)
    assert steps(reader, 4, 4) == pytest.approx(expected, abs=0 if reads == writes else 1e-6)
    require_equal(reader.weights(), writer.weights(), 0 if reads == writes else 1e-6)


@pytest.mark.parametrize("name", ENGINES)
def test_gradients_of_parts_add_up_to_those_of_the_whole(name):
    whole, parts = engine(name), engine(name)
    for step in range(4):
        x, y = torch.randn(2, 16, 5, generator=torch.Generator().manual_seed(step))
        whole.backward(((whole(x) - y[:, :3]) ** 2).mean())
        whole.update()
        for first, count in ((0, 4), (4, 4), (8, 8)):
            part = slice(first, first + count)
            loss = ((parts(x[part]) - y[part, :3]) ** 2).mean() * count / 16
            parts.backward(loss, last=first == 8)
        parts.update()
    require_equal(parts.weights(), whole.weights())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"nothing of the kind"),
        lambda path: path.write_bytes(path.read_bytes()[:-4]),
    ],
    ids=["missing", "empty", "foreign", "cut off"],
)
def test_a_damaged_state_is_named(part, damage, tmp_path):
    stepper = engine("torch")
    steps(stepper, count=1)
    stepper.save(tmp_path)
    damage(tmp_path / f"{part}.safetensors")
    with pytest.raises(BenchmdError, match=r"the checkpoint .* cannot be loaded.*remove it"):
        stepper.load(tmp_path)


def test_a_state_of_another_architecture_is_refused(tmp_path):
    engine("torch").save(tmp_path)
    other = engine("torch", nn.Sequential(nn.Linear(5, 9), nn.GELU(), nn.Linear(9, 3)))
    message = r"0\.weight is \(8, 5\), expected \(9, 5\); .* …\. .*another architecture"
    with pytest.raises(BenchmdError, match=message):
        other.load(tmp_path)


def test_buffers_and_shared_weights_are_part_of_the_state(tmp_path):
    def counting(seed):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.Linear(5, 3))
        module[2].weight = module[0].weight
        return module

    writer = engine("torch", counting(0))
    steps(writer, 0, 2)
    writer.save(tmp_path)
    reader = engine("torch", counting(1))
    reader.load(tmp_path)
    assert reader.module[1].num_batches_tracked == 2
    require_equal(reader.weights(), writer.weights(), 0)
    assert steps(reader, 2, 2) == steps(writer, 2, 2)


def test_a_parameter_that_was_never_used_has_no_moments(tmp_path):
    written, read = network(), network(seed=9)
    written.unused, read.unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))
    writer, reader = engine("torch", written), engine("torch", read)
    steps(writer, 0, 2)
    writer.save(tmp_path)
    reader.load(tmp_path)
    assert reader.module.unused.tolist() == [1.0, 1.0]
    assert steps(reader, 2, 2) == steps(writer, 2, 2)


@pytest.mark.parametrize("name", ENGINES)
def test_frozen_parameters_stay(name):
    module = network()
    module[0].requires_grad_(False)
    before = module[0].weight.detach().clone()
    stepper = engine(name, module)
    steps(stepper)
    assert torch.equal(stepper.weights()["0.weight"], before)
    assert not torch.equal(stepper.weights()["3.weight"], network()[3].weight)


@pytest.mark.parametrize("name", ENGINES)
def test_weights_are_copies(name):
    stepper = engine(name)
    held = stepper.weights()
    before = held["0.weight"].clone()
    steps(stepper, count=1)
    assert torch.equal(held["0.weight"], before)
    assert not torch.equal(stepper.weights()["0.weight"], before)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_stages_of_one_process_agree_with_torch(stage, tmp_path):
    exact = engine("torch")
    losses = steps(exact)
    stepper = engine("deepspeed", zero_stage=stage)
    assert steps(stepper) == pytest.approx(losses, abs=1e-6)
    require_equal(stepper.weights(), exact.weights())
    stepper.save(tmp_path)
    again = engine("deepspeed", network(seed=9), zero_stage=stage)
    again.load(tmp_path)
    assert steps(again, 6, 2) == steps(stepper, 6, 2)
    other = engine("torch", network(seed=9))
    other.load(tmp_path)
    assert steps(other, 6, 2) == pytest.approx(steps(exact, 6, 2), abs=1e-6)
    other.save(tmp_path)
    again.load(tmp_path)  # one that has stepped before
    assert steps(again, 8, 2) == pytest.approx(steps(exact, 8, 2), abs=1e-6)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_keeps_what_is_frozen(stage, tmp_path):
    def frozen(seed):
        module = network(seed)
        module[0].requires_grad_(False)
        return module

    stepper = engine("deepspeed", frozen(0), zero_stage=stage)
    steps(stepper, 0, 2)
    assert torch.equal(stepper.weights()["0.weight"], network(0)[0].weight)
    stepper.save(tmp_path)
    reader = engine("torch", frozen(9))
    reader.load(tmp_path)
    assert steps(reader, 2, 2) == pytest.approx(steps(stepper, 2, 2), abs=1e-6)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_runs_the_forward_pass_in_bf16_too(stage):
    stepper, seen = engine("deepspeed", precision="bf16", zero_stage=stage), []
    stepper.module[0].register_forward_hook(lambda m, inputs, output: seen.append(output.dtype))
    assert steps(stepper) == pytest.approx(steps(engine("torch", precision="bf16")), abs=1e-3)
    assert set(seen) == {torch.bfloat16}
    assert {value.dtype for value in stepper.weights().values()} == {torch.float32}


@pytest.mark.parametrize(
    ("settings", "worker", "kind"),
    [
        ({}, Worker(), TorchEngine),
        ({"engine": "torch"}, Worker(), TorchEngine),
        ({"engine": "deepspeed"}, Worker(), DeepSpeedEngine),
        ({"zero_stage": 1}, Worker(), DeepSpeedEngine),
    ],
)
def test_auto_takes_plain_torch_for_one_cpu_process(settings, worker, kind):
    made = make_engine(network(), OPTIMISER, ExecutionSettings(**settings), worker)
    assert isinstance(made, kind)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is said without a GPU")
def test_a_missing_gpu_is_named():
    with pytest.raises(BenchmdError, match=r"execution\.device is cuda .* no GPU"):
        choose_device("cuda")
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")


def test_gathering_alone_gives_the_tensor_itself():
    x = torch.randn(3)
    assert gather(x) is x


def test_each_worker_of_a_node_takes_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [choose_device("auto", rank).index for rank in range(4)] == [0, 1, 2, 3]
    assert choose_device("cpu", 3).type == "cpu"
