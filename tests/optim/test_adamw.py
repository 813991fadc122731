"""optim::AdamW against torch.optim.AdamW: 20 steps, FP32 weights and state, the same gradients.

Tolerance: docs/numerics.md, section 2. One step from equal states differs by at most
4 ulp(update) + ulp(w) + |w|·2^-25, the ulp of an update being that of its terms before they cancel,
w the larger of the weight before and after.
Both run freely, so errors in exp_avg and exp_avg_sq live on, at most undiminished: after t steps an
update is off by at most t times as much. torch sums the norm of n numbers in FP32, so that its clip
factor is off by up to n·2^-24; what it is off in fact moves an update by at most twice that share.
"""

import os
import subprocess

import numpy as np
import pytest
import torch

SHAPES = [(37, 24), (50,)]  # a decayed matrix and a vector: adamw_trajectory.cc
STEPS = 20
LOSS_WEIGHT = 8.0  # a power of two: dividing by it is exact


def trajectory(weights, gradients, lr, betas, eps, weight_decay, clip):
    """Yields (norm, clip factor, weights) after each step of the C++ optimizer."""
    data = b"".join(t.numpy().tobytes() for group in [weights, *gradients] for t in group)
    args = [STEPS, lr, *betas, eps, weight_decay, clip, LOSS_WEIGHT]
    out = subprocess.run(
        [os.environ["HALFSTEP_ADAMW_TRAJECTORY"], *map(repr, args)],
        input=data, stdout=subprocess.PIPE, check=True,
    ).stdout
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    rows = np.frombuffer(out, np.float32).reshape(STEPS, 2 + sum(sizes))
    for row in rows:
        parts = np.split(row[2:], np.cumsum(sizes)[:-1])
        yield row[0], row[1], [torch.tensor(p).view(s) for p, s in zip(parts, SHAPES)]


def ulp(x):
    return torch.exp2(torch.floor(torch.log2(x.abs().clamp_min(2.0**-126))) - 23)


@pytest.mark.parametrize(
    "betas, eps, weight_decay, clip",
    [
        ((0.9, 0.95), 1e-8, 0.1, 0.0),
        ((0.9, 0.95), 1e-8, 0.1, 1.0),
        ((0.9, 0.999), 1e-3, 0.0, 1.0),
        ((0.0, 0.99), 1e-8, 0.01, 100.0),
    ],
)
def test_twenty_steps(betas, eps, weight_decay, clip):
    torch.manual_seed(0)
    lr = 1e-3
    start = [torch.randn(s) * 0.1 for s in SHAPES]
    sums = [[torch.randn(s) for s in SHAPES] for _ in range(STEPS)]
    params = [torch.nn.Parameter(w.clone()) for w in start]
    optimizer = torch.optim.AdamW(
        [
            {"params": params[:1], "weight_decay": weight_decay},
            {"params": params[1:], "weight_decay": 0.0},
        ],
        lr=lr, betas=betas, eps=eps, foreach=False,
    )
    allowed = [torch.zeros(s, dtype=torch.float64) for s in SHAPES]
    largest_gradient = [torch.zeros(s, dtype=torch.float64) for s in SHAPES]
    clipped = 0
    ours = trajectory(start, sums, lr, betas, eps, weight_decay, clip)
    for t, (gradient_sums, (norm, factor, weights)) in enumerate(zip(sums, ours), start=1):
        for p, g in zip(params, gradient_sums):
            p.grad = g / LOSS_WEIGHT
        torch_norm = torch.nn.utils.clip_grad_norm_(params, clip if clip > 0 else float("inf"))
        norm_error = abs(float(torch_norm) / float(norm) - 1)
        assert norm_error <= sum(p.numel() for p in params) * 2.0**-24
        clipped += factor < 1
        before = [p.detach().double() for p in params]
        optimizer.step()
        for i, p in enumerate(params):
            state = optimizer.state[p]
            largest_gradient[i] = torch.maximum(largest_gradient[i], p.grad.double().abs())
            d = (state["exp_avg_sq"].double() / (1 - betas[1] ** t)).sqrt() + eps
            update = lr / (1 - betas[0] ** t) * largest_gradient[i] / d
            w = p.detach().double()
            size = torch.maximum(w.abs(), before[i].abs())
            allowed[i] += t * 4 * ulp(update) + ulp(size) + size * 2.0**-25
            if factor < 1:
                allowed[i] += 2 * norm_error * update
            difference = (weights[i].double() - w).abs()
            assert bool((difference <= allowed[i]).all()), (t, i, (difference / allowed[i]).max())
    assert clipped == (STEPS if clip == 1.0 else 0)
    moved = max(float((p.detach() - w).abs().max()) for p, w in zip(params, start))
    assert moved > 3 * lr
