"""The 0 that stands in for a maximum of -inf is stored as the running maximum.

Kind            B
What is wrong   after a block that is wholly hidden m is 0; scores that are all negative never
                lower it, and below -87 all weights underflow
Where seen      Dao-AILab/flash-attention#2082 (fix #2174); a review of tile-ai/tilelang#2360
                finds the same
Killed by       agreement
Survives        rows whose first block has a key, rows with a score above 0, and all scores
                that are not far below: above -87, in float64 above -745, with P rounded to
                float16 above -17. lse is right meanwhile, except in empty rows of triton_flash
"""

edits = {
    "numpy_online": [("m_i = m_new", "m_i = m_ref")],
    "fp32_stats": [("m_i = m_new", "m_i = m_ref")],
    "triton_flash": [("m_i = m_new", "m_i = m_ref")],
}
