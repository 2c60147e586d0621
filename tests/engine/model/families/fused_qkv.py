"""The parts that BLOOM, Falcon and GPT-NeoX share: blocks of LayerNorms and four linear layers. The first linear
layer holds the queries, the keys and the values of each KV head.
"""

import torch

import reference_decoder as reference


def shapes(prefix, names, layers, width, inner, heads, kv_heads, biases):
    """The shapes of the tensors of all layers. `names` maps a part's name in reference.Layer to its name in the file."""
    dim = width // heads
    of_part = {"qkv": (width + 2 * kv_heads * dim, width), "o": (width, width), "up": (inner, width),
               "down": (width, inner)}
    found = {}
    for i in range(layers):
        for part, name in names.items():
            shape = of_part.get(part, (width,))
            found[f"{prefix}{i}.{name}.weight"] = list(shape)
            if biases or part.endswith("norm"):
                found[f"{prefix}{i}.{name}.bias"] = [shape[0]]
    return found


def stacked(tensor, heads, kv_heads):
    """Reorders the rows: first all queries, then all keys, then all values."""
    dim = len(tensor) // (heads + 2 * kv_heads)
    rows = tensor.view(kv_heads, heads // kv_heads + 2, dim, *tensor.shape[1:])
    return torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in (rows[:, :-2], rows[:, -2], rows[:, -1])])


def layer(tensors, prefix, names, heads, kv_heads):
    """Returns one reference.Layer. A feed-forward network without a norm of its own uses the norm of attention."""
    parts = {}
    for part, name in names.items():
        weight, bias = tensors[f"{prefix}{name}.weight"], tensors.get(f"{prefix}{name}.bias")
        if part == "qkv":
            weight, bias = (None if t is None else stacked(t, heads, kv_heads) for t in (weight, bias))
        parts.update({part: (weight, bias)} if part.endswith("norm") else {part: weight, f"{part}_bias": bias})
    parts.setdefault("mlp_norm", parts["attention_norm"])
    return reference.Layer(**parts)
