"""Small models as GGUF files, written as llama.cpp's converter writes them."""

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen3Config
from transformers.convert_slow_tokenizer import bytes_to_unicode

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "Ġ 1", "1 2"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS = [*SPECIAL, *bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES)]
SHAPE = {
    "vocab_size": len(TOKENS),
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e5,
}
LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def random_llama():
    """A Llama with tied embeddings and three query heads for each key-value head."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(3)  # distributions far from uniform
    return model


def random_model(architecture, **settings):
    """A model of an architecture with three query heads for each key-value head; its biases are not 0."""
    torch.manual_seed(0)
    shape = {key: value for key, value in SHAPE.items() if key != "rope_theta" or "rope_parameters" not in settings}
    model = AutoModelForCausalLM.from_config(CONFIGS[architecture](**shape | settings)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(3)
        if parameter.ndim == 1:
            parameter.data.add_(torch.rand_like(parameter) / 3)
    return model


def write(
    file,
    model,
    architecture="llama",
    name="small",
    template=TEMPLATE,
    split="smollm",
    lacks=None,
    extra=None,
    tensors=None,
):
    """Write a model with its tokenizer; gguf must be importable.

    Args:
        lacks: name of a tensor or of a key that is left out.
        extra: further keys and their values; they replace others.
        tensors: further arrays by their names.
    """
    from gguf import GGUFWriter

    config, writer = model.config, GGUFWriter(file, architecture)
    writer.add_name(name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(SHAPE["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    if template:
        writer.add_chat_template(template)
    for key, value in (extra or {}).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        writer.kv_data[0].pop(key, None)
        add.get(type(value), writer.add_array)(key, value)
    writer.kv_data[0].pop(lacks, None)
    for tensor, values in [*_tensors(model, architecture), *(tensors or {}).items()]:
        if tensor != f"{lacks}.weight":
            writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model, architecture):
    state = {key: value.detach().numpy() for key, value in model.state_dict().items()}
    yield "token_embd.weight", state["model.embed_tokens.weight"]
    yield "output_norm.weight", state["model.norm.weight"]
    if not model.config.tie_word_embeddings:
        yield "output.weight", state["lm_head.weight"]
    for layer in range(model.config.num_hidden_layers):
        of_layer = f"model.layers.{layer}."
        for name, theirs in (LAYER | (NORMS if architecture == "qwen3" else {})).items():
            yield f"blk.{layer}.{name}.weight", state[f"{of_layer}{theirs}.weight"]
        heads = {"q": model.config.num_attention_heads, "k": model.config.num_key_value_heads}
        for name, count in heads.items():
            weight = state[f"{of_layer}self_attn.{name}_proj.weight"]
            rotated = _interleaved(weight, count) if architecture == "llama" else weight
            yield f"blk.{layer}.attn_{name}.weight", rotated
        for name in "qkv" if architecture == "qwen2" else "":
            yield f"blk.{layer}.attn_{name}.bias", state[f"{of_layer}self_attn.{name}_proj.bias"]


def _interleaved(weight, heads):
    """Rows of each head in llama.cpp's order, which rotates neighbours and not halves."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
