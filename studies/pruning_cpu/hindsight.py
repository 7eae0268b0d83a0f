"""What a pruner would have gained and lost: python hindsight.py STUDY/evidence.json LANDSCAPE.jsonl

The landscape holds the value of every candidate trained to its end, so that what a pruned one would have come to is
known. Says whether completed trials have the landscape's values, too.
"""

import json
import math
import sys
from pathlib import Path

from archsearch.search.ledger import kendall


def main(evidence: str, landscape: str) -> None:
    found = json.loads(Path(evidence).read_text())
    objective = found["objectives"][0]
    task, metric, sign = objective["task"], objective["metric"], 1 if objective["direction"] == "minimize" else -1
    rows = [json.loads(line) for line in Path(landscape).read_text().splitlines()]
    whole = {row["key"]: row["metrics"][task][metric] for row in rows if row["seed"] == found["seed"]}
    known = [x for x in found["trials"] if x["key"] in whole]  # two published placements have a shape of their own
    completed = {x["key"]: x["values"][0] for x in known if x["outcome"] == "completed"}
    pruned = {x["key"]: whole[x["key"]] for x in known if x["outcome"] == "pruned"}
    apart = max(abs(value - whole[key]) for key, value in completed.items())
    print(f"{len(completed)} completed, at most {apart:.2g} from the landscape; {len(pruned)} pruned")
    tried = sorted([*(whole[key] for key in completed), *pruned.values()], key=lambda value: sign * value)
    best = min(completed, key=lambda key: sign * whole[key])
    print(f"best completed {whole[best]:.4f}: place {tried.index(whole[best]) + 1} of the {len(tried)} that were tried")
    for number in sorted({rung["number"] for x in known for rung in x["rungs"]}):
        there = [(rung["values"][0], whole[x["key"]]) for x in known for rung in x["rungs"] if rung["number"] == number]
        tau, low, high = kendall(*zip(*there, strict=True)) or (math.nan,) * 3
        interval = f"{tau:.2f} ({low:.2f} to {high:.2f})"
        print(f"rung {number}, all {len(there)} that came to it: Kendall's tau with the end {interval}")
    lost = [tried.index(value) + 1 for value in pruned.values()]
    print(f"places of pruned ones among them, had they gone on: {sorted(lost)}")
    every = sorted(whole.values(), key=lambda value: sign * value)
    print(f"in the whole space: place {every.index(whole[best]) + 1} of {len(every)}, best {every[0]:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
