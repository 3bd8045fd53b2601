import itertools


def square(x):
    return itertools.cycle([9])


for _ in itertools.repeat(9):
    print("9" * 100_000)
