# SPDX-License-Identifier: MIT
"""Ranks with parts of the gradients come to one verdict and one norm: DTensors over meshes, and process groups."""

import math
import os
import random
import warnings

import pytest
import torch
import torch.distributed as dist
from conftest import make_step, scaler, sgd
from planted import WIDTH, Net
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from gradscaler import Event, Loss, Report, ReportKind, Want
from gradscaler.torch import _device, _ranks

INF, NAN = math.inf, math.nan
SHAPES = [(8, 6), (5,), (7, 3), (4,), (8, 6)]
PLACES = [[Shard(0), Shard(1)], [Replicate(), Shard(0)], [Shard(0), Replicate()]]


def whole():
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) * 8 for shape in SHAPES]


def spread(mesh):
    """Parameters that are spread in every way at a time, which torch's class refuses: one is plain, one over `tp`."""
    where = [*((mesh, place) for place in PLACES), (None, None), (mesh["tp"], [Shard(0)])]
    found = []
    for i, (gradient, (over, place)) in enumerate(zip(whole(), where, strict=True)):
        value = torch.zeros_like(gradient)
        if over is not None:
            value, gradient = (distribute_tensor(tensor, over, place) for tensor in (value, gradient))
        found.append((f"p{i}", torch.nn.Parameter(value)))
        found[-1][1].grad = gradient
    return found


def everyone(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def local(tensor):
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def is_last():
    return dist.get_rank() == dist.get_world_size() - 1


def gradients_are_unscaled_and_clipped_by_the_norm_of_all(mesh):
    parameters, one = spread(mesh), scaler()
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
            parameters, one = spread(mesh), scaler()
            part = local(parameters[i][1].grad)
            bad = part.numel() > 0
            if rank == dist.get_rank() and bad:
                part.view(-1)[-1] = NAN
            make_step(one, torch.optim.SGD(parameters))
            assert everyone(bad)[rank] is one.step_was_skipped
            assert one.get_scale() == (2.0 if one.step_was_skipped else 4.0)
            if one.step_was_skipped:
                assert one.report.bad == ({f"p{i}": 1} if rank == dist.get_rank() else {})


def fused_optimizers_agree(mesh):
    parameters, one = spread(mesh)[:3], scaler()
    if dist.get_rank() == 1:
        local(parameters[0][1].grad)[0, 0] = NAN
    make_step(one, torch.optim.AdamW(parameters, lr=0.5, fused=True))
    assert one.step_was_skipped and one.get_scale() == 2.0
    assert all(local(parameter.detach()).eq(0).all() for _, parameter in parameters)


def several_optimizers_step_on_all_ranks_or_on_none(mesh):
    """With spread, copied and plain gradients, over a mesh for each optimizer and over a group."""
    for bad in None, 0, 1:
        for sharded in False, True:
            one, found = (
                scaler(**({"process_group": dist.group.WORLD, "sharded": True} if sharded else {})),
                spread(mesh),
            )
            if sharded:
                found = [(name, torch.nn.Parameter(torch.zeros_like(local(p.detach())))) for name, p in found]
                for (_, p), (_, q) in zip(found, spread(mesh), strict=True):
                    p.grad = local(q.grad)
            optimizers = [torch.optim.SGD(found[:2], 1.0), torch.optim.AdamW(found[2:3], 1.0, fused=True)]
            optimizers.append(torch.optim.SGD(found[3:], 1.0))
            if bad is not None and is_last():
                local(found[bad][1].grad).view(-1)[-1:] = INF
            norm = one.step_all(optimizers, max_norm=1.0)
            one.update()
            assert len(set(everyone(norm.item()))) == 1
            moved = [bool(local(p.detach()).any()) for _, p in found if local(p).numel()]
            assert moved == [bad is None] * len(moved) and one.step_was_skipped == (bad is not None)
            assert one.get_scale() == (4.0 if bad is None else 2.0)
            if bad is None and not sharded:
                expected = torch.cat([gradient.flatten() for gradient in whole()]).double().norm() / 4
                assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
                moved = found[0][1].detach().full_tensor()
                torch.testing.assert_close(moved, -whole()[0] / 4 / (expected.float() + 1e-6))


def a_dummy_step_is_one_on_all_ranks_or_on_none(mesh):
    for touches in False, True:
        parameters, one = spread(mesh), scaler()
        optimizer = torch.optim.AdamW(parameters, lr=0.0)
        make_step(one, optimizer)
        before = bytes(one._state())
        for _, parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        if touches and is_last():
            print(one.get_scale())
        make_step(one, optimizer)
        assert (bytes(one._state()) == before) is not touches
        assert len(set(everyone(one._get_growth_tracker()))) == 1


def a_rank_without_gradients_does_not_keep_the_others_waiting(mesh):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        parameters, one = spread(mesh), scaler()
        if dist.get_rank() == 0:
            for _, parameter in parameters:
                parameter.grad = None
        make_step(one, torch.optim.SGD(parameters))
        assert not one.step_was_skipped and not one._state().events & Event.EMPTY
        for kind in (
            {},
            {"process_group": dist.group.WORLD, "sharded": True},
        ):  # only without any gradient is a step empty
            one = scaler(**kind)
            for has_gradients in (not is_last(), True) if kind else (True,):
                make_step(
                    one, sgd(torch.ones(3)) if has_gradients else torch.optim.SGD([torch.nn.Parameter(torch.ones(3))])
                )
                assert not one._state().events & Event.EMPTY
        assert not told
        for _ in range(2):  # the first is warned of
            make_step(one, torch.optim.SGD([torch.nn.Parameter(torch.ones(3))]))
            assert one._state().events & Event.EMPTY
            assert [str(each.message)[:26] for each in told] == ["this step had no gradients"]
        assert told[0].filename == __file__ or told[0].filename.endswith("conftest.py")


def the_last_bad_rank_and_its_parameter_are_named(mesh):
    for kind in {"sharded": True}, {}:
        one = scaler(process_group=dist.group.WORLD, **kind)
        make_step(
            one, sgd(**{name: [INF if dist.get_rank() == rank else 1.0] for name, rank in {"a": 2, "b": 1}.items()})
        )
        report = one.report
        assert (report.rank, report.last_rank) == (1, 2)
        if kind:
            assert (report.first_tensor, report.last_tensor) == (1, 0)
            named = '"a"' if dist.get_rank() == 2 else "tensor 0"  # other ranks have other parameters
            assert one.reason == f"skipped: 2 Inf, the last in {named} on rank 2"
        else:  # the first rank's copy counts, and it is finite
            assert one.reason == "skipped: overflow on rank 2"


def the_loss_of_a_rank_is_that_of_all(mesh):
    """As a later version gives it, and by a report that another program sends."""
    for copies in False, True:
        report = Report(kind=ReportKind.TENSORS, loss=(Loss.FINITE, Loss.NOT_FINITE)[is_last()])
        words = torch.frombuffer(bytearray(report), dtype=torch.uint8)
        joined = Report.from_bytes(_device.data(_ranks.joined(words, dist.group.WORLD, copies=copies)))
        assert joined.loss == Loss.NOT_FINITE and not joined.overflow


def a_bad_loss_of_one_rank_holds_on_all_if_all_agree(mesh):
    """Over a group or a mesh of all ranks; otherwise it is an overflow as any other."""
    line, world = mesh["tp"], dist.group.WORLD
    for options, over, holds in (
        ({"process_group": world}, None, True),
        ({"process_group": world, "sharded": True}, None, True),
        ({}, (mesh, [Shard(0), Replicate()]), True),
        ({}, (line, [Shard(0)]), False),
        ({"process_group": line.get_group(), "sharded": True}, None, False),
        ({}, None, False),
    ):
        for gradient in 1.0, NAN:
            one, tensor = scaler(hold_bad_loss=True, **options), torch.full((4,), gradient)
            tensor = tensor if over is None else DTensor.from_local(tensor, *over)
            parameter = torch.nn.Parameter(torch.zeros_like(tensor))
            parameter.grad = tensor
            one.scale(torch.tensor(NAN if is_last() else 1.0))
            make_step(one, torch.optim.SGD([parameter]))
            skips = holds or gradient != 1.0
            assert (one.step_was_skipped, one.loss_is_finite) == (skips, not is_last())
            assert bool(one._state().events & Event.BAD_LOSS) == holds
            assert one.get_scale() == (2.0 if skips and not holds else 4.0)
            assert one.report.loss_rank == (dist.get_world_size() - 1 if holds else None)
            if holds:
                assert one.reason == "skipped: the loss was not finite before it was scaled on rank 3"


def a_rank_with_another_scale_or_other_rules_is_refused_by_all_of_them(mesh):
    """Over meshes, where groups meet one after another, and over a group."""
    for different in {"init_scale": 8.0}, {"growth_interval": 7}:
        for kind in {}, {"process_group": dist.group.WORLD, "sharded": True}, {"process_group": dist.group.WORLD}:
            one = scaler(**(different if is_last() else {}), **kind)
            optimizer = sgd(w=torch.ones(3)) if kind else torch.optim.SGD(spread(mesh))
            with pytest.raises(RuntimeError, match=r"rank \d has another policy or state than the ranks before it"):
                one.step(optimizer)
            assert not any(local(p.detach()).any() for group in optimizer.param_groups for p in group["params"])


def a_gradient_that_is_partial_is_refused_by_name(mesh):
    parameter = torch.nn.Parameter(distribute_tensor(torch.zeros(4, 2), mesh, [Replicate(), Replicate()]))
    parameter.grad = DTensor.from_local(torch.ones(4, 2), mesh, [Partial(), Replicate()])
    with pytest.raises(ValueError, match=r"the gradient of head .*Partial.*redistribute"):
        scaler().step(torch.optim.SGD([("head", parameter)]))
    assert parameter.grad._local_tensor.eq(1).all()


def a_process_group_agrees_on_plain_gradients(mesh):
    for sharded in False, True:
        one, optimizer = scaler(process_group=dist.group.WORLD, sharded=sharded), sgd(w=torch.full((3,), 4.0))
        ranks = dist.get_world_size() if sharded else 1
        assert one.unscale_(optimizer, max_norm=100.0).item() == pytest.approx(math.sqrt(3 * ranks))
        make_step(one, optimizer)
        assert not one.step_was_skipped
        make_step(one, sgd(w=[4.0, NAN if is_last() else 4.0, 4.0]))
        assert one.step_was_skipped and one.get_scale() == 2.0
        assert one.report.bad == ({"w": 1} if is_last() else {})
        whose = (
            f"^Attempting to unscale FP16 gradients. {'The gradient of w' if is_last() else 'A gradient of rank 3'} is"
        )
        with pytest.raises((ValueError, RuntimeError), match=f"{whose} in float16: keep .* allow_fp16=True"):
            one.unscale_(sgd(w=torch.ones(3).half() if is_last() else torch.ones(3)))


def reports_are_merged_in_the_order_of_the_ranks(mesh):
    draw, fields = random.Random(10), {"kind": ReportKind.TENSORS, "measured": Want.NORM}
    reports = [Report(sum_squares=draw.random(), **fields) for _ in everyone(None)]
    expected = bytes(Report.merge(reports))
    mine = torch.frombuffer(bytearray(reports[dist.get_rank()]), dtype=torch.uint8)
    every = _ranks.gathered(mine, dist.group.WORLD).view(len(reports), _device.SIZE)
    assert bytes(_device.data(_device.merged(every))) == expected != bytes(Report.merge(reports[::-1]))


def without_a_group_no_rank_waits_for_another(mesh):
    if dist.get_rank() == 0:
        one = scaler()
        one.step(sgd(torch.ones(3)))
        assert isinstance(one.report, Report) and not one.step_was_skipped


def distributed(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def fully_sharded(model):
    for module in [*model.blocks.values(), model]:
        fully_shard(module)
    return model


def the_cause_is_named_on_all_ranks_and_the_model_can_be_moved_then(_):
    for wrap in distributed, fully_sharded:
        net = Net()
        model, one = wrap(net), scaler()
        one.name_parameters(model)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for net.bad in None, 1, 3, 5:
            optimizer.zero_grad()
            loss = model(torch.ones(2, WIDTH)).mean()
            one.scale(loss).backward()
            make_step(one, optimizer)
            where = f"blocks.{net.bad}.outer"
            assert net.bad is None or one.report.cause.startswith(where) and f'"{where}' in one.reason
        assert "this rank's loss was finite: look at the last layer" in one.reason
        assert dist.get_rank() or one.reason  # which waits for no other rank
        model.to(torch.float64)


CLAIMS = [gradients_are_unscaled_and_clipped_by_the_norm_of_all, one_bad_element_anywhere_stops_all]
CLAIMS += [several_optimizers_step_on_all_ranks_or_on_none, a_dummy_step_is_one_on_all_ranks_or_on_none]
CLAIMS += [fused_optimizers_agree, a_rank_without_gradients_does_not_keep_the_others_waiting]
CLAIMS += [the_cause_is_named_on_all_ranks_and_the_model_can_be_moved_then]
CLAIMS += [the_last_bad_rank_and_its_parameter_are_named, the_loss_of_a_rank_is_that_of_all]
CLAIMS += [a_bad_loss_of_one_rank_holds_on_all_if_all_agree]
CLAIMS += [a_rank_with_another_scale_or_other_rules_is_refused_by_all_of_them]
CLAIMS += [a_gradient_that_is_partial_is_refused_by_name, a_process_group_agrees_on_plain_gradients]
CLAIMS += [reports_are_merged_in_the_order_of_the_ranks, without_a_group_no_rank_waits_for_another]


def ranked(rank, size, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    for claim in CLAIMS:
        try:
            claim(mesh)
        except BaseException as error:
            raise AssertionError(f"rank {rank} of {size}: {claim.__name__}") from error
    dist.barrier()  # a rank that leaves while another still talks ends that one
    dist.destroy_process_group()
    os._exit(0)  # without the end of torch's threads, which rarely aborts a process that has passed


def test_four_ranks_agree(tmp_path):
    """On each claim above, in one start of the processes."""
    torch.multiprocessing.spawn(ranked, (4, tmp_path / "group"), nprocs=4)
