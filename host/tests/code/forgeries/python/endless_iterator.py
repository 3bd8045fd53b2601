import itertools


def square(x):
    return itertools.count()


print(*range(10**7))
