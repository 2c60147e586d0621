"""The contexts with which make_goldens.py renders every published template: conversations with and without a system
message, tools, tool calls and their results, and the variables that some templates know."""

SYSTEM = {"role": "system", "content": "You answer <briefly> & \"well\"."}
USER = {"role": "user", "content": "Hello, wörld! 你好 🎉"}
ANSWER = {"role": "assistant", "content": "  Hi \n there  "}
AGAIN = {"role": "user", "content": "{{ messages }} it's \\n 3 < 4\n"}

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "City, \"as written\" there"},
        "unit": {"type": "string", "enum": ["°C", "°F"]},
        "days": {"type": "integer", "minimum": 1, "default": 3}}, "required": ["place"]}}}
NESTED = {"type": "function", "function": {
    "name": "book", "description": "", "parameters": {"type": "object", "properties": {
        "guests": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "number"}}}},
        "notes": {"type": ["string", "null"]}}, "required": []}, "return": {"type": "boolean"}}}
BARE = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}
TOOLS = [WEATHER, NESTED, BARE]


def calls(*arguments, content=""):
    return {"role": "assistant", "content": content, "tool_calls": [
        {"id": f"call{i:05}", "type": "function", "function": {"name": "get_weather", "arguments": a}} for i, a in enumerate(arguments)]}


def result(i, content):
    return {"role": "tool", "tool_call_id": f"call{i:05}", "name": "get_weather", "content": content}


OBJECT, TEXT = {"place": "Zürich", "days": 2, "exact": True, "unit": None}, "{\"place\": \"Zürich\"}"
RESULT = result(0, "{\"celsius\": 21.5}")
CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "system, turns": [SYSTEM, USER, ANSWER, AGAIN],
    "turns": [USER, ANSWER, AGAIN],
    "answer last": [USER, ANSWER],
    "system alone": [SYSTEM],
    "two systems": [SYSTEM, {"role": "system", "content": "And kindly."}, USER],
    "system inside": [USER, ANSWER, SYSTEM, AGAIN],
    "empty system": [{"role": "system", "content": ""}, USER],
    "developer": [{"role": "developer", "content": "Be exact."}, USER],
    "two users": [USER, AGAIN],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": " this?"}]}],
    "an image": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}],
    "reasoning": [USER, {"role": "assistant", "content": "Hi.", "reasoning_content": "They greet.\n"}, AGAIN],
    "thoughts inside": [USER, {"role": "assistant", "content": "<think>\nThey greet.\n</think>\n\nHi."}, AGAIN],
    "call": [USER, calls(OBJECT)],
    "call as text": [USER, calls(TEXT)],
    "call, result": [SYSTEM, USER, calls(OBJECT), RESULT],
    "call as text, result": [SYSTEM, USER, calls(TEXT), RESULT],
    "call, result, answer": [USER, calls(OBJECT), RESULT, ANSWER, AGAIN],
    "two calls": [USER, calls(OBJECT, {"place": "Oslo"}, content="Let me see."), RESULT, result(1, "rain")],
    "call without content": [USER, calls(OBJECT, content=None), RESULT],
    "unknown role": [{"role": "narrator", "content": "Once"}, USER],
}
WITH_TOOLS = ["user", "system", "system, turns", "call", "call as text", "call, result", "call as text, result", "call, result, answer", "two calls",
              "call without content"]


def contexts():
    """(name, variables), always in the same order."""
    base = {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None}
    for name, messages in CONVERSATIONS.items():
        yield name, {**base, "messages": messages, "add_generation_prompt": True}
    for name in WITH_TOOLS:
        yield name + "; tools", {**base, "messages": CONVERSATIONS[name], "add_generation_prompt": True, "tools": TOOLS}
    yield "user; one tool", {**base, "messages": [USER], "add_generation_prompt": True, "tools": [BARE]}
    yield "user; no tool of none", {**base, "messages": [USER], "add_generation_prompt": True, "tools": []}
    for name in ("user", "system, turns", "answer last", "call, result"):
        yield name + "; no prompt", {**base, "messages": CONVERSATIONS[name], "add_generation_prompt": False}
    for value in (True, False):
        yield f"turns; enable_thinking={value}", {**base, "messages": CONVERSATIONS["turns"], "add_generation_prompt": True,
                                                  "enable_thinking": value, "thinking": value, "reasoning_effort": "high" if value else "low"}
    yield "user; documents", {**base, "messages": [USER], "add_generation_prompt": True,
                              "documents": [{"title": "A", "text": "All about \"A\"."}, {"title": "B", "text": "B\nb"}]}
    yield "no messages", {**base, "messages": [], "add_generation_prompt": True}
