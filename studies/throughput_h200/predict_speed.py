"""How long a prediction takes: python studies/throughput_h200/predict_speed.py TABLE.json SPACE.yaml"""

from __future__ import annotations

import sys
import time

from archsearch.search.cost_tables import architectures, random_patterns
from archsearch.search.space import load_space
from archsearch.throughput.cost_table import load_table, with_vocabulary
from archsearch.throughput.predict import Predictor

NUMBER = 10_000


def main(table: str, file: str) -> None:
    space, predictor = load_space(file), Predictor(load_table(table))
    known = [x for x in map(with_vocabulary, architectures(space)) if not predictor.table.missing(x)]
    patterns = [with_vocabulary(x) for x in random_patterns(space, NUMBER, seed=5)]
    patterns = [x for x in patterns if not predictor.table.missing(x)] or known
    predictor.predict(patterns[0])
    started = time.perf_counter()
    for architecture in patterns:
        predictor.predict(architecture).interval(0.95)
    each = (time.perf_counter() - started) / len(patterns)
    print(f"{len(patterns):,} patterns of {space.name}: {1e6 * each:.0f} microseconds each, interval included")


if __name__ == "__main__":
    main(*sys.argv[1:])
