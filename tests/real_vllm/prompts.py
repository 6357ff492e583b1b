"""Random requests whose prompts share prefixes of every length."""

import random

from fleet import ADAPTER, MODEL

WORDS = ("the cache holds what was computed before and a prompt that begins alike is served from there while every "
         "other one starts anew so order matters and numbers like 3.14 or 2026 do too: def main(): return None").split()
TOOLS = [
    {"type": "function", "function": {
        "name": name, "description": f"Looks {what} up.",
        "parameters": {"type": "object", "properties": {"of": {"type": "string", "enum": ["a", "ü"]}}, "required": ["of"]}}}
    for name, what in [("weather", "the weather"), ("price", "a price"), ("route", "a way")]
]
KINDS = ["text", "ids", "chat", "chat with tools", "conversation"]


class Prompts:
    def __init__(self, seed, vocabulary=4096):
        self.random = random.Random(seed)
        self.vocabulary = vocabulary
        self.documents = [self.words(300) for _ in range(6)]
        self.systems = [self.words(n) for n in (20, 80, 200)]
        self.ids = [[self.random.randrange(3, vocabulary) for _ in range(1200)] for _ in range(6)]
        self.conversations = {}

    def words(self, count):
        return " ".join(self.random.choice(WORDS) for _ in range(count))

    def shared(self, document):
        """The start of a document and a tail of its own."""
        words = document.split()
        return " ".join(words[:self.random.randrange(len(words))]) + " " + self.words(self.random.randrange(1, 30))

    def text(self):
        return "/v1/completions", {"prompt": self.shared(self.random.choice(self.documents))}

    def token_ids(self):
        shared = self.random.choice(self.ids)[:self.random.randrange(1100)]
        own = [self.random.randrange(3, self.vocabulary) for _ in range(self.random.randrange(1, 80))]
        return "/v1/completions", {"prompt": shared + own}

    def chat(self, tools):
        system = {"role": "system", "content": self.random.choice(self.systems)}
        user = {"role": "user", "content": self.shared(self.random.choice(self.documents))}
        if self.random.random() < 0.3:
            user["content"] = [{"type": "text", "text": user["content"]}]
        body = {"messages": [system, user] if self.random.random() < 0.8 else [user]}
        if tools:
            body["tools"] = TOOLS[:self.random.randrange(1, len(TOOLS) + 1)]
            body["tool_choice"] = self.random.choice(["auto", "none"])
            if self.random.random() < 0.5:
                body["messages"] += self.tool_use()
        return "/v1/chat/completions", body

    def tool_use(self):
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"of": "a"}'}}
        return [{"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": self.words(10)}]

    def conversation(self):
        """The next turn of one of a few conversations; `heard` puts the answer into it."""
        number = self.random.randrange(5)
        messages = self.conversations.setdefault(number, [{"role": "system", "content": self.random.choice(self.systems)}])
        if len(messages) > 14:
            del messages[1:]
        messages.append({"role": "user", "content": self.words(self.random.randrange(3, 40))})
        return "/v1/chat/completions", {"messages": list(messages), "conversation": number}

    def heard(self, number, answer):
        self.conversations[number].append({"role": "assistant", "content": answer})

    def next(self):
        """A kind, a path, a body, and the number of the conversation that it goes on with."""
        kind = self.random.choice(KINDS)
        path, body = {"text": self.text, "ids": self.token_ids, "chat": lambda: self.chat(False),
                      "chat with tools": lambda: self.chat(True), "conversation": self.conversation}[kind]()
        number = body.pop("conversation", None)
        adapted = number is None and self.random.random() < 0.15
        body |= {"model": ADAPTER if adapted else MODEL, "max_tokens": self.random.randrange(1, 48), "temperature": 0}
        if number is None and self.random.random() < 0.15:
            body["cache_salt"] = self.random.choice(["one", "two"])
        return kind, path, body, number
