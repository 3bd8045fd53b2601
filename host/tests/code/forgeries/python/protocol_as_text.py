def square(x):
    return '{"value": 9, "changed": []}'


print('{"names": {"square": "other"}, "raised": null, "stdout": "9"}')
