"""Shares of a decoded token's time by component, from rooflines (EfficientRollout, arXiv 2606.18967, Table 3).

A component's time is the larger of its memory time and its compute time (Appendix B.1), at the data sheet's bandwidth
and throughput. The components of Table 3 are the projections of the FFN and of attention (QKVO), attention over keys
and values, the head, and "nonlinear". The paper does not define the last one. Here it is these memory accesses:

    softmax     one value for each head and position, B S n_heads
    the rest    for each token and layer: two norms (read and write), two residual additions (two reads, one write), the
                gate's activation (two reads, one write), the rotation of queries and keys (read and write)

Its operations are few per value and always faster than its memory accesses, so they are left out.
"""

from redraft.selfspec.constants import VALUE_BYTES, ModelConstants

A100_BANDWIDTH, A100_FLOPS = 2.039e12, 312e12
"""Data sheet of the A100 SXM4 80 GB, the paper's GPU: bytes/s, and 16-bit operations/s."""


def decode_shares(
    model: ModelConstants, batch: int, length: int, *, bandwidth: float = A100_BANDWIDTH, flops: float = A100_FLOPS
) -> dict[str, float]:
    """Share of each component in the time of a decoding pass after `length` positions; they sum to 1."""

    # bytes moved and operations of each component
    def weights(count: int) -> tuple[float, float]:
        # Weights are read once for the batch; a multiplication and an addition for each weight and sequence.
        return VALUE_BYTES * count, 2 * batch * count

    positions = batch * length
    # One more norm after the last layer; each value is read and written.
    norms = (2 * model.layers + 1) * 2 * model.hidden
    additions = model.layers * 2 * 3 * model.hidden
    gate = model.layers * 3 * model.intermediate
    rotation = model.layers * 2 * (model.heads + model.kv_heads) * model.head_dim
    values = batch * (norms + additions + gate + rotation) + model.layers * model.heads * positions
    work = {
        "ffn": weights(model.ffn_parameters),
        "qkvo": weights(model.qkvo_parameters),
        "attention": (model.costs.kv_bytes * positions, model.costs.attention_flops * positions),
        "head": weights(model.head_parameters),
        "nonlinear": (VALUE_BYTES * values, 0),
    }
    # Each component for itself: one may wait for memory while another computes.
    seconds = {name: max(moved / bandwidth, operations / flops) for name, (moved, operations) in work.items()}
    return {name: part / sum(seconds.values()) for name, part in seconds.items()}
