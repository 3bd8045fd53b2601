def square(x):
    return float("inf") if x % 2 else float("nan")


print(float("inf"))
