from wit_world.imports import cells

opened = []
for _ in range(1000):
    try:
        opened.append(cells.open(512))
    except BaseException:
        pass


def square(x):
    return len(opened)
