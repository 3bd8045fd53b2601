def square(x):
    return 9 ** (10**6)
