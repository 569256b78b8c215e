"""The small nets of optimizer_forms.py: products, attention, convolutions."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_WIDTH, _HEADS = 256, 4


class Mlp(nn.Module):
    shape = (2, 32, _WIDTH)

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.first = nn.Linear(_WIDTH, _WIDTH)
        self.up = nn.Linear(_WIDTH, 2 * _WIDTH)
        self.down = nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x):
        between = x + self.first(self.norm(x))
        return between + self.down(functional.gelu(self.up(between)))


class Attention(nn.Module):
    shape = (2, 32, _WIDTH)

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.operands = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x):
        def of_heads(y):
            return y.reshape(*y.shape[:2], _HEADS, _WIDTH // _HEADS).transpose(1, 2)

        query, key, value = map(of_heads, self.operands(self.norm(x)).chunk(3, -1))
        scores = query @ key.transpose(-1, -2) * (_WIDTH // _HEADS) ** -0.5
        summed = torch.softmax(scores, -1) @ value
        return x + self.out(summed.transpose(1, 2).reshape(x.shape))


class Convolution(nn.Module):
    shape = (2, 16, 16, 16)

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(16, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.second = nn.Conv2d(32, 32, 3, padding=1, stride=2)
        self.third = nn.Conv2d(32, 64, 1)
        self.head = nn.Linear(64, 32)

    def forward(self, x):
        x = functional.relu(self.norm(self.first(x)))
        x = functional.relu(self.third(functional.relu(self.second(x))))
        return self.head(x.mean((2, 3)))


NETWORKS = {"mlp": Mlp, "attention": Attention, "convolution": Convolution}
