"""A critic without flash-attn; verl imports this module through `VERL_USE_EXTERNAL_MODULES`.

verl 0.9.1 loads a critic with `flash_attention_2`, whatever the configuration says (`verl.utils.model`). transformers
raises an error where flash-attn is not installed.
"""

from typing import Any

import verl.utils.model
from transformers import AutoModelForTokenClassification


def load_critic(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """Load a critic as verl's function of the same arguments does, but with PyTorch's attention."""
    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation="sdpa",
        trust_remote_code=trust_remote_code,
    )


verl.utils.model.load_valuehead_model = load_critic
