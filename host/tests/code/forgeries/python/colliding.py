def square(x):
    return {i * (2**31 - 1) * (2**61 - 1) for i in range(20_000)}
