def square(x):
    try:
        raise RuntimeError
    except BaseException:
        return
    finally:
        return None
