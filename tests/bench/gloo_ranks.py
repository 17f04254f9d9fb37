"""A rank of two that trains a small model by hand-made batches and leaves its weights."""

import os
import time

import torch
from small_models import CLASSIFIER, batch_of_ten_classes, ten_classes
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from bench.config import RunConfig, TimeLimits
from bench.training.step import Fp32, TrainingStep, make_optimizer
from bench.training.team import DdpTeam
from bench.training.window import driven
from bench.worker.removal import Exchange
from bench.worker.turns import Turns

RANKS, STEPS, ACCUMULATED, IMAGES = 2, 3, 2, 2


def batch(step, part, rank):
    """Two images that no other rank, part or step has."""
    return batch_of_ten_classes(100 * step + 10 * part + rank, IMAGES)


def train(rank, port, folder):
    """Run as one of two processes; weights, and what was seen on the way, go to `folder`."""
    os.environ |= {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"},
        **{"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)},
    }
    config = RunConfig(backend="cpu", devices=RANKS, seed=7)
    team = DdpTeam(config, os.environ)
    device = team.open_device(config)
    model = ten_classes()
    shared = team.wrap(model, device)
    exchanges = []

    def counted(state, bucket):
        exchanges.append(bucket.index())
        return allreduce_hook(state, bucket)

    shared.register_comm_hook(None, counted)
    step = TrainingStep(
        CLASSIFIER,
        shared,
        optimizer := make_optimizer(model, "sgd", fused=True),
        Fp32(),
        grad_accum_steps=ACCUMULATED,
        no_gradient_sync=team.no_gradient_sync,
    )
    for number in range(STEPS):
        parts = iter([batch(number, part, rank) for part in range(ACCUMULATED)])
        step(lambda parts=parts: next(parts))
    together = [parameter.detach().clone() for parameter in model.parameters()]
    seen = {"exchanges": len(exchanges), "seed": torch.initial_seed()}
    with team.no_gradient_sync():
        step(lambda: batch(99, 0, rank))
    apart = [parameter.detach().clone() for parameter in model.parameters()]
    turns, before = Turns("sync", 3, 2, settle=1), len(exchanges)

    def any_step():
        step(lambda: batch(100, 0, rank))

    driven(turns.taken(Exchange([optimizer]), device, time.perf_counter), any_step)
    seen |= {"exchanges in turns": len(exchanges) - before, "pairs": len(turns.without_s)}
    state = [optimizer.state[weight]["momentum_buffer"] for weight in model.parameters()]
    paces = team.plan(TimeLimits(10, 10**6, 10.0), [9.0, 0.5 + rank])
    few = team.plan(TimeLimits(10, 5, 10.0), [0.1])
    known = team.plan(TimeLimits(10, 5, 10.0, until_known=True), [0.1, 0.5 + rank])
    torch.save(
        {
            **seen,
            "together": together,
            "apart": apart,
            "put right": [tensor.detach() for tensor in (*model.parameters(), *state)],
            "ranks": team.gather(rank),
            "plan": (paces.iterations, paces.max_seconds, paces.ended_early),
            "few": (few.iterations, few.ended_early, few.most),
            "known": (known.iterations, known.most),
            "most": team.most(3 + rank),
        },
        f"{folder}/{rank}.pt",
    )
    team.close()
