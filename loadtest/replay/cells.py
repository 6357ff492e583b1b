"""The cells of the routing tables: a workload, a fleet and a load each, as arguments of `homing replay`."""

import dataclasses

CONVERSATION = "conversation_trace.jsonl"
AGENTIC = "agentic_sessions.jsonl"
AZURE_CODE = "AzureLLMInferenceTrace_code.csv"
AZURE_CONV = "AzureLLMInferenceTrace_conv.csv"

SOURCES = {
    CONVERSATION: "github.com/kvcache-ai/Mooncake: FAST25-release/traces/conversation_trace.jsonl",
    AGENTIC: "made by loadtest/replay/sessions from github.com/callanjfox/kv-cache-tester: traces/",
    AZURE_CODE: "github.com/Azure/AzurePublicDataset: data/AzureLLMInferenceTrace_code.csv",
    AZURE_CONV: "github.com/Azure/AzurePublicDataset: data/AzureLLMInferenceTrace_conv.csv",
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One comparison of policies. `trace` is a file of SOURCES; without one the arguments name a generator."""

    group: str
    name: str
    arguments: tuple[str, ...]
    trace: str | None = None


def trace(group, file, arguments):
    return Cell(group, f"{group} {arguments}", tuple(arguments.split()), file)


def generated(group, generator, arguments):
    return Cell(group, f"{group} {arguments}", ("--generate", generator, *arguments.split()))


# The cost was tuned while looking at cells of these kinds.
TUNED = [
    *(trace("conversation", CONVERSATION, f"--endpoints 4 --rate {x}") for x in (0.5, 0.65, 0.75)),
    *(trace("conversation", CONVERSATION, f"--endpoints 8 --rate {x}") for x in (1, 1.3, 1.5)),
    *(trace("agentic", AGENTIC, f"--endpoints 8 --rate {x}") for x in (1, 1.5, 2)),
    *(generated("tool-agent", "tool-agent", f"--endpoints 8 --rate {x}") for x in (0.75, 1, 1.5)),
    *(generated("shared-prefix", "shared-prefix", f"--set to_rps={x}") for x in (20, 30, 60)),
]

# Nothing was tuned on these: other seeds, other traces, other fleets, other loads.
HELD_OUT = [
    trace("conversation", CONVERSATION, "--endpoints 6 --rate 0.9"),
    trace("conversation", CONVERSATION, "--endpoints 12 --rate 2"),
    trace("conversation", CONVERSATION, "--endpoints 4 --rate 1 --fleet llama3.1-8b-1xh100"),
    trace("conversation", CONVERSATION, "--endpoints 8 --rate 1.2 --kv-tokens 150000"),
    trace("agentic", AGENTIC, "--endpoints 4 --rate 0.6"),
    trace("agentic", AGENTIC, "--endpoints 6 --rate 1.8 --fleet llama3.1-8b-1xh100"),
    trace("azure-conv", AZURE_CONV, "--endpoints 4 --rate 4"),
    trace("azure-code", AZURE_CODE, "--endpoints 4 --rate 2"),
    generated("chat", "conversation", "--endpoints 8 --rate 1.2"),
    generated("coding", "agentic", "--endpoints 8"),
    generated("coding", "agentic", "--endpoints 5 --rate 0.7"),
    generated("tool-agent", "tool-agent", "--endpoints 5 --rate 0.8 --set tools=200"),
    generated("shared-prefix", "shared-prefix", "--endpoints 4 --set to_rps=12 --set groups=60"),
    generated("shared-prefix", "shared-prefix", "--set to_rps=25 --set system_tokens=1500 --set groups=400"),
    generated("one-shot", "one-shot", "--endpoints 8 --rate 3"),
    generated("mixed-speed", "tool-agent", "--endpoints 6 --speeds 1,1,1,0.5,0.5,2"),
]

SEEDS = {"tuned": (1, 2), "held-out": (11, 12)}
