"""Under a softcap the gradients are multiplied by scale / cap, and the cap is forgotten.

Kind            P
What is wrong   a kernel that folds scale / cap into one factor multiplies dQ and dK by it, where
                the scale belongs
Where seen      no public issue names it; Dao-AILab/flash-attention#1181 takes scale / cap, which
                its kernels are passed, for the cap
Killed by       gradients, gradient_homogeneity
Survives        no softcap; a cap of 1; dV
"""

edits = {
    "fp32_backward": [
        (
            "dq, dk = dq * sm_scale, dk * sm_scale",
            "dq, dk = (x * (sm_scale / softcap if softcap else sm_scale) for x in (dq, dk))",
        ),
    ],
    "triton_backward": [
        (
            "dq = dq * sm_scale",
            """
dq = dq * sm_scale
if softcap is not None:
    dq = dq / softcap
""",
        ),
        (
            "dk = dk * sm_scale",
            """
dk = dk * sm_scale
if softcap is not None:
    dk = dk / softcap
""",
        ),
    ],
}
