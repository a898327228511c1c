"""A fused head whose weights are whole when it reads them; verl imports this module first in each of its processes.

verl 0.9.1 makes an untied head a unit of FSDP2, which gathers its weights when it is called. The fused head does not
call it but reads its weights, of which each GPU then has a part: its product ends in an error. Without a unit of its
own, the head belongs to that of the whole model, whose weights are gathered before the pass (verl's pull request 7427).
"""

from typing import Any

from verl.utils import fsdp_utils

_selected = fsdp_utils._select_fsdp2_wrap_targets


def without_head(model: Any, layers: Any) -> list[Any]:
    """Modules that become units of FSDP2, without the head."""
    return [module for module in _selected(model, layers) if module is not model.get_output_embeddings()]


fsdp_utils._select_fsdp2_wrap_targets = without_head
