"""Power: would the gate have caught it? Faults injected, and the gate run on them."""
