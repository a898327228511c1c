"""Models that the in-process engine can run. Any other would not fail there, it would be computed wrongly."""

from transformers import PreTrainedModel

from redraft.errors import UserError


def refuse_unsupported(model: PreTrainedModel, max_length: int) -> None:
    """Refuse a model that needs more than the slot cache and its attention can do.

    Args:
        model: a transformers causal language model.
        max_length: longest prompt and response together, tokens.

    Raises:
        UserError: for attention that is windowed, soft-capped or has sinks, or more tokens than the model has
            positions; it names the model's type and the key of its configuration.
    """
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ())
    windowed = getattr(config, "use_sliding_window", not kinds)  # some only say how large their window is
    unsupported = {
        "layer_types": sorted(kinds - {"full_attention"}),
        "sliding_window": getattr(config, "sliding_window", None) if windowed else None,
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
        "sinks": [name for name, _ in model.named_parameters() if name.endswith("sinks")],
    }
    for key, value in unsupported.items():
        if value:
            raise UserError(
                f"the torch engine cannot run this {config.model_type} model", key=key, value=value,
                allowed="full attention in every layer, without soft-capping and sinks",
            )  # fmt: skip
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and max_length > positions:
        raise UserError(
            f"prompt and response are longer than this {config.model_type} model's positions",
            key="max_position_embeddings",
            value=positions,
            allowed=f"at least {max_length}, or shorter responses",
        )
