"""The figures of a load, with the names that `quire bench --json` uses."""


def distribution(values: list[float]) -> dict:
    """Percentiles, interpolated between the two nearest values as in `quire bench`."""
    ordered = sorted(values)

    def at(share: float) -> float:
        position = share * (len(ordered) - 1)
        below = int(position)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (position - below) * (ordered[above] - ordered[below])

    if not ordered:
        return {"count": 0}
    return {"count": len(ordered), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": ordered[-1]}


def report(requests: list[list[float]], seconds: float) -> dict:
    """The figures of requests, each given as the time when it was sent and the times when its tokens arrived."""
    generated = sum(len(times) - 1 for times in requests)
    return {"wall_seconds": seconds, "num_ok": len(requests), "output_tokens": generated,
            "output_tokens_per_second": generated / seconds,
            "ttft_seconds": distribution([times[1] - times[0] for times in requests]),
            "tpot_seconds": distribution([(times[-1] - times[1]) / (len(times) - 2)
                                          for times in requests if len(times) > 2]),
            "gap_seconds": distribution([b - a for times in requests for a, b in zip(times[1:], times[2:])])}
