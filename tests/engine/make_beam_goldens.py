#!/usr/bin/env python3
"""Writes testdata/beam_goldens.json: what transformers' beam search finds with models/quire-stories, in float64.

    python3 make_beam_goldens.py [MODEL]        needs torch, transformers (made with 5.23.0), safetensors, tokenizers

For each case: the request, and of each answer its ids, its score and how the search ended. `margin` is the least
difference on which the result depends: between the beams that are kept and the next one, between an end that counts and
one that does not, between two answers, and between going on and stopping. A search by hand, which finds the margins,
must give the same answers. Cases whose margin is below MARGIN are left out, since float32 may decide them otherwise.
"""

import itertools
import json
import pathlib
import sys

import safetensors.torch
import tokenizers
import torch
import transformers

PROMPTS = ("Once upon a time", "The king of the forest was", "\"I have lost my red ball,\" said the", "One day, a little girl",
           "Tom and Anna went to the")
# width, max_new_tokens, length_penalty, early_stopping, num_return, more end tokens (texts of one token)
SETTINGS = ((2, 24, 1.0, False, 2, ()), (4, 20, 1.0, False, 4, (".",)), (4, 20, 0.0, True, 4, (".", ",")),
            (3, 24, 2.0, "never", 3, (".",)), (5, 16, -1.0, False, 5, (".", " and")), (8, 16, 0.6, True, 8, (",",)))
MARGIN = 2e-3


def load(folder):
    """The model with a K and V head for each query head, since transformers' MPT has no grouped heads."""
    config = json.loads((folder / "config.json").read_text())
    width, heads, kv_heads = config["d_model"], config["n_heads"], config["attn_config"]["kv_n_heads"]
    size = width // heads
    tensors = {name: tensor.double() for name, tensor in safetensors.torch.load_file(folder / "model.safetensors").items()}
    for name in [name for name in tensors if name.endswith("Wqkv.weight")]:
        q, k, v = tensors[name].split([width, kv_heads * size, kv_heads * size])
        repeated = [part.view(kv_heads, size, width).repeat_interleave(heads // kv_heads, 0).reshape(width, width)
                    for part in (k, v)]
        tensors[name] = torch.cat([q, *repeated])
    attn = {key: config["attn_config"][key] for key in ("alibi", "alibi_bias_max", "clip_qkv", "qk_ln", "softmax_scale")}
    model = transformers.MptForCausalLM(transformers.MptConfig(
        d_model=width, n_heads=heads, n_layers=config["n_layers"], expansion_ratio=config["expansion_ratio"],
        max_seq_len=config["max_seq_len"], vocab_size=config["vocab_size"],
        layer_norm_epsilon=config["layer_norm_epsilon"], no_bias=True, attn_config=attn, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, pad_token_id=0)).double().eval()
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def by_hand(model, prompt, width, length, penalty, early, ends):
    """Returns the answers, best first, as (score, ids), and the margin."""
    kept = width * max(2, 1 + len(ends))
    beams, answers, margin = [(0.0, [])], [], float("inf")
    for n in range(1, length + 1):
        with torch.no_grad():
            rows = model(torch.tensor([prompt + ids for _, ids in beams])).logits[:, -1].log_softmax(-1)
        everything = sorted(((total + row[id].item(), ids + [id]) for (total, ids), row in zip(beams, rows)
                             for id in row.topk(kept + 1).indices.tolist()), key=lambda one: -one[0])
        stops = lambda one: n == length or one[1][-1] in ends
        candidates = everything[:kept]
        going = [one for one in everything[:kept + 1] if not stops(one)]
        if n < length:
            margin = min(margin, going[width - 1][0] - going[width][0])
        if any(stops(one) for one in everything[width - 1:width + 1]):
            margin = min(margin, everything[width - 1][0] - everything[width][0])
        answers += [(total / n**penalty, ids) for total, ids in filter(stops, candidates[:width])]
        answers.sort(key=lambda one: -one[0])
        if len(answers) > width:
            margin = min(margin, answers[width - 1][0] - answers[width][0])
        answers, beams = answers[:width], [one for one in candidates if not stops(one)][:width]
        if n == length:
            break
        if len(answers) == width:
            best = beams[0][0] / (length if early == "never" and penalty > 0 else n)**penalty
            if early is True:
                break
            margin = min(margin, abs(best - answers[-1][0]))
            if best <= answers[-1][0]:
                break
    margin = min([margin] + [a[0] - b[0] for a, b in itertools.pairwise(answers)])
    return answers, margin


def main():
    here = pathlib.Path(__file__).resolve().parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here.parents[1] / "models/quire-stories"
    model, tokenizer = load(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    cases, of = [], 0
    for text, (width, length, penalty, early, num_return, stops) in itertools.product(PROMPTS, SETTINGS):
        of += 1
        prompt = tokenizer.encode(text).ids
        stop_ids = [tokenizer.encode(stop, add_special_tokens=False).ids[-1] for stop in stops]
        ends = sorted({0, *stop_ids})
        answers, margin = by_hand(model, prompt, width, length, penalty, early, ends)
        out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                             do_sample=False, num_beams=width, max_new_tokens=length, length_penalty=penalty,
                             early_stopping=early, num_return_sequences=num_return, eos_token_id=ends, pad_token_id=0,
                             output_scores=True, return_dict_in_generate=True)
        found = []
        for score, (by_hand_score, ids), sequence in zip(out.sequences_scores.tolist(), answers, out.sequences.tolist()):
            if margin >= MARGIN:
                assert sequence[len(prompt):len(prompt) + len(ids)] == ids, (text, width, sequence, ids)
                # transformers sums in float32
                assert abs(score - by_hand_score) < 2e-5 * max(1, abs(score)), (score, by_hand_score)
            found.append({"ids": ids, "score": score})
        if margin < MARGIN:
            continue
        cases.append({"prompt_ids": prompt, "width": width, "max_tokens": length, "length_penalty": penalty,
                      "early_stopping": {False: 0, True: 1, "never": 2}[early], "num_return": num_return,
                      "stop_token_ids": stop_ids, "margin": margin, "answers": found})
    print(f"{len(cases)} of {of} cases have a margin of at least {MARGIN}")
    target = here / "testdata/beam_goldens.json"
    target.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
