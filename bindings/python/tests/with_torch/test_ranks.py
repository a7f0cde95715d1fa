# SPDX-License-Identifier: MIT
"""Ranks with parts of the gradients come to one verdict and one norm: DTensors over meshes, and process groups."""

import math

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from gradscaler import Report
from gradscaler.torch import GradScaler

NAN = math.nan
SHAPES = [(8, 6), (5,), (7, 3), (4,), (8, 6)]
PLACES = [
    [Shard(0), Shard(1)],
    [Replicate(), Shard(0)],
    [Shard(0), Replicate()],
]  # then a plain one, then a smaller mesh


def whole():
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) * 8 for shape in SHAPES]


def spread(gradients, mesh):
    """Parameters that are spread in every way at a time, which torch's class refuses."""
    where = [*((mesh, place) for place in PLACES), (None, None), (mesh["tp"], [Shard(0)])]
    found = []
    for i, (gradient, (over, place)) in enumerate(zip(gradients, where, strict=True)):
        value, gradient = torch.zeros_like(gradient), gradient.clone()
        if over is not None:
            value, gradient = distribute_tensor(value, over, place), distribute_tensor(gradient, over, place)
        parameter = torch.nn.Parameter(value)
        parameter.grad = gradient
        found.append((f"p{i}", parameter))
    return found


def scaler(**options):
    made = GradScaler("cpu", init_scale=4.0, **options)
    made.scale(torch.ones(()))
    return made


def everyone(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def local(gradient):
    return gradient._local_tensor if isinstance(gradient, DTensor) else gradient


def gradients_are_unscaled_and_clipped_by_the_norm_of_all(mesh):
    parameters, one = spread(whole(), mesh), scaler()
    norm = one.unscale_(torch.optim.SGD(parameters), max_norm=1.0)
    expected = torch.cat([gradient.flatten() for gradient in whole()]).double().norm() / 4
    assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
    assert one.report.elements == sum(gradient.numel() for gradient in whole())
    for (_, parameter), gradient in zip(parameters, whole(), strict=True):
        full = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
        torch.testing.assert_close(full, gradient / 4 / (expected.float() + 1e-6))
    assert len({bytes(report) for report in everyone(one.report)}) == 1


def one_bad_element_anywhere_stops_all(mesh):
    for rank in range(dist.get_world_size()):
        for i in range(len(SHAPES)):
            parameters, one = spread(whole(), mesh), scaler()
            part = local(parameters[i][1].grad)
            bad = part.numel() > 0
            if rank == dist.get_rank() and bad:
                part.view(-1)[-1] = NAN
            optimizer = torch.optim.SGD(parameters)
            one.step(optimizer)
            one.update()
            assert everyone(bad)[rank] is one.step_was_skipped
            assert one.get_scale() == (2.0 if one.step_was_skipped else 4.0)
            if one.step_was_skipped:
                assert one.report.bad == ({f"p{i}": 1} if rank == dist.get_rank() else {})


def fused_optimizers_agree(mesh):
    parameters, one = spread(whole(), mesh)[:3], scaler()
    if dist.get_rank() == 1:
        local(parameters[0][1].grad)[0, 0] = NAN
    one.step(torch.optim.AdamW(parameters, lr=0.5, fused=True))
    one.update()
    assert one.step_was_skipped and one.get_scale() == 2.0
    assert all(local(parameter.detach()).eq(0).all() for _, parameter in parameters)


def a_rank_without_gradients_does_not_keep_the_others_waiting(mesh):
    parameters, one = spread(whole(), mesh), scaler()
    if dist.get_rank() == 0:
        for _, parameter in parameters:
            parameter.grad = None
    one.step(torch.optim.SGD(parameters))
    assert not one.step_was_skipped


def what_one_rank_refuses_ends_the_step_of_all(mesh):
    parameters, one = spread(whole(), mesh), scaler()
    if dist.get_rank() == 1:
        parameters.append(("half", torch.nn.Parameter(torch.ones(2).half())))
        parameters[-1][1].grad = torch.ones(2).half()
    error, match = (
        (ValueError, "FP16 gradients. That of half") if dist.get_rank() == 1 else (RuntimeError, "rank 1 could not")
    )
    with pytest.raises(error, match=match):
        one.step(torch.optim.SGD(parameters))


def a_rank_with_another_scale_or_other_rules_is_refused_by_all_of_them(mesh):
    """Over meshes, whose groups meet one after another, and over a group."""
    last = dist.get_world_size() - 1
    odd = dist.get_rank() == last
    options = {"init_scale": 8.0} if odd else {}, {"growth_interval": 7} if odd else {}
    for different in options:
        for kind in {}, {"process_group": dist.group.WORLD, "sharded": True}, {"process_group": dist.group.WORLD}:
            one = GradScaler("cpu", **{"init_scale": 4.0, **different}, **kind)
            one.scale(torch.ones(()))
            parameters = spread(whole(), mesh) if not kind else [("w", torch.nn.Parameter(torch.zeros(3)))]
            if kind:
                parameters[0][1].grad = torch.ones(3)
            before = [local(parameter.detach()).clone() for _, parameter in parameters]
            with pytest.raises(RuntimeError, match=r"rank \d has another policy or state than the ranks before it"):
                one.step(torch.optim.SGD(parameters))
            for (_, parameter), value in zip(parameters, before, strict=True):
                assert torch.equal(local(parameter.detach()), value)


def a_gradient_that_is_partial_is_refused_by_name(mesh):
    parameter = torch.nn.Parameter(distribute_tensor(torch.zeros(4, 2), mesh, [Replicate(), Replicate()]))
    parameter.grad = DTensor.from_local(torch.ones(4, 2), mesh, [Partial(), Replicate()])
    with pytest.raises(ValueError, match=r"the gradient of head .*Partial.*redistribute"):
        scaler().step(torch.optim.SGD([("head", parameter)]))
    assert parameter.grad._local_tensor.eq(1).all()


def a_process_group_agrees_on_plain_gradients(mesh):
    size = dist.get_world_size()
    for sharded in False, True:
        parameter, one = torch.nn.Parameter(torch.zeros(3)), scaler(process_group=dist.group.WORLD, sharded=sharded)
        optimizer = torch.optim.SGD([("w", parameter)], lr=0.5)
        parameter.grad = torch.full((3,), 4.0)
        assert one.unscale_(optimizer, max_norm=100.0).item() == pytest.approx(math.sqrt(3 * (size if sharded else 1)))
        one.step(optimizer)
        one.update()
        assert not one.step_was_skipped
        parameter.grad = torch.tensor([4.0, NAN if dist.get_rank() == size - 1 else 4.0, 4.0])
        one.step(optimizer)
        one.update()
        assert one.step_was_skipped and one.get_scale() == 2.0
        assert one.report.bad == ({"w": 1} if dist.get_rank() == size - 1 else {})


def without_a_group_no_rank_waits_for_another(mesh):
    if dist.get_rank() == 0:
        parameter = torch.nn.Parameter(torch.zeros(3))
        parameter.grad = torch.ones(3)
        one = scaler()
        one.step(torch.optim.SGD([parameter]))
        assert isinstance(one.report, Report) and not one.step_was_skipped


CLAIMS = [
    gradients_are_unscaled_and_clipped_by_the_norm_of_all,
    one_bad_element_anywhere_stops_all,
    fused_optimizers_agree,
    a_rank_without_gradients_does_not_keep_the_others_waiting,
    what_one_rank_refuses_ends_the_step_of_all,
    a_rank_with_another_scale_or_other_rules_is_refused_by_all_of_them,
    a_gradient_that_is_partial_is_refused_by_name,
    a_process_group_agrees_on_plain_gradients,
    without_a_group_no_rank_waits_for_another,
]


def ranked(rank, size, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    for claim in CLAIMS:
        try:
            claim(mesh)
        except BaseException as error:
            raise AssertionError(f"rank {rank} of {size}: {claim.__name__}") from error
    dist.barrier()  # a rank that leaves while another still talks ends that one
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [4])
def test_ranks_agree(tmp_path, size):
    """On each claim above, in one start of the processes."""
    torch.multiprocessing.spawn(ranked, (size, tmp_path / "group"), nprocs=size)
