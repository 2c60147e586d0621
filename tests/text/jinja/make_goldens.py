#!/usr/bin/env python3
"""Writes testdata/*.json: what Python's Jinja2 3.1.6, set up as Hugging Face transformers does it,
makes of the snippets in snippets.py, of the templates in testdata/ (SmolLM2's from its GGUF; the others as llama.cpp's
tests have them, MIT), and of more published chat templates.

usage: make_goldens.py [DIRECTORY with templates/*.jinja and minja-contexts/*.json]
Needs jinja2; where transformers is installed, says how often its own rendering is the same. Without the directory the
goldens of the real templates stay as they are.
"""

import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

from contexts import contexts
from snippets import SNIPPETS

HERE = pathlib.Path(__file__).parent
# The conversation that each template in testdata/ renders, once with and once without its last message.
CONVERSATION = [
    {"role": "system", "content": "You answer <briefly>."},
    {"role": "user", "content": "Hello, wörld! 你好 🎉"},
    {"role": "assistant", "content": "  Hi \n there  "},
    {"role": "user", "content": "{{ messages }} & \"quotes\"\n"},
    {"role": "assistant", "content": "Done."},
]
NOW = datetime.datetime(2024, 7, 26, 12, 0, 0)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class TemplateNamespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attrs = dict(*args, **kwargs)
        for name in attrs:
            TemplateNamespace._check(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name, value):
        TemplateNamespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


class Raised(Exception):
    pass


def environment():
    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    env.globals["namespace"] = TemplateNamespace
    return env


def render(env, source, context):
    try:
        return {"output": env.from_string(source).render(**context)}
    except Raised as e:
        return {"raised": str(e)}
    except Exception as e:  # noqa: BLE001: every error counts
        return {"error": type(e).__name__}


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def outcome(result):
    """A hash of the text, "raised: text", or "error"."""
    if "output" in result:
        return fnv1a(result["output"])[8:]
    return f"raised: {result['raised']}" if "raised" in result else "error"


def same_as_transformers(source, context, result):
    """True if transformers is installed and renders the template to the same text."""
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ImportError:
        return False
    try:
        template = _compile_jinja_template(source)
        # Uses our fixed time, so that templates that print the time agree too.
        template.globals["strftime_now"] = lambda format: NOW.strftime(format)
        return template.render(**context) == result.get("output")
    except Exception:  # noqa: BLE001: every error counts
        return "output" not in result


def write(name, rows):
    text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"
    (HERE / "testdata" / name).write_text(text)
    print(f"{name}: {len(rows)} rows, {len(text)} bytes")


def outcomes_of(env, folder, contexts):
    """A row of outcomes for each template, and how many texts are those of transformers."""
    rows, same = [], 0
    for template in sorted(folder.glob("*.jinja")):
        outcomes = []
        for context in contexts:
            result = render(env, template.read_text(), context)
            same += same_as_transformers(template.read_text(), context, result)
            outcomes.append(outcome(result))
        rows.append({"template": template.name, "outcomes": outcomes})
    return rows, same


def main():
    env = environment()
    rows = []
    for entry in SNIPPETS:
        source, context = entry if isinstance(entry, tuple) else (entry, {})
        row = {"template": source}
        if context:
            row["context"] = context
        rows.append({**row, **render(env, source, context)})
    write("snippets.json", rows)
    rows = []
    for template in sorted((HERE / "testdata").glob("*.jinja")):
        for first in (0, 1):
            for last in (4, 5):
                for prompt in (True, False):
                    context = {"messages": CONVERSATION[first:last], "add_generation_prompt": prompt}
                    more = {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None}
                    result = render(env, template.read_text(), {**context, **more})
                    rows.append({"template": template.name, **context, **result})
    write("chats.json", rows)
    variants = list(contexts())
    write("contexts.json", [{"name": name, "context": context} for name, context in variants])
    own = [context for _, context in variants]
    write("own_templates.json", outcomes_of(env, HERE / "testdata", own)[0])
    if len(sys.argv) < 2:
        return
    material = pathlib.Path(sys.argv[1])
    minja = [json.loads(path.read_text()) for path in sorted((material / "minja-contexts").glob("*.json"))]
    rows, same = outcomes_of(env, material / "templates", minja + own)
    write("templates.json", rows)
    print(f"equal to transformers' own rendering: {same} of {sum(len(row['outcomes']) for row in rows)}")


if __name__ == "__main__":
    main()
