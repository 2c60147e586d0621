#!/usr/bin/env python3
"""Writes testdata/fp8_{tensor,channel,block}/ and testdata/fp8_goldens.json: a random Llama with e4m3 weights in
the three layouts of scales, and its logits. The last case has an fp8 KV cache too, with scales that are no powers
of two and at which the largest keys and values saturate.

    python3 make_fp8_goldens.py        needs numpy

Codes, scales, the file and the model are written here, from the definitions of e4m3, safetensors and Llama; only
numpy computes, in float64. `bound` is found as in reference_decoder.py. Quire also rounds the product of a code
and its scale to float32, so a product of a quantised matrix counts two terms for each column.
"""

import base64
import json
import math
import pathlib

import numpy

UNIT_ROUNDOFF = 2.0**-24
LAMBDA = 6.0
RUNS = 24
# Blocks of 128 x 128 at the edges are not whole.
CONFIG = dict(vocab_size=32, hidden_size=192, intermediate_size=192, num_hidden_layers=1,
              num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
              rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False)
HEADS, KV_HEADS, DIM = 4, 2, 16
LAYER = "model.layers.0."
SHAPES = {
    "model.embed_tokens": (32, 192), "model.norm": (192,), "lm_head": (32, 192),
    LAYER + "input_layernorm": (192,), LAYER + "post_attention_layernorm": (192,),
    LAYER + "self_attn.q_proj": (64, 192), LAYER + "self_attn.k_proj": (32, 192),
    LAYER + "self_attn.v_proj": (32, 192), LAYER + "self_attn.o_proj": (192, 64),
    LAYER + "mlp.gate_proj": (192, 192), LAYER + "mlp.up_proj": (192, 192), LAYER + "mlp.down_proj": (192, 192),
}
NUM_TOKENS = 70
RNG = numpy.random.default_rng(20261125)


def compressed_tensors(strategy: str) -> dict:
    activations = dict(num_bits=8, type="float", symmetric=True, dynamic=True, strategy="token")
    weights = dict(num_bits=8, type="float", symmetric=True, dynamic=False, strategy=strategy, group_size=None,
                   block_structure=None, actorder=None, observer="minmax", observer_kwargs={})
    group = dict(targets=["Linear"], weights=weights, input_activations=activations, output_activations=None)
    return dict(quant_method="compressed-tensors", format="float-quantized", quantization_status="compressed",
                config_groups={"group_0": group}, ignore=["lm_head"], kv_cache_scheme=None, sparsity_config={},
                transform_config={}, global_compression_ratio=None, version="0.12.2")


FP8 = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[128, 128],
           modules_to_not_convert=["lm_head", "model.norm"])
QUANTIZATION = {"tensor": compressed_tensors("tensor"), "channel": compressed_tensors("channel"), "block": FP8}


def number_of(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -magnitude if code & 128 else magnitude


MAGNITUDES = numpy.array([number_of(code) for code in range(127)])  # the last code is NaN
LARGEST = MAGNITUDES[-1]


def nearest_codes(values: numpy.ndarray) -> numpy.ndarray:
    above = numpy.clip(numpy.searchsorted(MAGNITUDES, abs(values)), 1, 126)
    is_lower = abs(values) - MAGNITUDES[above - 1] < MAGNITUDES[above] - abs(values)
    return (numpy.where(is_lower, above - 1, above) | numpy.where(values < 0, 128, 0)).astype(numpy.uint8)


def numbers_of(codes: numpy.ndarray) -> numpy.ndarray:
    return MAGNITUDES[codes & 127] * numpy.where(codes & 128, -1.0, 1.0)


def in_type(values, kind: str):
    """Returns the bytes of the values in a type of safetensors, and the values that they then have."""
    if kind == "BF16":  # cut off, which is as good as rounding for numbers that are random
        bits = (numpy.asarray(values, numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)
        return bits.tobytes(), (bits.astype(numpy.uint32) << 16).view(numpy.float32).astype(numpy.float64)
    stored = numpy.asarray(values, {"F32": numpy.float32, "F16": numpy.float16}[kind])
    return stored.tobytes(), stored.astype(numpy.float64)


def random_weight(shape) -> numpy.ndarray:
    """Returns values whose rows and blocks of columns differ in scale."""
    if len(shape) == 1:
        return RNG.uniform(0.5, 1.5, shape)
    scales = RNG.uniform(0.25, 2.0, (shape[0], 1)) * numpy.repeat(RNG.uniform(0.5, 2.0, 8), 64)[None, :shape[1]]
    return RNG.normal(0, 1 / math.sqrt(shape[1]), shape) * scales


def largest_of_blocks(weight: numpy.ndarray) -> numpy.ndarray:
    rows, cols = (-(-size // 128) for size in weight.shape)
    return numpy.array([[abs(weight[128 * r:128 * r + 128, 128 * c:128 * c + 128]).max() for c in range(cols)]
                        for r in range(rows)])


def scales_of(weight: numpy.ndarray, layout: str, name: str):
    """Returns the scales, their shape in the file, and their type. All shapes and types are used."""
    if layout == "tensor":
        of_attention = "self_attn" in name
        return abs(weight).max() / LARGEST, [] if of_attention else [1], "F32" if of_attention else "BF16"
    if layout == "channel":
        is_head = name == "lm_head"
        largest = abs(weight).max(1, keepdims=True)
        return largest / LARGEST, [len(weight)] if is_head else [len(weight), 1], "F16" if is_head else "BF16"
    blocks = largest_of_blocks(weight)
    return blocks / LARGEST, list(blocks.shape), "F32"


def repeated(scales: numpy.ndarray, layout: str, shape) -> numpy.ndarray:
    """Returns the scale of each weight."""
    if layout == "block":
        return scales.repeat(128, 0).repeat(128, 1)[:shape[0], :shape[1]]
    return numpy.broadcast_to(scales.reshape(-1, 1), shape)


def write_safetensors(path: pathlib.Path, tensors: dict):
    """Writes {name: (type, shape, bytes)}."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_model(directory: pathlib.Path, layout: str, weights: dict):
    """Returns the weights of the file, and the names of those in e4m3."""
    tensors, state, quantised = {}, {}, set()
    for name, weight in weights.items():
        key = name + ".weight"
        if not (LAYER in name and weight.ndim == 2 or layout == "channel" and name == "lm_head"):
            kind = "F32" if weight.ndim == 1 else "BF16"
            content, state[name] = in_type(weight, kind)
            tensors[key] = (kind, list(weight.shape), content)
            continue
        scales, shape, kind = scales_of(weight, layout, name)
        content, scales = in_type(scales, kind)
        each = repeated(numpy.atleast_1d(scales), layout, weight.shape)
        codes = nearest_codes(weight / each)
        state[name] = numbers_of(codes) * each
        quantised.add(name)
        tensors[key] = ("F8_E4M3", list(weight.shape), codes.tobytes())
        tensors[key + ("_scale_inv" if layout == "block" else "_scale")] = (kind, shape, content)
        if layout == "tensor":
            tensors[name + ".input_scale"] = ("F32", [1], in_type([0.25], "F32")[0])
    if layout == "tensor":
        for scale in ("k_scale", "v_scale"):
            tensors[LAYER + "self_attn." + scale] = ("F32", [], in_type(0.125, "F32")[0])
    directory.mkdir(exist_ok=True)
    write_safetensors(directory / "model.safetensors", tensors)
    config = {**CONFIG, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
              "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2,
              "quantization_config": QUANTIZATION[layout]}
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return state, quantised


def exact(x, _terms):
    return x


def rounding(seed: int):
    """Returns a function that perturbs x by the error that a sum of `terms` terms can have in float32."""
    rng = numpy.random.default_rng(seed)
    return lambda x, terms: x * (1 + LAMBDA * math.sqrt(terms) * UNIT_ROUNDOFF * rng.uniform(-1, 1, x.shape))


class Fp8Cache:
    """Rounds keys and values to e4m3 with a scale of each, and remembers the codes."""

    def __init__(self, k_scale: float, v_scale: float):
        self.scales, self.codes = (k_scale, v_scale), None

    def __call__(self, *kv):
        self.codes = [nearest_codes(x / scale) for x, scale in zip(kv, self.scales)]
        return [numbers_of(codes) * scale for codes, scale in zip(self.codes, self.scales)]


def exact_cache(*kv):
    return kv


def logits_of(state: dict, quantised: set, ids: list, rounded=exact, cache=exact_cache) -> numpy.ndarray:
    def norm(x, name):
        scaled = x / numpy.sqrt((x * x).mean(-1, keepdims=True) + CONFIG["rms_norm_eps"])
        return rounded(scaled * state[name], x.shape[-1] + 16)

    def linear(x, name):
        return rounded(x @ state[name].T, x.shape[-1] * (2 if name in quantised else 1) + 16)

    def rotated(x):  # [tokens, heads, DIM]; dimensions i and i + DIM / 2 are a pair
        angles = numpy.arange(len(ids))[:, None, None] * \
            CONFIG["rope_theta"] ** -(numpy.arange(0, DIM, 2) / DIM)[None, None, :]
        first, second = x[..., :DIM // 2], x[..., DIM // 2:]
        cos, sin = numpy.cos(angles), numpy.sin(angles)
        return rounded(numpy.concatenate([first * cos - second * sin, second * cos + first * sin], -1), 16)

    x = state["model.embed_tokens"][ids]
    normed = norm(x, LAYER + "input_layernorm")
    q = rotated(linear(normed, LAYER + "self_attn.q_proj").reshape(-1, HEADS, DIM))
    k, v = cache(rotated(linear(normed, LAYER + "self_attn.k_proj").reshape(-1, KV_HEADS, DIM)),
                 linear(normed, LAYER + "self_attn.v_proj").reshape(-1, KV_HEADS, DIM))
    k, v = (x.repeat(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = numpy.einsum("qhd,khd->hqk", q, k) / math.sqrt(DIM)
    scores[:, numpy.triu(numpy.ones((len(ids), len(ids)), bool), 1)] = -numpy.inf
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    attended = numpy.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v).reshape(len(ids), -1)
    # Scores over the dimensions, exponentials, and sums over positions.
    x = x + linear(rounded(attended, DIM + len(ids) + 64), LAYER + "self_attn.o_proj")
    normed = norm(x, LAYER + "post_attention_layernorm")
    gate, up = linear(normed, LAYER + "mlp.gate_proj"), linear(normed, LAYER + "mlp.up_proj")
    x = x + linear(rounded(gate / (1 + numpy.exp(-gate)) * up, 16), LAYER + "mlp.down_proj")
    return linear(norm(x, "model.norm"), "lm_head")


def with_fp8_cache(state: dict, quantised: set) -> dict:
    """Returns a case whose codes no rounding error changes, so that the bound is one on float32 alone."""
    rng = numpy.random.default_rng(20261126)
    while True:
        ids = [int(token) for token in rng.integers(0, CONFIG["vocab_size"], NUM_TOKENS)]
        kept = []
        logits_of(state, quantised, ids, cache=lambda *kv: kept.extend(kv) or kv)
        scales = [float(numpy.float32(0.9 * abs(x).max() / LARGEST)) for x in kept]
        cache = Fp8Cache(*scales)
        logits = logits_of(state, quantised, ids, cache=cache)
        codes, errors = cache.codes, []
        for seed in range(RUNS):
            errors.append(abs(logits_of(state, quantised, ids, rounding(seed), cache) - logits).max())
            if any((got != want).any() for got, want in zip(cache.codes, codes)):
                break
        else:
            bound = 2 * max(errors)
            top2 = numpy.sort(logits)[:, -2:]
            print(f"cache    bound {bound:.2e} smallest margin {(top2[:, 1] - top2[:, 0]).min():.2e} scales {scales} "
                  f"saturated {[int((x & 127 == 126).sum()) for x in codes]}")
            return {"directory": "fp8_tensor", "ids": ids, "k_scale": scales[0], "v_scale": scales[1], "bound": bound,
                    "logits": base64.b64encode(logits.astype(numpy.float32).tobytes()).decode()}


def main():
    data = pathlib.Path(__file__).parent / "testdata"
    weights = {name: random_weight(shape) for name, shape in SHAPES.items()}
    weights["model.embed_tokens"] *= math.sqrt(CONFIG["hidden_size"])
    ids = [int(token) for token in RNG.integers(0, CONFIG["vocab_size"], NUM_TOKENS)]
    cases = []
    for layout in QUANTIZATION:
        model = write_model(data / f"fp8_{layout}", layout, weights)
        logits = logits_of(*model, ids)
        bound = 2 * max(abs(logits_of(*model, ids, rounding(seed)) - logits).max() for seed in range(RUNS))
        cases.append({"directory": f"fp8_{layout}", "ids": ids, "bound": bound,
                      "logits": base64.b64encode(logits.astype(numpy.float32).tobytes()).decode()})
        top2 = numpy.sort(logits)[:, -2:]
        print(f"{layout:8} bound {bound:.2e} smallest margin {(top2[:, 1] - top2[:, 0]).min():.2e} "
              f"spread {logits.std():.2f}")
        if layout == "tensor":
            cache_case = with_fp8_cache(*model)
    (data / "fp8_goldens.json").write_text(json.dumps({"cases": cases, "cache_case": cache_case}, indent=0) + "\n")


if __name__ == "__main__":
    main()
