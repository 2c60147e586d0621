"""Greedy ids of the Llama that make_tiny_model.py writes: an independent program, in float64 and plain Python."""

import json
import math
import operator
import pathlib
import re
import struct


class ReferenceLlama:
    def __init__(self, folder: pathlib.Path):
        self.config = json.loads((folder / "config.json").read_text())
        tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        self.vocabulary = tokenizer["model"]["vocab"]
        self.ranks = {tuple(merge.split()): rank for rank, merge in enumerate(tokenizer["model"]["merges"])}
        content = (folder / "model.safetensors").read_bytes()
        size, = struct.unpack_from("<Q", content)
        self.tensors = {}
        for name, tensor in json.loads(content[8:8 + size]).items():
            begin, end = tensor["data_offsets"]
            values = struct.unpack_from(f"<{(end - begin) // 4}f", content, 8 + size + begin)
            width = tensor["shape"][-1]
            rows = [values[at:at + width] for at in range(0, len(values), width)]
            self.tensors[name] = rows if len(tensor["shape"]) == 2 else rows[0]

    def encode(self, text: str) -> list[int]:
        """The ids of words of ASCII letters with one space between them, behind BOS."""
        ids = [self.config["bos_token_id"]]
        for word in re.findall(r" ?[A-Za-z]+", text):
            pieces = list(word.replace(" ", "Ġ"))
            while pairs := [pair for pair in zip(pieces, pieces[1:]) if pair in self.ranks]:
                at = list(zip(pieces, pieces[1:])).index(min(pairs, key=self.ranks.get))
                pieces[at:at + 2] = ["".join(pieces[at:at + 2])]
            ids += [self.vocabulary[piece] for piece in pieces]
        return ids

    def greedy(self, ids: list[int], most: int) -> tuple[list[int], float]:
        """`ids` and those after them, `most` in all, and the least lead of a chosen id's logit over the others."""
        ids, keys, lead = list(ids), {}, math.inf
        for position in range(most - 1):
            logits = self.logits(ids[position], position, keys)
            if position + 1 < len(ids):
                continue
            second, first = sorted(logits)[-2:]
            lead = min(lead, first - second)
            ids.append(logits.index(first))
        return ids, lead

    def logits(self, id: int, position: int, cache: dict) -> list[float]:
        """`cache`: keys and values of the positions before, by layer, to which this one's are added."""
        hidden = self.tensors["model.embed_tokens.weight"][id]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            x = self.normed(hidden, prefix + "input_layernorm")
            queries, keys, values = (self.heads(self.product(prefix + f"self_attn.{name}_proj", x)) for name in "qkv")
            past = cache.setdefault(layer, [])
            past.append(([self.rotated(key, position) for key in keys], values))
            group = len(queries) // len(keys)
            mixed = []
            for head, query in enumerate(queries):
                query = self.rotated(query, position)
                scores = [dot(query, seen[head // group]) / math.sqrt(len(query)) for seen, _ in past]
                weights = [math.exp(score - max(scores)) for score in scores]
                rows = [seen[head // group] for _, seen in past]
                mixed += [dot(weights, column) / sum(weights) for column in zip(*rows)]
            hidden = added(hidden, self.product(prefix + "self_attn.o_proj", mixed))
            x = self.normed(hidden, prefix + "post_attention_layernorm")
            gates, ups = (self.product(prefix + f"mlp.{name}_proj", x) for name in ("gate", "up"))
            inner = [gate / (1 + math.exp(-gate)) * up for gate, up in zip(gates, ups)]
            hidden = added(hidden, self.product(prefix + "mlp.down_proj", inner))
        return self.product("lm_head", self.normed(hidden, "model.norm"))

    def product(self, name: str, x) -> list[float]:
        return [dot(row, x) for row in self.tensors[name + ".weight"]]

    def normed(self, x, name: str) -> list[float]:
        scale = 1 / math.sqrt(dot(x, x) / len(x) + self.config["rms_norm_eps"])
        return [value * scale * weight for value, weight in zip(x, self.tensors[name + ".weight"])]

    def heads(self, x) -> list[list[float]]:
        size = self.config["head_dim"]
        return [x[at:at + size] for at in range(0, len(x), size)]

    def rotated(self, x, position: int) -> list[float]:
        half = len(x) // 2
        angles = [position * self.config["rope_theta"] ** (-i / half) for i in range(half)]
        return ([a * math.cos(angle) - b * math.sin(angle) for a, b, angle in zip(x[:half], x[half:], angles)] +
                [b * math.cos(angle) + a * math.sin(angle) for a, b, angle in zip(x[:half], x[half:], angles)])


def dot(a, b) -> float:
    return sum(map(operator.mul, a, b))


def added(a, b) -> list[float]:
    return list(map(operator.add, a, b))
