"""Builds a tiny Llama with random weights, a tokenizer, a chat template that knows tools, and a LoRA adapter.

usage: model.py FOLDER, with the Python of the vLLM installation. Its answers are noise; tokens, blocks and caching are
as real as any model's.
"""

import json
import pathlib
import sys
import sysconfig

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_TOKENS = 4096, 128, 2, 4, 2, 32768
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
RANK = 4

TEMPLATE = """\
{%- set ns = namespace(first=true) -%}
{%- if tools -%}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}You may call these functions:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if tools and ns.first and message.role == 'system' -%}{%- set ns.first = false -%}{%- continue -%}{%- endif -%}
{%- if message.role not in ['system', 'user', 'assistant', 'tool'] -%}
{{ raise_exception('There is no role ' ~ message.role) }}
{%- endif -%}
<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


def texts():
    """English and code that every Python has, always in the same order."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return [str(path) for path in sorted(library.glob("*.py"))[:80]]


def tokenizer(folder):
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train(texts(), trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet,
                                           show_progress=False))
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                   model_max_length=HEAD_TOKENS)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def weights(folder):
    torch.manual_seed(0)
    shape = LlamaConfig(vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=2 * HIDDEN,
                        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
                        head_dim=HIDDEN // HEADS, max_position_embeddings=HEAD_TOKENS, bos_token_id=0, eos_token_id=2,
                        pad_token_id=0, tie_word_embeddings=True)
    LlamaForCausalLM(shape).save_pretrained(folder, safe_serialization=True)


def adapter(folder):
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    parts = {}
    for layer in range(LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        parts[f"{name}.lora_A.weight"] = torch.randn(RANK, HIDDEN)
        parts[f"{name}.lora_B.weight"] = torch.randn(HIDDEN, RANK)
    save_file(parts, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "lora_dropout": 0.0,
                "bias": "none", "target_modules": ["q_proj"], "base_model_name_or_path": "tiny"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def main():
    folder = pathlib.Path(sys.argv[1])
    tokenizer(folder)
    weights(folder)
    adapter(folder / "adapter")
    (folder / "complete").write_text("")


main()
