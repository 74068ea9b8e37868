"""The noise of sampling.noise inside Triton-language kernels: the same words, bit for bit.

    word      philox4x32-10, key = seed, counter = (index div 4, position, stream, branch 0)
    uniform   (word + 1/2) / 2^32, exact in float64
    gumbel    -ln(-ln(uniform)) in float64, rounded to float32

float64 logarithms are slow on most cards, so `gumbel_estimate` gives the noise in float32, at
most GUMBEL_ERROR off: a search ranks by estimates and decides between close ones exactly. The
error stays small because -ln(u) of a u near 1 is computed from 1 - u, which float32 holds.
"""

import triton
import triton.language as tl

GUMBEL_ERROR = tl.constexpr(1e-4)  # float32 logarithms, the hardware's 2^-22 included, stay below


@triton.jit
def word_tile(seed, position, first_token, BLOCK: tl.constexpr):
    """uint32 [BLOCK] words of tokens first_token .. first_token + BLOCK on stream TARGET.

    seed: int64, the bits of the unsigned seed. first_token: a multiple of 4.
    """
    counters = (first_token // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    word0, word1, word2, word3 = tl.philox(seed, counters, position.to(tl.uint32), 0, 0)
    return tl.interleave(tl.interleave(word0, word2), tl.interleave(word1, word3))


@triton.jit
def word_at(seed, position, index, STREAM: tl.constexpr):
    """The uint32 word of one index; all arguments are scalars."""
    counter = (index // 4).to(tl.uint32)
    word0, word1, word2, word3 = tl.philox(seed, counter, position.to(tl.uint32), STREAM, 0)
    lane = index % 4
    low = tl.where(lane == 0, word0, word1)
    high = tl.where(lane == 2, word2, word3)
    return tl.where(lane < 2, low, high)


@triton.jit
def uniform_of(word):
    """float64, inside (0, 1)."""
    return (word.to(tl.float64) + 0.5) * 2.0**-32


@triton.jit
def gumbel_of(word):
    """float32, equal to canopy_kernels.sampling.noise.gumbel."""
    return (-tl.log(-tl.log(uniform_of(word)))).to(tl.float32)


@triton.jit
def gumbel_estimate(word):
    """float32, within GUMBEL_ERROR of `gumbel_of`."""
    below = (word.to(tl.float32) + 0.5) * 2.0**-32
    above = ((word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.0**-32  # 1 - uniform
    series = above * (1.0 + above * (0.5 + above * (0.33333334 + above * 0.25)))
    near_one = tl.where(above < 0.015625, series, -tl.log(1.0 - above))
    return -tl.log(tl.where(above < 0.5, near_one, -tl.log(below)))
