# SPDX-License-Identifier: MIT
"""Overflows of the backward pass, each with the module where it happened: `plants` and `overflows` yield them.

The nets are small: a backward pass takes about 2 ms.
"""

import itertools
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

WIDTH, HEADS, CLASSES, BATCH = 16, 2, 8, 4
VOCABULARY, LENGTH, PADDING = 32, 8, 0


class Case(NamedTuple):
    net: str
    kind: str
    module: str  # the module where the overflow happened
    gradients: list[tuple[str, torch.Tensor]]  # with the names of the parameters, in the model's order
    model: nn.Module
    loss: torch.Tensor  # with the graph of the backward pass


def is_right(case, parameter):
    """Returns whether the parameter with this name is in the module where the overflow happened."""
    own = case.model.get_submodule(case.module).parameters()
    return any(each is case.model.get_parameter(parameter) for each in own)


# ---- the nets ----


def mlp():
    hidden = [layer for _ in range(5) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, CLASSES))


def conv_layer(channels, out, kernel=3, stride=1):
    return nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out)


def conv_net():
    channels = [3, 8, 8, 16, 16, 16]
    layers = [(*conv_layer(*pair), nn.ReLU()) for pair in itertools.pairwise(channels)]
    return nn.Sequential(*itertools.chain(*layers), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))


class ResidualBlock(nn.Module):
    """torchvision's BasicBlock: its ReLU writes in place, and its shortcut is registered last."""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1, self.bn1 = conv_layer(channels, out, stride=stride)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = conv_layer(out, out)
        self.downsample = None if channels == out else nn.Sequential(*conv_layer(channels, out, 1, stride))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


def resnet():
    blocks = [ResidualBlock(8, 8, 1), ResidualBlock(8, 16, 2), ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2)]
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)
    return nn.Sequential(*conv_layer(3, 8), nn.ReLU(inplace=True), *blocks, *end)


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, PADDING)
        self.layers = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x)[0])
        return self.head(x[:, -1])


class Encoder(nn.Module):
    """Layers of torch, which register both norms last."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, PADDING)
        layers = (nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.0, batch_first=True) for _ in range(3))
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids):
        return self.head(self.layers(self.tokens(ids)).mean(1))


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(WIDTH, 3 * WIDTH), "c_proj": nn.Linear(WIDTH, WIDTH)})
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def attention(self, x):
        parts = self.attn["c_attn"](x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.attn["c_proj"](scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """GPT-2 in its shape. If tied, the head has the weight of the tokens, which is the model's first parameter."""

    def __init__(self, tied):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(GptBlock() for _ in range(3)))
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(LENGTH))
        return self.head(self.ln(self.blocks(x))).flatten(0, 1)


def vectors():
    return torch.randn(BATCH, WIDTH), torch.randint(CLASSES, (BATCH,))


def images():
    return torch.randn(BATCH, 3, 8, 8), torch.randint(CLASSES, (BATCH,))


def texts():
    """Returns texts that begin with padding, and a class of each."""
    ids = torch.randint(1, VOCABULARY, (BATCH, LENGTH))
    ids[:, :2] = PADDING
    return ids, torch.randint(CLASSES, (BATCH,))


def tokens():
    """Returns texts, and the next token of each token."""
    ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    return ids[:, :-1], ids[:, 1:].flatten()


NETS = {
    "mlp": (mlp, vectors),
    "conv": (conv_net, images),
    "resnet": (resnet, images),
    "gru": (Gru, texts),
    "encoder": (Encoder, texts),
    "gpt": (partial(Gpt, tied=False), tokens),
    "gpt tied": (partial(Gpt, tied=True), tokens),
}


def model_and_batch(net, seed):
    torch.manual_seed(seed)
    make_model, make_batch = NETS[net]
    return make_model(), *make_batch()


# ---- a net that overflows where it is told to ----


class Overflow(torch.autograd.Function):
    """Returns its input; in the backward pass, Inf."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return torch.full_like(gradient, torch.inf)


class Net(nn.Module):
    """Blocks, registered in a mixed order. The gradient of the output of block `bad` is Inf."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleDict({str(i): Block() for i in (3, 0, 5, 1, 4, 2)})
        self.bad = None

    def forward(self, x):
        for i in range(len(self.blocks)):
            x = self.run(self.blocks[str(i)], x)
            x = Overflow.apply(x) if i == self.bad else x
        return x

    def run(self, block, x):
        return block(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.outer(self.inner(x).tanh())


# ---- gradients in the order of the backward pass ----


def watched_modules(model):
    """Returns the modules with parameters by name. Attention counts as one: it does not call its out_proj."""
    modules = {}
    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)) and not any(name.startswith(f"{each}.") for each in modules):
            modules[name] = module
    return modules


class Watch:
    """Checks the gradients of outputs and parameters at the moment when the backward pass makes them.

    first_bad: the module of the first gradient with Inf or NaN
    plant: (module, function): the function changes the gradient of the module's output
    """

    def __init__(self, model):
        self.first_bad, self.plant = None, (None, None)
        for name, module in watched_modules(model).items():
            module.register_forward_hook(partial(self._add_hooks, name))

    def _add_hooks(self, name, module, inputs, output):
        output = output[0] if isinstance(output, tuple) else output
        output.register_hook(partial(self._output_gradient, name))
        nodes, seen = [output.grad_fn], {x.grad_fn for x in inputs if isinstance(x, torch.Tensor)}
        while nodes:
            node = nodes.pop()
            following = [each for each, _ in node.next_functions if each is not None and each not in seen]
            of_parameter = [type(each).__name__ == "AccumulateGrad" for each, _ in node.next_functions]
            if any(of_parameter):  # a hook of a tied weight sees only the sum of both gradients
                node.register_hook(partial(self._parameter_gradients, name, of_parameter))
            seen.update(following)
            nodes += following

    def _output_gradient(self, name, gradient):
        module, function = self.plant
        changed = function(gradient) if name == module else gradient
        self._see(name, changed)
        return changed

    def _parameter_gradients(self, name, of_parameter, gradients, _):
        for gradient in itertools.compress(gradients, of_parameter):
            self._see(name, gradient)

    def _see(self, name, gradient):
        if self.first_bad is None and gradient is not None and not gradient.isfinite().all():
            self.first_bad = name


def gradients_of(model):
    return [(name, p.grad) for name, p in model.named_parameters()]


def are_finite(model):
    return all(gradient.isfinite().all() for _, gradient in gradients_of(model))


# ---- the cases ----


def first_element(gradient):
    changed = gradient.clone(memory_format=torch.contiguous_format)
    changed.view(-1)[0] = torch.inf
    return changed


PLANTS = {
    "Inf everywhere": lambda gradient: torch.full_like(gradient, torch.inf),
    "one Inf": first_element,
    "0 * Inf": lambda gradient: gradient * 0 * torch.inf,
}


def plants(every=1):
    """Yields the planted overflows, or one of `every` so many: each kind at the output of each module of each net.

    One Inf at padding reaches no parameter: it is not a case.
    """
    outputs = [(net, module) for net in NETS for module in watched_modules(NETS[net][0]())]
    for (net, module), kind in itertools.islice(itertools.product(outputs, PLANTS), 0, None, every):
        model, inputs, targets = model_and_batch(net, 0)
        watch = Watch(model)
        watch.plant = module, PLANTS[kind]
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        assert watch.first_bad == module
        if not are_finite(model):
            yield Case(net, kind, module, gradients_of(model), model, loss)


SEEDS = {"resnet": 41, "gru": 41, "encoder": 41, "gpt": 41, "gpt tied": 40}  # how many overflows of float16
KINDS = {  # in turn: the largest factor of a weight, and a factor of the first scale that overflows
    "weights as made": (1, 1),
    "larger weights": (8, 1),
    "larger weights, twice the scale": (8, 2),
}


def overflows(every=1):
    """Yields overflows of float16, or one of `every` so many: the scale is doubled until a gradient is Inf or NaN."""
    runs = [(net, seed) for net, count in SEEDS.items() for seed in range(count)]
    for net, seed in runs[::every]:
        model, inputs, targets = model_and_batch(net, seed)
        kind = list(KINDS)[seed % len(KINDS)]
        largest_factor, scale_factor = KINDS[kind]
        enlarge_weights(model, largest_factor)
        watch, scale, loss = Watch(model), 2.0**4, None
        with torch.autocast("cpu", torch.float16):
            unscaled = cross_entropy(model(inputs).float(), targets)
        while loss is None or are_finite(model):
            scale *= 2
            loss = backward(model, watch, unscaled * scale)
        if scale_factor != 1:
            loss = backward(model, watch, unscaled * scale * scale_factor)
        yield Case(net, kind, watch.first_bad, gradients_of(model), model, loss)


@torch.no_grad()
def enlarge_weights(model, largest_factor):
    """Multiplies each weight by a random factor. With weights as made, most overflows happen in the head."""
    for p in model.parameters():
        if p.ndim > 1:
            p *= largest_factor ** torch.rand(())


def backward(model, watch, loss):
    """Returns the loss, after it has made new gradients."""
    watch.first_bad = None
    model.zero_grad()
    loss.backward(retain_graph=True)
    return loss


# ---- one call of one module goes wrong, for traces ----


def called_modules(model, inputs):
    """Returns the calls of modules that call no others: their names, and whether the input needs a gradient."""
    calls, hooks = [], []
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) or not list(module.children()):
            hooks.append(module.register_forward_hook(partial(_add_call, calls, name)))
    model(inputs)
    for hook in hooks:
        hook.remove()
    return calls


def _add_call(calls, name, module, inputs, output):
    calls.append((name, inputs[0].requires_grad))


class Planted(torch.autograd.Function):
    """Returns a planted copy of its input, and passes a planted gradient on."""

    @staticmethod
    def forward(ctx, x, plant, plant_gradient):
        ctx.plant = plant_gradient
        return plant(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.plant(gradient), None, None


def fail(module, call, plant, direction):
    """Makes a call of the module, the first is 1, return a planted output or give its input a planted gradient."""
    forward, count = module.forward, itertools.count(1)

    def failing(x, *args, **named):
        if next(count) != call:
            return forward(x, *args, **named)
        if direction == "backward":
            replaced = Planted.apply(x, torch.clone, plant)
            args = [replaced if each is x else each for each in args]  # attention gets one tensor three times
            return forward(replaced, *args, **{name: replaced if each is x else each for name, each in named.items()})
        output = forward(x, *args, **named)
        first, *others = output if isinstance(output, tuple) else (output,)
        first = Planted.apply(first, plant, torch.clone)
        return (first, *others) if isinstance(output, tuple) else first

    module.forward = failing


def failures(direction, every=1):
    """Yields (name, call, model, inputs, targets) for each kind of Inf or NaN in each call of a module, or a part."""
    runs = []
    for net in NETS:
        model, inputs, _ = model_and_batch(net, 0)
        counts = {}
        for name, needs_grad in called_modules(model, inputs):
            counts[name] = counts.get(name, 0) + 1
            if direction == "forward" or needs_grad:
                runs += [(net, name, counts[name], kind) for kind in PLANTS]
    for net, name, call, kind in runs[::every]:
        model, inputs, targets = model_and_batch(net, 0)
        fail(model.get_submodule(name), call, PLANTS[kind], direction)
        yield (net, kind, name, call), model, inputs, targets
