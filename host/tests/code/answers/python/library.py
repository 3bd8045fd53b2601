import collections, functools, heapq, itertools, math, operator, random, re, statistics, string, time
from dataclasses import dataclass
from typing import List, Optional

started = time.time()
random.seed(1)


@dataclass
class Number:
    value: int


@functools.lru_cache(maxsize=None)
def square(x: int) -> Optional[int]:
    numbers: List[Number] = [Number(x)]
    heap = [operator.mul(n.value, n.value) for n in numbers]
    heapq.heapify(heap)
    return int(collections.deque(itertools.islice(heap, 1)).pop())


if __name__ == "__main__":
    import sys

    for line in sys.stdin.buffer.read().decode().split():
        sys.stdout.write(f"{square(int(line))}  \n\n")
