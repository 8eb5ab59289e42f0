"""Every tolerance of the tests, each with its reason and the worst case seen (fp32, one CPU thread).

Absolute unless it says otherwise. Append; do not loosen one for a single test.
"""

from __future__ import annotations

# acct.models: rotation through the model's own rotary module repeats its arithmetic on the same numbers.
ROTATION = 0.0  # seen 0.0 for every family and RoPE kind: bit exact
UNROTATION = 2e-5  # seen 2e-6: cos^2 + sin^2 in fp32 on keys of magnitude about 10
# acct.source, acct.native: the same sums in another order (other batch or sequence width, cached prefix).
BATCHED_STATES = 1e-4  # seen 4.6e-5, on hidden states of magnitude 60
REUSED_QUERY = 2e-5  # seen 4e-6
LOGITS = 5e-5  # seen 1e-5
# acct.cartographer: fp32 sums in another order (padding, blocks, the float64 twin) on scores of magnitude about 1.
SCORES = 2e-6
# acct.attention, acct.cache
ATTENTION_FLOAT64 = 1e-12  # seen 2e-15
ATTENTION_FLOAT32 = 2e-6  # two kernels, outputs of magnitude 1
MOUNTED_LOGITS = 1e-4  # the same sums in another order; seen 7e-6 at 211 tokens
GATED_LOGITS = 1e-5  # closed positions masked instead of absent; seen 8e-6 on logits of magnitude 4
GATE_GRADIENT = 2e-5  # fp32 through three layers against a float64 attention
FINITE_DIFFERENCE = 2e-2  # relative, central differences in fp32 with step 1e-2
MOUNTED_LOGITS_BF16 = 0.2  # logits of magnitude 4 in bf16; seen 0.12
# acct.methods.compressors: fp32 states and sums against a stock eager run taken in float64; scores of at most a few units.
COMPRESSOR_SCORES = 2e-5
# acct.training.reading: states read in other batches, then four steps of AdamW, which makes steps of one size of rounding too.
REGROUPED_TRAINING = 2e-5  # seen 1.3e-6, on weights of magnitude 1
# acct.source_utility: logarithms of utilities in float32 against the teacher's in float64.
SOURCE_UTILITY = 1e-5  # seen 1.3e-6
# acct.compiler: the fast conversion against the plain one, in float64 so that no processor's order of sums matters; keys of magnitude 8.
FUSED_FLOAT64 = 1e-12  # seen 5e-15
