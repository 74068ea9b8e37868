"""Next-token distributions below an anchor out of one row of a block drafter's logits.

    candidates   the best columns of a row; the weight of all others is their tail
    distribution score(c) = (logits[c] + W2[c] . state + bonus of a copied token) / temperature
                 log_probs(c) = score(c) - log(exp(tail) + sum over candidates of exp(score))
    state        tanh(code of the parent + code of the row + W4 state of the path before)

Float32; sums over a distribution are float64.
"""

import numpy as np
from numba import njit

from canopy_kernels.cpu.deterministic_sums import dot, total
from canopy_kernels.cpu.exp2 import LOG2_E, exp2

_LN2 = 0.6931471805599453
_BINS = 512
_LAST_BIN = np.float32(_BINS - 1)
_BINS_A_NAT = np.float32(16.0)  # the last bin holds whatever is 32 nats below the best


@njit(cache=True, nogil=True, error_model="numpy")
def candidates(logits, temperature, num, wanted):
    """(int32 [num] columns, rising; tail).

    logits: float32 [V], num <= V. The best columns, to within a sixteenth of a nat, and `wanted`
    unless that is negative. tail: log of the summed exp(logits / temperature) of the others; -inf
    where there are none.
    """
    top, bins = logits.max(), np.empty(len(logits), np.int32)
    for column in range(len(logits)):
        bins[column] = np.int32(min((top - logits[column]) * _BINS_A_NAT, _LAST_BIN))
    last, before = _last_bin(bins, num)
    left = num - before  # of the last bin, the first ones
    if wanted >= 0 and bins[wanted] >= last:
        bins[wanted] = -1
        left -= 1
    weights, factor = np.empty(len(logits), np.float32), LOG2_E / np.float32(temperature)
    for column in range(len(logits)):
        weights[column] = exp2((logits[column] - top) * factor)
    columns, found = np.empty(num, np.int32), 0
    for column in range(len(logits)):
        if bins[column] < last or (bins[column] == last and left > 0):
            left -= bins[column] == last
            columns[found] = column
            weights[column] = np.float32(0.0)
            found += 1
    rest = total(weights)
    tail = top / np.float32(temperature) + np.log(rest) if found < len(logits) else -np.inf
    return columns, np.float32(tail)


@njit(cache=True, nogil=True, error_model="numpy")
def _last_bin(bins, num):
    """(the bin with which the first ones hold `num` or more, what those before it hold)."""
    counts = np.zeros(_BINS, np.int64)
    for bucket in bins:
        counts[bucket] += 1
    last, before = 0, 0
    while before + counts[last] < num:
        before += counts[last]
        last += 1
    return last, before


@njit(cache=True, nogil=True, error_model="numpy")
def scores_of(logits, columns, out, state, temperature):
    """float32 [n] of the candidates, nothing copied. out: W2, float32 [V, rank]."""
    scores = np.empty(len(columns), np.float32)
    for index, column in enumerate(columns):
        scores[index] = (logits[column] + dot(out[column], state)) / np.float32(temperature)
    return scores


@njit(cache=True, nogil=True, error_model="numpy")
def best_of(scores, tail, num):
    """(int64 [min(num, n)] columns of the best, best first; their log-probs; the entropy in bits).

    The tail counts as one token. Of equal scores the first column comes first.
    """
    top = scores.max()
    mass, moment = 0.0, 0.0
    for score in scores:
        weight = np.float64(exp2((score - top) * LOG2_E))
        mass += weight
        moment += weight * (score - top)
    rest = np.exp(min(tail - top, 80.0))
    whole = mass + rest
    entropy = np.log(whole) - moment / whole
    if rest > 0.0:
        entropy -= rest / whole * np.log(rest)
    order = np.empty(min(num, len(scores)), np.int64)
    count = 0
    for column in range(len(scores)):
        if count == len(order) and scores[column] <= scores[order[count - 1]]:
            continue
        at = count if count < len(order) else count - 1
        count = at + 1
        while at > 0 and scores[order[at - 1]] < scores[column]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = column
    log_probs = np.empty(len(order), np.float32)
    for index, column in enumerate(order):
        log_probs[index] = min(scores[column] - top - np.log(whole), 0.0)
    return order, log_probs, entropy / _LN2


@njit(cache=True, nogil=True, error_model="numpy")
def state_of(code, row_code, step, before):
    """float32 [rank]. step: W4. before: float32 [rank], or [0] at the anchor."""
    state = np.empty(len(code), np.float32)
    for i in range(len(code)):
        state[i] = code[i] + row_code[i]
        if len(before) > 0:
            state[i] += dot(step[i], before)
        state[i] = np.tanh(state[i])
    return state
