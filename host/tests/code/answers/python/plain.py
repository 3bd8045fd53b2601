import sys


def square(x):
    return x * x


for line in sys.stdin:
    print(square(int(line)))
