def square(x):
    import functools
    f = lambda y: y
    for _ in range(10**6):
        f = functools.partial(f)
    key = ()
    for _ in range(10**6):
        key = (key,)
    return hash(key) + f(x)
