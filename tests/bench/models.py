# SPDX-License-Identifier: MIT
"""The models that are measured: GPT-2 and a smaller one, as lists of tensors, and in torch to be trained."""


def counts_of_gpt(d, blocks, words, places=0):
    """The elements of each parameter, in their order; without places the last layer has words of its own."""
    block = [d, d, 3 * d * d, 3 * d, d * d, d, d, d, 4 * d * d, 4 * d, 4 * d * d, d]
    return [words * d, *([places * d] if places else []), *block * blocks, d, d, *([] if places else [d * words])]


GPT2 = (768, 12, 50257, 1024)
SMALL_GPT = (640, 6, 4096)  # 34.8 million in all


def gpt(torch, d, blocks, words, places=0):
    """A module that returns the loss for rows of tokens."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.into, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.between, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x):
            heads = max(d // 64, 1)
            shape = (*x.shape[:2], heads, d // heads)
            parts = (each.view(shape).transpose(1, 2) for each in self.into(self.before(x)).chunk(3, -1))
            mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.between(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(words, d), nn.Embedding(places, d) if places else None
            self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(blocks))), nn.LayerNorm(d)
            self.last = None if places else nn.Linear(d, words, bias=False)

        def forward(self, tokens):
            x = self.words(tokens[:, :-1])
            x = self.norm(self.blocks(x + self.places.weight[: x.shape[1]] if places else x))
            logits = functional.linear(x, (self.last or self.words).weight)
            return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    model = Model()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    return model
