"""What is sent: each workload as wrk's Lua script understands it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Workload:
    name: str
    title: str
    kind: str  # of loadtest/wrk/requests.lua
    bytes: int
    connections: int
    count: int = 1  # tokens of a stream, messages of a chat

    def arguments(self, tag):
        return [self.kind, str(self.bytes), tag, str(self.count)]

    @property
    def events(self):
        """Server-sent events per response, the closing `[DONE]` not counted."""
        return self.count if self.kind == "stream" else 0


KIB = 1024
WORKLOADS = [
    Workload("1k", "unique prompts of 1 KB", "unique", KIB, 32),
    Workload("4k", "unique prompts of 4 KB", "unique", 4 * KIB, 16),
    Workload("shared", "4 KB shared by 1 in 64 requests, then 512 bytes of its own", "shared", 4 * KIB, 16),
    Workload("chat", "chats of 40 messages, 8 KB", "chat", 8 * KIB, 16, 40),
    Workload("sse", "streams of 50 events sent at once", "stream", KIB, 16, 50),
    Workload("32k", "unique prompts of 32 KB", "unique", 32 * KIB, 16),
    Workload("220k", "unique prompts of 220 KB", "unique", 220 * KIB, 8),
    Workload("2m", "unique prompts of 2 MB", "unique", 2048 * KIB, 4),
]
BY_NAME = {workload.name: workload for workload in WORKLOADS}
