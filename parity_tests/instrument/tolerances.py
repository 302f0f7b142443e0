"""Every constant of a verdict, with its reason; the rest of a bound is the oracle's own error analysis.

Tests of a property state their tolerance, and its reason, at the top of their file.
"""

from __future__ import annotations

import numpy as np

__all__ = [
    "COST_RUNS",
    "EXPLAINS",
    "FEW",
    "FUNCTION_UNITS",
    "GREW",
    "HALF_UNITS",
    "HUGE",
    "ORACLE_SHARE",
    "ORDINARY",
    "PEER_FACTOR",
    "PEER_FLOOR_SHARE",
    "PEER_FLOOR_UNITS",
    "PLAIN_UNITS",
    "PORT_FACTOR",
    "SAME_FUNCTION",
    "STAGE_SHARE",
    "TANH_UNITS",
    "UNDERFLOW",
]

# Errors of the elementary functions, in units of the result (of 1 for sine and cosine). Measured on a CPU over eight
# million float32 arguments: exp 1.4, sin and cos 0.6, in either framework; one unit is the rounding itself.
FUNCTION_UNITS = 2.0
# XLA computes tanh from a rational approximation: 4.7 measured at -5.74, where torch is within 1.1.
TANH_UNITS = 5.0

# Numbers below float32's smallest normal one may be flushed to zero, then multiplied by others of up to a thousand.
UNDERFLOW = 1e3 * float(np.finfo(np.float32).tiny)

# A float64 result is compared with a float64 oracle, which is rounded as often as it is itself. For the same reason
# the sides of a float64 run are not compared with each other: the nearer one may only round as the oracle does.
ORACLE_SHARE = 2.0

# How many times worse than its peer one side may be, in the worst slice. Two right programs sum in different orders:
# over 17000 correct float32, bfloat16 and float16 runs (20 drawings of every case) the largest ratio was 2.7.
PEER_FACTOR = 4.0

# A peer's error counts as at least so much. In units of the largest number of the tensor: an ordinary rounding.
PEER_FLOOR_UNITS = 2.0
# As a share of the bound: the bound adds up n roundings that all err the same way, honest ones mostly cancel.
PEER_FLOOR_SHARE = 1 / 64

# Without an oracle a bound is what float32 was seen to cost PyTorch's side, times so much. Twice PEER_FACTOR, which was
# measured on this project's pairs: functions of the two libraries differ more. The gradient of gelu by 5 to 12, in its
# tail, where JAX's tanh has no more digits: beyond the factor that is said, as A_WORSE, and is no other function.
PORT_FACTOR = 2 * PEER_FACTOR
# In float64 two right programs may differ by so much of the largest number of a slice, whatever float32 costs: the
# functions of one library are off by hundreds of roundings in their tails (JAX's gelu). Faults are of 1e-7 and more.
SAME_FUNCTION = 2.0**-38
# In so many runs. The largest error of one is now and then a quarter of that of another, where there are few numbers.
COST_RUNS = 4
# In half precision no more than so many units of the largest number: to round after every operation costs a few, and an
# angle or a long sum in half precision costs hundreds.
HALF_UNITS = 32

# Two stages of float64 runs hold the same numbers if they differ by so much of the largest. Constants may be float32 on
# one side, 6e-8 of their size, and angles carry that over hundreds of tokens; faults are of 1e-3 and more.
STAGE_SHARE = 2e-5
# A hypothesis explains a difference if it leaves so much of it: of a difference of a percent, what STAGE_SHARE allows.
EXPLAINS = 1e-3
# What is written for minus infinity is finite in some programs: -1e9, the least float32 or half of it.
HUGE = 1e8
# The largest error of fewer numbers than these is a matter of luck.
FEW = 16

# A recorded error grew if it is so many times what it was: sums in another order, as of another compiler, may double
# it.
GREW = 2.0
# An error counts as at least an honest one, of which its bound is PORT_FACTOR times: less may have been luck.
ORDINARY = 1 / PORT_FACTOR
# Between two files nothing is known but the numbers: a sum of a thousand terms is off by about sqrt(1000) roundings
# of the largest number.
PLAIN_UNITS = 32
