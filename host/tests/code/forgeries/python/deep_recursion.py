import sys

sys.setrecursionlimit(10**9)


def square(x):
    return square(x) + 1


square(1)
