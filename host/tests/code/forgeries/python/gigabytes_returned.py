def square(x):
    return "9" * (1 << 24)


print("9" * (1 << 24))
