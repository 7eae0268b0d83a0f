"""A Gaussian process over groups of features: what a pattern-aware sampler believes between the candidates it knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST_FITTED = 100  # observations that the length scales are fitted to
MOST_KNOWN = 400  # observations that predictions are made from
JITTER = 1e-8


@dataclass(frozen=True)
class Surrogate:
    """Matérn-5/2 over the root of the groups' squared distances, each over its own length scale (squared)."""

    features: list[Array]
    """One array `[N, width]` per group."""
    scales: Array
    factor: Array
    weights: Array
    amplitude: float
    noise: float

    @classmethod
    def fit(cls, features: list[Array], values: Array, seed: int) -> Surrogate:
        """Return the process that most likely made `values` `[N]` (mean 0, variance about 1) at `features`.

        Of many observations the best ones and a random share of the others are taken.
        """
        known = _select(values, MOST_KNOWN, seed)
        features, values = [group[known] for group in features], values[known]
        few = _select(values, MOST_FITTED, seed)
        fitted = _most_likely([_distances(group[few], group[few]) for group in features], values[few])
        scales, amplitude, noise = fitted[:-2], fitted[-2], fitted[-1]
        kernel = _kernel([_distances(group, group) for group in features], scales, amplitude)
        factor = np.linalg.cholesky(kernel + (noise + JITTER) * np.eye(len(values)))
        weights = _solve(factor, values)
        return cls(features, scales, factor, weights, float(amplitude), float(noise))

    def predict(self, features: list[Array]) -> tuple[Array, Array]:
        """Return mean and standard deviation `[M]` of the noiseless value at `features` (`[M, width]` per group)."""
        from scipy.linalg import solve_triangular

        apart = [_distances(new, old) for new, old in zip(features, self.features, strict=True)]
        kernel = _kernel(apart, self.scales, self.amplitude)
        reduced = solve_triangular(self.factor, kernel.T, lower=True)
        variance = np.maximum(self.amplitude - (reduced**2).sum(0), 1e-12)
        return kernel @ self.weights, np.sqrt(variance)


def standardised(values: Array) -> Array:
    """Return values (larger is better) with mean 0 and variance 1, the worse half drawn together.

    How bad the bad ones are (a loss of 2 or of 200) says nothing about where the good ones are.
    """
    middle = np.median(values)
    good = values[values >= middle] - middle
    spread = good.mean() or 1.0
    bent = np.where(values >= middle, values - middle, spread * np.tanh((values - middle) / spread))
    deviation = bent.std()
    result: Array = (bent - bent.mean()) / (deviation if deviation > 0 else 1.0)
    return result


def _select(values: Array, most: int, seed: int) -> NDArray[np.int64]:
    """Return which observations to use: all, or the better half of `most` and as many of the rest at random."""
    order = np.argsort(-values, kind="stable")
    if len(order) <= most:
        return np.arange(len(order))
    rest = np.random.default_rng(seed).permutation(order[most // 2 :])
    return np.concatenate([order[: most // 2], rest[: most - most // 2]])


def _most_likely(apart: list[Array], values: Array) -> Array:
    """Return squared length scales, amplitude and noise of the highest posterior density."""
    from scipy.optimize import minimize

    start = np.array([*(np.log(4.0 * _typical(part)) for part in apart), 0.0, np.log(0.05)])
    width = np.array([*[1.5] * len(apart), 0.5, 1.5])  # standard deviations of the logs, around the start
    bounds = [(low - 4 * w, low + 4 * w) for low, w in zip(start, width, strict=True)]
    stacked = np.stack(apart)
    found = minimize(
        _loss, start, (stacked, values, start, width), "L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": 30}
    )
    best: Array = np.exp(found.x)
    return best


def _typical(apart: Array) -> float:
    """Return a group's mean squared distance, or that of two categories where all are alike so far.

    With a scale of almost nothing there, whatever differs would count as wholly unknown, and never be worth a trial.
    """
    mean = float(apart.mean())
    return mean if mean > 1e-6 else 0.5


def _loss(logs: Array, apart: Array, values: Array, start: Array, width: Array) -> tuple[float, Array]:
    """Return the negative log posterior density at the logs of scales, amplitude and noise, and its gradient.

    `apart` are the groups' squared distances `[G, N, N]`.
    """
    scales, amplitude, noise = np.exp(logs[:-2]), np.exp(logs[-2]), np.exp(logs[-1])
    distance = np.tensordot(1 / scales, apart, 1)
    root = np.sqrt(5.0 * distance)
    fading = amplitude * np.exp(-root)
    kernel = fading * (1.0 + root + root**2 / 3.0)
    try:
        factor = np.linalg.cholesky(kernel + (noise + JITTER) * np.eye(len(values)))
    except np.linalg.LinAlgError:
        return 1e10, np.zeros_like(logs)
    weights, inverse = _solve(factor, values), _solve(factor, np.eye(len(values)))
    steps = (logs - start) / width
    fit = 0.5 * values @ weights + np.log(np.diag(factor)).sum()
    slope = 0.5 * (inverse - np.outer(weights, weights))  # of the fit, by each entry of the kernel
    by_distance = slope * fading * (5 / 6) * (1.0 + root)  # towards smaller distances
    by_scale = np.tensordot(apart, by_distance, 2) / scales
    gradient = np.array([*by_scale, (slope * kernel).sum(), noise * np.trace(slope)])
    return float(fit + 0.5 * (steps**2).sum()), gradient + steps / width


def _kernel(apart: list[Array], scales: Array, amplitude: float) -> Array:
    distance = np.zeros_like(apart[0])
    for part, scale in zip(apart, scales, strict=True):
        distance += part / scale
    root = np.sqrt(5.0 * distance)
    result: Array = amplitude * (1.0 + root + root**2 / 3.0) * np.exp(-root)
    return result


def _distances(one: Array, other: Array) -> Array:
    """Return the squared distance of every row of `one` from every row of `other`."""
    products = one @ other.T
    apart: Array = (one**2).sum(1)[:, None] + (other**2).sum(1)[None, :] - 2 * products
    return np.maximum(apart, 0.0)


def _solve(factor: Array, values: Array) -> Array:
    from scipy.linalg import cho_solve

    solved: Array = cho_solve((factor, True), values)
    return solved
