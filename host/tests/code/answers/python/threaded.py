import sys
import threading

sys.setrecursionlimit(10**6)
threading.stack_size(1 << 27)


def count(n):
    return 0 if n == 0 else 1 + count(n - 1)


square = lambda x: sum(count(abs(x)) for _ in range(abs(x)))


def main():
    try:
        print(square(int(input())))
    except EOFError:
        pass


thread = threading.Thread(target=main)
thread.start()
thread.join()
sys.exit()
