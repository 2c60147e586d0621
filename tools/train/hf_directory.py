"""Writes a trained decoder as a Hugging Face directory with llm-foundry's field and tensor names, and reads one."""

import json
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file

import bpe
from decoder import Decoder, DecoderConfig
from trainer import BEST

CONFIG = "config.json"
WEIGHTS = "model.safetensors"


def write_config(folder: pathlib.Path, config: DecoderConfig, max_seq_len: int) -> None:
    positions = ({"alibi": True, "alibi_bias_max": int(config.alibi_bias_max)} if config.positions == "alibi" else
                 {"alibi": False, "rope": True, "rope_theta": config.rope_theta, "rope_impl": "hf"})
    content = {
        "architectures": ["MPTForCausalLM"], "model_type": "mpt",
        "d_model": config.d_model, "n_heads": config.n_heads, "n_layers": config.n_layers,
        "expansion_ratio": config.expansion_ratio, "max_seq_len": max_seq_len, "vocab_size": config.vocab_size,
        "no_bias": True, "norm_type": "layernorm", "layer_norm_epsilon": config.layer_norm_epsilon,
        "learned_pos_emb": False, "logit_scale": None, "emb_pdrop": 0.0, "resid_pdrop": 0.0,
        "attn_config": {
            "attn_type": "grouped_query_attention", "kv_n_heads": config.kv_n_heads, **positions,
            "attn_impl": "torch", "attn_pdrop": 0.0, "clip_qkv": None, "qk_ln": False, "softmax_scale": None},
        "ffn_config": {"ffn_type": "mptmlp", "ffn_act_fn": {"name": "gelu", "approximate": "none"}},
        "tie_word_embeddings": True, "use_cache": True, "torch_dtype": "bfloat16",
        "bos_token_id": bpe.END_OF_TEXT_ID, "eos_token_id": bpe.END_OF_TEXT_ID}
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")


def read_config(folder: pathlib.Path) -> DecoderConfig:
    """The config of a directory that write_config() made."""
    content = json.loads((folder / CONFIG).read_text())
    attention = content["attn_config"]
    positions = ({"positions": "alibi", "alibi_bias_max": float(attention["alibi_bias_max"])} if attention["alibi"] else
                 {"positions": "rope", "rope_theta": attention["rope_theta"]})
    return DecoderConfig(content["vocab_size"], content["d_model"], content["n_heads"], attention["kv_n_heads"],
                         content["n_layers"], content["expansion_ratio"], **positions,
                         layer_norm_epsilon=content["layer_norm_epsilon"])


def export(run: pathlib.Path, folder: pathlib.Path) -> dict:
    """Writes the best weights of a run, in bfloat16, with all files needed to load them. Returns their step and loss."""
    best = torch.load(run / BEST, map_location="cpu", weights_only=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "history.csv"):
        shutil.copyfile(run / name, folder / name)
    generation = {"bos_token_id": bpe.END_OF_TEXT_ID, "eos_token_id": bpe.END_OF_TEXT_ID, "do_sample": True,
                  "temperature": 0.8, "top_p": 0.95}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    # transformers looks for this format name.
    save_file({name: weight.to(torch.bfloat16).contiguous() for name, weight in best["model"].items()},
              folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # save_file lets only the owner read it, and a server may be another user
    return {"step": best["step"], "validation_loss": best["validation_loss"]}


def load(folder: pathlib.Path) -> Decoder:
    """The decoder, with its bfloat16 weights widened to float32, in evaluation mode."""
    model = Decoder(read_config(folder))
    model.load_state_dict({name: weight.float() for name, weight in load_file(folder / WEIGHTS).items()})
    return model.eval()
