"""The slopes of ALiBi ("Train Short, Test Long", arXiv:2108.12409). Needs only the standard library."""


def slopes(num_heads: int, bias_max: float = 8.0) -> list[float]:
    """[num_heads]: the amount that head h subtracts from a score for each token of distance:
    score - slope[h] * (query - key).

    With n the largest power of two <= num_heads: 2^(-bias_max * h / n) for h = 1..n; the heads beyond n take every
    second slope of the series for 2n. The paper has bias_max = 8; MPT's config may name another.
    """
    if num_heads < 1:
        raise ValueError(f"num_heads: want at least 1, got {num_heads}")
    n = 1 << (num_heads.bit_length() - 1)
    ladder = [2.0 ** (-bias_max * h / n) for h in range(1, n + 1)]
    between = [2.0 ** (-bias_max * (2 * h - 1) / (2 * n)) for h in range(1, num_heads - n + 1)]
    return ladder + between
