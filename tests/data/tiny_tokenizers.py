"""Small byte-level tokenizers with and without BOS and chat templates, trained in the test on a few sentences."""

from __future__ import annotations

from functools import lru_cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "Question: what is the capital of France?\nAnswer: The answer is Paris.",
    "The trophy does not fit into the case because the case is too small. yes no maybe A B C D",
    "user assistant system the river of the north runs through the town and into the sea",
]
QWEN3_LIKE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)
# The shape of Llama 3.1's later templates and of 3.2's: the day is an option or, failing that, today's, and stands in a system turn.
LLAMA_DATED = (
    "{{- bos_token }}{%- if date_string is not defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}{%- set date_string = '01 Jan 1970' %}{%- endif %}{%- endif %}"
    "{%- if messages[0].role == 'system' %}{%- set asked = messages[0].content | trim %}{%- set messages = messages[1:] %}"
    "{%- else %}{%- set asked = '' %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ' + date_string + '\n\n' }}"
    "{{- asked + '<|eot_id|>' }}{%- for message in messages %}{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{{- message.content | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
DATED = (
    "{{- bos_token }}{{- 'Today: ' + strftime_now('%d %b %Y') + '\\n' }}{%- for message in messages %}"
    "{{- message.role + ': ' + message.content | trim + '\\n' }}{%- endfor %}{{- 'assistant: ' }}"
)


@lru_cache
def _core() -> str:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=["<bos>", "<eos>", "<pad>", "<|im_start|>", "<|im_end|>"],
    )
    core.train_from_iterator(TEXTS * 20, trainer)
    return core.to_str()


def tokenizer(bos: bool = False, template: str | None = None) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 400 entries. With `bos` it has a BOS token and adds it by itself, as Llama's does."""
    core = Tokenizer.from_str(_core())
    if bos:
        core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", core.token_to_id("<bos>"))])
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", **({"bos_token": "<bos>"} if bos else {}))
    made.chat_template = template
    return made
