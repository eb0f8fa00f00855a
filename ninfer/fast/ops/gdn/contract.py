"""What the Gated DeltaNet operations compute, for every backend.

``convolve``: y[t] = SiLU(Σ_τ w[τ] ⊙ u[t − taps + 1 + τ]) over the block's columns after the lane's window
of the last taps − 1 inputs. ``recur``: per value head, with L2-normalised q (also scaled by d_k^-½) and
k, ``S ← e^g S; δ = β (v − Sᵀ k); S ← S + k δᵀ; o = Sᵀ q`` with g = −e^{A} softplus(a + dt), β = σ(b),
then ``w ⊙ o / √(mean(o²) + eps) ⊙ SiLU(z)``. ``fold``: the same transition over the first m kept columns,
written to the committed state.

A block with COMMIT = 0 only reads the state image; its inputs u, the convolved columns and (g, β) stay in
the layer's buffers, which are the records that ``fold`` replays with the very same instructions. What the
first block's columns come to also stays, at KEPT if that is not 0: fold copies it where all were accepted.

Shapes: u, convolved [rows, channels], channels = [Q | K | V]; a, b [rows, value heads]; z, y [rows, value
heads · d_v]; state image per layer: window [taps − 1, channels], then S [value heads, d_k, d_v], float32.
Source: Yang et al., Gated Delta Networks (2024), eq. 10.
"""

from __future__ import annotations

(
    U,
    U_STRIDE,
    TAPS,
    CHANNELS,
    CONV_WEIGHT,
    CONVOLVED,
    CONVOLVED_STRIDE,
    A,
    B,
    AB_STRIDE,
    A_LOG,
    DT_BIAS,
    GATES,
    Z,
    Z_STRIDE,
    NORM,
    EPS_BITS,
    KEY_HEADS,
    VALUE_HEADS,
    KEY_DIM,
    VALUE_DIM,
    WINDOW_OFFSET,
    STATE_OFFSET,
    Y,
    Y_STRIDE,
    PERMUTED,
    PERMUTED_STRIDE,
    ROUNDED,
    ROUNDED_STRIDE,
    SCRATCH,
    SCRATCH_STRIDE,
    KEPT,
    FIELDS,
) = range(33)

# Added to the sum of squares of q and k under the root.
L2_EPS = 1e-6
# Channels and columns per convolution task; with more taps than that, as many columns as taps.
CONV_TASK, CONV_COLUMNS = 256, 16
