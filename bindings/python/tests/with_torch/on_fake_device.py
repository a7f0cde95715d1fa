# SPDX-License-Identifier: MIT
"""Trains on a device without hardware beside torch's own class on the CPU. Exit status 77: torch lacks the interface.

In a process of its own, because the device stays. The waits of the host are counted.
"""

import sys
import warnings

import torch

try:
    import fake_device

    LIBRARY = fake_device.install()
except Exception as error:
    print(f"torch {torch.__version__} has no backends in Python: {error}")
    sys.exit(77)

import gradscaler
from gradscaler.torch import GradScaler, TensorScaler

torch.set_num_threads(1)
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
}
BAD = {3: ("1.weight", torch.inf), 4: ("0.bias", torch.nan), 9: ("0.weight", -torch.inf)}


KEPT = {}  # parameters after training with torch's class


def model(device):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)).to(device)


def train(kind, device, make, clips=False, **options):
    """Returns scales, parameters, and how often the host waited in step(), unscale_() and update()."""
    net, scales, waits = model(device), [], []
    optimizer, scaler = make(net.named_parameters()), kind(device, growth_interval=4, **options)
    for step in range(12):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(5, 6, generator=generator).to(device)
        scaler.scale(net(batch).square().mean()).backward()
        if step in BAD:
            name, value = BAD[step]
            net.get_parameter(name).grad.view(-1)[1] = value
        fake_device.waits.clear()
        if clips:
            scaler.unscale_(optimizer, max_norm=0.5)
        scaler.step(optimizer)
        stepped = len(fake_device.waits)
        scaler.update()
        waits.append((stepped, len(fake_device.waits) - stepped))
        scales.append(scaler.get_scale())
        if kind is GradScaler:
            fake_device.waits.clear()
            old = torch.zeros(2, device=device)
            scaler.copy_unless_skipped([torch.full((2,), torch.nan, device=device)], [old])
            assert not fake_device.waits
            assert old.isnan().any().item() == (step not in BAD), step
            assert scaler.step_was_skipped == (step in BAD), step
            named = {BAD[step][0]: 1} if step in BAD else {}
            assert scaler.report.bad == named, (step, scaler.report)
    return scales, [p.detach().cpu() for p in net.parameters()], waits


def check(name, make, **options):
    fused = "fused" in name
    theirs, *_ = train(torch.amp.GradScaler, "cpu", make)
    if name not in KEPT:
        KEPT[name] = train(torch.amp.GradScaler, "toy", make)[1]
    ours, moved, waits = train(GradScaler, "toy", make, **options)
    assert ours == theirs, (name, ours, theirs)
    assert all(map(torch.equal, moved, KEPT[name])), name
    for step, each in enumerate(waits):
        least = (0, 1) if fused else (1, 0)
        assert each == least or (step in BAD and (sum(each) <= 3 or fake_device.missing)), (name, step, each)


for name, make in OPTIMIZERS.items():
    check(name, make)

for policy in "guard", "recommended":
    on_cpu = train(GradScaler, "cpu", OPTIMIZERS["AdamW"], clips=True, policy=policy)
    on_toy = train(GradScaler, "toy", OPTIMIZERS["AdamW"], clips=True, policy=policy)
    assert on_cpu[0] == on_toy[0], policy
    for one, other in zip(on_cpu[1], on_toy[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert all(sum(each) <= (3 if step in BAD else 1) for step, each in enumerate(on_toy[2])), on_toy[2]

warnings.simplefilter("ignore")  # of guards without a threshold
for policy in gradscaler.presets():  # on the device a TensorScaler decides as on the host
    rows = {}
    for device in "cpu", "toy":
        scaler, rows[device] = TensorScaler(policy, device), []
        for value in 1.0, torch.inf, 2.0, torch.nan, 3.0:
            gradients = [torch.tensor([value, 4.0]).to(device), torch.ones(3).to(device)]
            found, norm = scaler.unscale_(gradients, max_norm=1e9)
            scaler.update()
            rows[device].append((found.item(), norm.item(), scaler.loss_scale.item(), gradients[1].tolist()))
    for one, other in zip(*rows.values(), strict=True):
        assert (one[0], one[2]) == (other[0], other[2]), (policy, one, other)
        torch.testing.assert_close(torch.tensor(one[3]), torch.tensor(other[3]), rtol=1e-6, atol=0, equal_nan=True)

fake_device.lacks_float64 = True
gradscaler.torch._plain.widest.cache_clear()
check("SGD", OPTIMIZERS["SGD"])
fake_device.missing.add("_amp_foreach_non_finite_check_and_unscale_")
check("SGD", OPTIMIZERS["SGD"])
fake_device.missing.add("argmax")  # found out only after an overflow
check("SGD", OPTIMIZERS["SGD"])
check("SGD fused", OPTIMIZERS["SGD fused"])
