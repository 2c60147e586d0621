#!/usr/bin/env python3
"""Writes the seeds of every fuzz target into this folder, one folder a target, a file a seed.

    python3 tests/fuzz_seeds/make_seeds.py

All of them are made here, of nothing but this project's own words. The files are kept in the tree: what a fuzzer found
worth keeping may be added beside them, under a name of its own.
"""

import pathlib
import random
import struct

HERE = pathlib.Path(__file__).parent

# Texts that were, or might be, difficult for a tokenizer.
TEXTS = {
    "story": "Once upon a time, there was a little fox. It said: \"Hello!\" and ran away.\n",
    "contractions": "it's we'll I'VE don't 'tis o'clock's'",
    "numbers": "0 1 12 123 1234 1,234.5678 1e-45 0x1F \u0661\u0662\u0663 \u2167 \u00bd",
    "spaces": "a  b   c\t\td\n\n\ne \u00a0\u2003\u3000 f\u200b\u2028\u2029g \r\n ",
    "only_spaces": " " * 40 + "\n" * 10 + "\t" * 5,
    "one_letter": "a" * 200,
    "letters_and_spaces": "ab " * 60,
    "ligature_of_18": "\ufdfa",
    "ligature_and_quote": "\ufdfa\"",
    "ligatures": "\ufdfa\ufdfb x\ufdfay \ufb01\ufb03 \u0132 \u01c4 \u33a5",
    "marks": "e\u0301 a\u030a\u0323 \u0323\u0301 q" + "\u0300\u0316" * 20,
    "hangul": "\ud55c\uad6d \u1112\u1161\u11ab \u1100\u1161\u11a7 \u11a8",
    "kana": "\uff76\uff9e\uff77 \u30ab\u3099 \u304c\u30fc",
    "han": "\u5c0f\u72d0\u72f8\u8dd1\u4e86\u3002\u4eba\u4e0d\uf900\U0002f800",
    "emoji": "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f \U0001f44d\U0001f3fd",
    "right_to_left": "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u202eabc\u202c \u200f",
    "turkish": "\u0130I\u0131i \u1e9e\u00df \u03a3\u03c3\u03c2",
    "markers": "\u2581a\u2581\u2581b \u2581 \u2581\u2581\u2581",
    "byte_alphabet": "\u0120a \u010a\u0109 \u0100\u0143",
    "special": "<s>hi</s><unk><pad> <|im_start|>user\n<|im_end|> <0x41><0xFF>",
    "half_special": "<s <|im_ </ s> <<s>> <s></s",
    "controls": "\x00\x01\x07\x08\x0b\x0c\x1b\x7f \u0080\u009f \ufeff\ufffe\uffff",
    "code": "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; }  // sum\n\tif x != y:\n\t\treturn None\n",
    "markup": "<b>&amp;<!-- -->{{ x }}{% if %} $(rm -rf) '; drop table t; -- %s %n {0}",
    "address": "https://example.org/a?b=c&d=%20e#f user@example.org C:\\temp\\x",
    "every_plane": "".join(chr(c) for c in (0x41, 0xE9, 0x20AC, 0x10348, 0x1F600, 0x20000, 0xE0001, 0x10FFFD)),
    "case": "ABC abc AbC \u00c4\u00e4 \u0410\u0430 \uff21\uff41",
    "punctuation": "!?.,;:'\"()[]{}<>/\\|@#$%^&*-_=+`~ \u2014\u2026\u00ab\u00bb\u3001",
}

BYTES = {
    "lone_continuation": b"a\x80b\xbf",
    "cut_short": b"a\xe2\x82 b\xf0\x9f\x98",
    "overlong": b"\xc0\xaf\xe0\x80\xaf\xf0\x80\x80\xaf",
    "surrogate": b"\xed\xa0\x80\xed\xb0\x80",
    "beyond": b"\xf4\x90\x80\x80\xf8\x88\x80\x80\x80",
    "all_bytes": bytes(range(256)),
}

TEMPLATES = {
    "chat": "{% for m in messages %}<|{{ m.role }}|>\n{{ m['content'] | trim }}\n{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "first_is_system": "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set rest = messages[1:] %}"
                       "{% else %}{% set rest = messages %}{% endif %}{{ s | default('none') }}{{ rest | length }}",
    "raise": "{% if i % 2 %}{{ raise_exception('odd: ' ~ i) }}{% endif %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for x in l %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
    "macro": "{% macro f(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ f(1) }}{{ f(b=3, a=s) }}",
    "loop": "{% for x in l recursive %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.cycle('a', 'b') }}{% else %}-{% endfor %}",
    "filters": "{{ s | upper | replace('A', 'x') | title }}{{ l | sort | join(', ') }}{{ d | tojson(indent=2) }}",
    "tests": "{{ n is none }}{{ d is mapping }}{{ l is iterable }}{{ x is defined }}{{ 7 is divisibleby 3 }}",
    "slices": "{{ s[::-1] }}{{ l[-2:] }}{{ l[:1] + l[1:] }}{{ s[100:] }}{{ s[:-100] }}",
    "numbers": "{{ 7 // 2 }}{{ -7 % 3 }}{{ 2 ** 10 }}{{ 1 / 4 }}{{ f * i }}{{ '%05.2f' | format(f) }}{{ 1e3 }}",
    "strings": "{{ s.split() }}{{ s.startswith('a') }}{{ '%s %r %d' % ('a', 'b', 3) }}{{ 'a' 'b' }}{{ 'x' * 3 }}",
    "white_space": "  {%- if i -%}  a  {%- endif +%}\n {#- c -#} {{- s -}} ",
    "raw": "{% raw %}{{ not this }}{% endraw %}",
    "ternary": "{{ 'a' if i > 3 and not n else 'b' }}{{ i in l or s in d }}",
    "generation": "{% generation %}{{ s }}{% endgeneration %}{% break %}",
    "unfinished": "{% for x in l %}{{ x",
    "deep": "{{ " + "(" * 60 + "1" + ")" * 60 + " }}",
    "long_text": "{% for a in range(100) %}{{ s * 100 }}{% endfor %}",
    "dict": "{{ d.items() | list }}{{ d.get('a', 0) }}{{ d['b'][2] }}{{ dict(a=1, **d) }}{{ {'k': [1, (2, 3)]} }}",
}


def gguf(metadata=b"", num_metadata=0, tensors=b"", num_tensors=0, data=b"", version=3):
    head = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_metadata) + metadata + tensors
    return head + b"\0" * (-len(head) % 32) + data


def gguf_text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_value(key, value):
    if isinstance(value, str):
        return gguf_text(key) + struct.pack("<I", 8) + gguf_text(value)
    if isinstance(value, float):
        return gguf_text(key) + struct.pack("<If", 6, value)
    if isinstance(value, bool):
        return gguf_text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return gguf_text(key) + struct.pack("<II", 4, value)
    kind, pack = (8, gguf_text) if isinstance(value[0], str) else (6, lambda x: struct.pack("<f", x)) \
        if isinstance(value[0], float) else (5, lambda x: struct.pack("<i", x))
    return gguf_text(key) + struct.pack("<IIQ", 9, kind, len(value)) + b"".join(pack(x) for x in value)


def gguf_tensor(name, shape, kind, offset):
    return gguf_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf_seeds():
    model = {"general.architecture": "llama", "general.alignment": 32, "llama.block_count": 1, "llama.context_length": 16,
             "llama.embedding_length": 8, "llama.feed_forward_length": 8, "llama.attention.head_count": 2,
             "llama.attention.head_count_kv": 1, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": 4}
    vocabulary = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
                  "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.bos_token_id": 3}
    pieces = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "<s>", "\u2581a", "b"],
              "tokenizer.ggml.scores": [0.0, 0.0, -1.0, -2.0], "tokenizer.ggml.token_type": [2, 3, 1, 1],
              "tokenizer.ggml.add_bos_token": True}
    yield "empty", gguf()
    yield "cut_short", gguf()[:10]
    yield "big_endian", b"FUGG" + b"\0" * 20
    for version in (1, 2, 4):
        yield f"version_{version}", gguf(version=version)
    for name, extra in (("model", {}), ("byte_level", vocabulary), ("sentencepiece", pieces)):
        fields = {**model, **extra}
        packed = b"".join(gguf_value(k, v) for k, v in fields.items())
        tensors = gguf_tensor("token_embd.weight", [8, 4], 0, 0) + gguf_tensor("output_norm.weight", [8], 0, 128)
        yield name, gguf(packed, len(fields), tensors, 2, bytes(160))
        yield name + "_without_data", gguf(packed, len(fields), tensors, 2)
    for kind in (1, 2, 3, 6, 8, 12, 13, 14, 30, 99):
        yield f"tensor_of_type_{kind}", gguf(tensors=gguf_tensor("t", [256, 1], kind, 0), num_tensors=1, data=bytes(1024))
    parts = [{"split.no": number, "split.count": 2, "split.tensors.count": 2} for number in range(2)]
    parts[0] |= model
    yield "two_parts", b"".join(
        gguf(b"".join(gguf_value(k, v) for k, v in fields.items()), len(fields), gguf_tensor(name, shape, 0, 0), 1, bytes(128))
        for fields, name, shape in zip(parts, ("token_embd.weight", "output_norm.weight"), ([8, 4], [8])))
    yield "overlap", gguf(tensors=gguf_tensor("a", [8], 0, 0) + gguf_tensor("b", [8], 0, 0), num_tensors=2, data=bytes(32))
    yield "many_counts", b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63)
    yield "huge_shape", gguf(tensors=gguf_tensor("t", [2**32, 2**32], 0, 0), num_tensors=1)
    nested = gguf_text("k") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 9, 1) * 20
    yield "nested_arrays", gguf(nested, 1)


def safetensors_seeds():
    def file(header, data=b""):
        text = header.encode()
        return struct.pack("<Q", len(text)) + text + data
    yield "empty", file("{}")
    yield "one", file('{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}', bytes(16))
    yield "metadata", file('{"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}', bytes(4))
    for kind, size in (("F16", 2), ("I64", 8), ("U8", 1), ("BOOL", 1), ("F8_E4M3", 1), ("X", 1)):
        yield f"of_{kind}", file(f'{{"a":{{"dtype":"{kind}","shape":[1],"data_offsets":[0,{size}]}}}}', bytes(size))
    yield "e4m3_and_scale", file('{"w":{"dtype":"F8_E4M3","shape":[1,64],"data_offsets":[0,64]},'
                                 '"w_scale":{"dtype":"BF16","shape":[1,1],"data_offsets":[64,66]}}', bytes(66))
    yield "gap", file('{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', bytes(3))
    yield "backwards", file('{"a":{"dtype":"U8","shape":[1],"data_offsets":[2,1]}}', bytes(3))
    yield "huge", file('{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}', bytes(4))
    yield "negative", file('{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', bytes(4))
    yield "twice", file('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', bytes(1))
    yield "no_shape", file('{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}', bytes(1))
    yield "cut_short", struct.pack("<Q", 100) + b"{"
    yield "header_beyond", struct.pack("<Q", 2**63) + b"{}"
    yield "index", b'{"metadata":{"total_size":16},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"../x"}}'
    yield "config", (b'{"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":8,"hidden_size":8,"num_hidden_layers":1,'
                     b'"intermediate_size":8,"num_attention_heads":2,"max_position_embeddings":16,"rms_norm_eps":1e-5,'
                     b'"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1,"high_freq_factor":4,'
                     b'"original_max_position_embeddings":16}}')
    yield "config_fp8", (b'{"architectures":["LlamaForCausalLM"],"vocab_size":8,"hidden_size":64,"num_hidden_layers":1,'
                         b'"intermediate_size":64,"num_attention_heads":2,"max_position_embeddings":16,"rms_norm_eps":1e-5,'
                         b'"quantization_config":{"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{'
                         b'"group_0":{"targets":["Linear"],"weights":{"num_bits":8,"type":"float","strategy":"block",'
                         b'"block_structure":[128,128],"symmetric":true}}}}}')
    yield "config_odd", b'{"architectures":[],"vocab_size":-1,"hidden_size":1e30,"num_attention_heads":0,"eos_token_id":[1,"a",null]}'


def charsmap_seeds():
    def unit(label, leaf=False, offset=0):
        return (offset << 10) | (int(leaf) << 8) | label
    for name, units, texts in (
            ("smallest", [0], b""), ("one", [unit(0, False, 1)] + [0] * 0x61 + [unit(0x61, True, 0)] + [1 << 31], b"b\0"),
            ("zeros", [0] * 256, b"a\0b\0"), ("ones", [0xFFFFFFFF] * 64, b"\0"), ("leaf", [unit(0, True, 1), 1 << 31], b"x\0"),
            ("far", [unit(0, False, 0x1FFFFF)], b"x"), ("text_inside_character", [unit(0, False, 1)] * 260, "\u00e9\0".encode()),
            ("long_text", [unit(0, False, 1)] * 4, b"a" * 1025)):
        yield name, struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + texts
    yield "not_utf8", struct.pack("<II", 4, 0) + b"\xff\0"
    yield "no_trie", struct.pack("<II", 0, 0)
    yield "beyond", struct.pack("<II", 400, 0)
    yield "odd", struct.pack("<II", 5, 0)
    chooser = random.Random(5)
    for i in range(8):  # dense ones, so that lookups go deep
        units = [unit(x % 256, chooser.random() < 0.5, chooser.randrange(600)) for x in range(600)]
        yield f"dense_{i}", struct.pack("<I", 2400) + struct.pack("<600I", *units) + "a\0\u00e9b\0\u4eba\0".encode()


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """A field of a message on the wire: an int, a float, bytes or text."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def request_seeds():
    """The first byte chooses a request of request_fuzz.cc; a message to merge into it follows."""
    nan, infinity = float("nan"), float("inf")
    for i in range(6):
        yield f"plain_{i}", bytes([i])
    for name in ("story", "ligature_and_quote", "emoji", "special", "spaces"):
        yield f"text_{name}", b"\0" + field(3, TEXTS[name][:200])
    for name, value in BYTES.items():
        yield f"bytes_{name}", b"\0" + field(3, value)
    yield "ids", b"\0" + field(4, field(1, b"".join(varint(i) for i in (72, 105, 0, 257))))
    yield "ids_outside", b"\0" + field(4, field(1, b"".join(varint(i) for i in (-1, 2**31 - 1, 300))))
    for number, value in ((1, 0.0), (1, nan), (1, 101.0), (2, 0), (2, 2**32 - 1), (3, 0.0), (4, infinity), (5, -0.1), (6, 2.0)):
        yield f"sampling_{number}_{value}".replace(".", "_"), b"\1" + field(6, field(number, value))
    for number, value in ((1, 0), (1, 2**31), (2, 7), (3, ""), (3, "time"), (3, "x" * 257), (4, 33)):
        yield f"stop_{number}_{str(value)[:8]}", b"\1" + field(7, field(number, value))
    for number in range(1, 9):
        yield f"output_{number}", b"\1" + field(8, field(number, 5))
    yield "salt", b"\1" + field(9, field(1, "s" * 257))
    yield "window", b"\1" + field(9, field(4, 4) + field(5, 64))
    yield "priority", b"\1" + field(10, field(1, -101) + field(2, "t"))


def engine_seeds():
    """Bytes that engine_fuzz.cc reads as what to do next; these are drawn."""
    for i in range(24):
        chooser = random.Random(i)
        # The fuzzer reads operations from the end of the input. Bytes drawn from a few values make long
        # scripts.
        yield f"drawn_{i}", bytes(chooser.choice((0, 0, 1, 1, 3, 5, 8, 8, 8, chooser.randrange(256))) for _ in range(40 + 20 * i))


def prefix_log_seeds():
    """Records of named prefixes, one a line. Numbers take eight bytes; a text follows its length."""
    def number(*values):
        return b"".join(struct.pack("<Q", value) for value in values)

    def sized(*texts):
        return b"".join(number(len(text)) + text.encode() for text in texts)

    name = "prefixes/" + "0" * 26
    fields = (sized(name, "tenant", "salt", "rules", "id", "digest") + number(2) + sized("a", "*")
              + number(1 << 60, 1 << 60, 1 << 61, 3600 * 10**9, 1, 4))
    ids = number(3, 65, 66, 67)
    contents = {"text": ids + number(0) + sized("ABC"), "ids": ids + number(1) + ids,
                "messages": ids + number(2, 1) + sized("user", "hi")}
    for kind, content in contents.items():
        yield kind, number(2, 7) + fields + content
    yield "life", b"\n".join((number(1, 5), number(2, 7) + fields + contents["text"], number(3, 7) + fields, number(4, 7)))


def segment_seeds():
    """Changes of a segment with two blocks: 0, a length, and then places and what changes there; or 1 and a table."""
    whole = 8192 + 4096 + 144  # bytes; the header, the table, and the second record at its page
    changes = {"none": (), "header": ((3, 1),), "entry": ((4096 + 20, 1),), "second_entry": ((4096 + 128 + 60, 255),),
               "record": ((8192 + 100, 16),), "second_record": ((8192 + 4096 + 3, 16),)}
    for name, change in changes.items():
        yield name, struct.pack(">BH", 0, whole) + b"".join(struct.pack(">HB", *one) for one in change)
    for length in (0, 4096, 4096 + 130, 8192 + 10, whole - 1):
        yield f"first_{length}", struct.pack(">BH", 0, length)
    yield "table", b"\1" + b"kv-entry" + struct.pack("<Q", 32) + bytes(range(120))
    yield "huge_key", b"\1" + b"kv-entry" + b"\xff" * 120


def write(target, seeds):
    folder = HERE / target
    folder.mkdir(exist_ok=True)
    for name, content in seeds:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def link(target, folder, names):
    (HERE / target).mkdir(exist_ok=True)
    for name in names:
        seed = HERE / target / name
        seed.unlink(missing_ok=True)
        seed.symlink_to(f"{folder}/tiny_{name}.json")


def main():
    write("encode_fuzz", {**TEXTS, **BYTES}.items())
    write("jinja_fuzz", TEMPLATES.items())
    write("gguf_fuzz", gguf_seeds())
    write("safetensors_fuzz", safetensors_seeds())
    write("precompiled_charsmap_fuzz", charsmap_seeds())
    write("request_fuzz", request_seeds())
    write("engine_fuzz", engine_seeds())
    write("prefix_log_fuzz", prefix_log_seeds())
    write("segment_fuzz", segment_seeds())
    link("tokenizer_json_fuzz", "../../text/tokenizer/testdata",
         ("byte_level", "metaspace", "punctuation_nfc", "sentencepiece", "split_pattern", "unigram"))


if __name__ == "__main__":
    main()
