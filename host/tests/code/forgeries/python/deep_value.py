def square(x):
    deep = []
    for _ in range(10**6):
        deep = [deep]
    return deep


print("[" * 10**6)
