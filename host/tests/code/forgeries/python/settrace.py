import sys


def trace(frame, event, argument):
    frame.f_trace_opcodes = True
    return trace


sys.settrace(trace)
sys.setprofile(lambda *a: None)


def square(x):
    return 1
