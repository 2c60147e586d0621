#!/usr/bin/env python3
"""Whether llama.cpp computes what quire-convert wrote: every tiny model of the families' goldens.

    python3 tests/convert/compare_with_llama_cpp.py [--bin build/release/bin]
                                               needs torch, transformers, safetensors, gguf, numpy, xllamacpp

Each becomes a Hugging Face directory with weights of a seed, that directory a GGUF file of F32, and llama.cpp's logits
of it have to agree with the float64 reference on the directory's own tensors, within the bound of its f16 K, V and
softmax (make_gguf_goldens.py). What quire-convert refuses is printed with the reason. Where it says that llama.cpp
cannot load a file, llama.cpp must fail to load the one that --for quire writes; where it warns that llama.cpp reads a
file otherwise, the answers must differ.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "engine" / "model"))
try:
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    import make_goldens
    from families import baichuan, bloom, falcon, gemma2, gemma3, gpt2, gpt_neox, llama4, llama_like, mpt, refact
    from make_gguf_goldens import CONTEXT, check_llama_cpp, choose_prompt
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

# Models that are left out, with the reason why a comparison would show nothing.
NOT_COMPARED = {"mixtral": "a rounding to f16 may choose other experts at every position"}


def cases():
    for name, changes in make_goldens.CASES.items():
        config = dict(make_goldens.BASE, architectures=["LlamaForCausalLM"]) | changes
        yield name, llama_like, config
    yield "qwen3_moe_plain", llama_like, dict(llama_like.QWEN3_MOE, norm_topk_prob=True)
    for family in (mpt, bloom, falcon, gpt_neox, llama_like, gemma2, gemma3, gpt2, baichuan, refact, llama4):
        for name, config in family.CASES.items():
            yield name, family, config


def write_directory(directory, config, tensors):
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    characters = ["\u010a", *(chr(code) for code in range(0x21, 0x7F))][:config.get("text_config", config)["vocab_size"]]
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    (directory / "tokenizer.json").write_text(json.dumps(dict(
        version="1.0", added_tokens=[], normalizer=None, pre_tokenizer=byte_level, post_processor=None, decoder=byte_level,
        model=dict(type="BPE", vocab={character: i for i, character in enumerate(characters)}, merges=[]))))


def llama_cpp_loads(path):
    """Tries in another process, which llama.cpp may end."""
    program = "import sys; sys.path.insert(0, sys.argv[1]); import llama_library; llama_library.Llama(sys.argv[2], 64, 1)"
    command = [sys.executable, "-c", program, str(pathlib.Path(__file__).parents[2] / "bench" / "peers"), str(path)]
    return subprocess.run(command, capture_output=True).returncode == 0


def differs(name, path, description, weights, ids):
    try:
        check_llama_cpp(name, path, description, weights, ids)
    except AssertionError:
        return True
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    arguments = parser.parse_args()
    agreed, refused, other = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        for name, family, config in cases():
            tensors = {key: make_goldens.fill(key, shape).double() for key, shape in family.shapes(config).items()}
            # All models get the same name, because llama.cpp expects certain tokens of a model that is called
            # phi3.
            directory, path = pathlib.Path(scratch, "model"), pathlib.Path(scratch, "model.gguf")
            write_directory(directory, config, tensors)
            command = [arguments.bin / "quire-convert", directory, path, "--type", "f32", "--overwrite"]
            run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if run.returncode != 0:
                refused.append(name)
                print(f"{name:10} refused: {run.stderr.strip()}")
                if "llama.cpp cannot load" in run.stderr:
                    subprocess.run([*command, "--for", "quire"], check=True, stdout=subprocess.DEVNULL)
                    assert not llama_cpp_loads(path), f"{name}: llama.cpp loads it"
                continue
            description, weights = family.describe(config, tensors, CONTEXT)
            scaling = config.get("rope_scaling", {}).get("rope_type")
            if scaling in ("linear", "llama3"):
                theirs = transformers.LlamaConfig(**config)
                description.rope_frequencies = ROPE_INIT_FUNCTIONS[scaling](theirs, "cpu")[0].double()
            if name in NOT_COMPARED:
                print(f"{name:10} not compared: {NOT_COMPARED[name]}")
                continue
            ids = choose_prompt(name, description, weights)[0]
            if "llama.cpp reads this file as" in run.stderr:
                other.append(name)
                print(f"{name:10} {run.stderr.strip()}")
                assert differs(name, path, description, weights, ids), f"{name}: llama.cpp reads it as Quire does"
                continue
            check_llama_cpp(name, path, description, weights, ids)
            agreed.append(name)
    print(f"{len(agreed)} agree, {len(refused)} refused, {len(other)} read otherwise, {len(NOT_COMPARED)} not compared")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
