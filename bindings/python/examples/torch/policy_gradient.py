# SPDX-License-Identifier: MIT
"""Reinforcement learning in float16: a policy improves by clipped policy gradients, and the norm is watched.

    python policy_gradient.py

float16 has more mantissa bits than bfloat16, so log-probabilities of the sampling policy and of the learning policy
agree better; the price is a loss scale. Several updates use one batch of samples.
"""

import torch
from torch import nn

from gradscaler.torch import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STATES, ACTIONS, BATCH, CLIP = 8, 4, 512, 0.2


def train(scaler, rounds=20, updates=4):
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(STATES, 64), nn.Tanh(), nn.Linear(64, ACTIONS)).to(DEVICE)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    best = torch.arange(STATES, device=DEVICE) % ACTIONS  # the rewarded action of each state

    def log_probabilities(states, actions):
        with torch.autocast(DEVICE, dtype=torch.float16):
            logits = policy(nn.functional.one_hot(states, STATES).float())
        return torch.log_softmax(logits.float(), -1).gather(1, actions[:, None])[:, 0], logits

    for _ in range(rounds):
        states = torch.randint(STATES, (BATCH,), device=DEVICE)
        with torch.no_grad():
            _, logits = log_probabilities(states, states % ACTIONS)
            actions = torch.distributions.Categorical(logits=logits.float()).sample()
            before, _ = log_probabilities(states, actions)
        rewards = (actions == best[states]).float()
        advantages = rewards - rewards.mean()
        for _ in range(updates):
            optimizer.zero_grad()
            ratios = (log_probabilities(states, actions)[0] - before).exp()
            clipped = ratios.clamp(1 - CLIP, 1 + CLIP)
            loss = -torch.minimum(ratios * advantages, clipped * advantages).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    return policy, rewards.mean().item()


if __name__ == "__main__":
    scaler = GradScaler(DEVICE, growth_interval=20)
    _, reward = train(scaler)
    print(f"reward {reward:.4f}, scale {scaler.get_scale():g}")
