def square(x):
    raise KeyboardInterrupt
