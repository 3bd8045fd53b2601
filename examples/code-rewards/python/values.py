"""Values as they pass between judge and cell: JSON, with tags for what JSON has not. Objects stay where they are and pass as
references."""

from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction

# Of a set or dictionary: numbers could be chosen to be slow together.
MOST_HASHED = 10_000
# Characters of a number.
LONGEST_NUMBER = 100_000

LISTS = {"l": list, "t": tuple, "s": set, "z": frozenset}


class Unsupported(Exception):
    """A test needs something that can't pass into a cell."""


def encode(value, refer):
    """Returns a value as JSON can hold it. `refer` gives what stands for an object."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        value = int(value)
        return value if -(2**53) < value < 2**53 else {"i": hex(value)}
    if isinstance(value, float):
        return {"f": float(value).hex()}
    for tag, kind in LISTS.items():
        if isinstance(value, kind):
            return {tag: [encode(item, refer) for item in kind.__iter__(value)]}
    if isinstance(value, (dict, OrderedDict)):
        return {"d": [[encode(k, refer), encode(v, refer)] for k, v in dict.items(value)]}
    if isinstance(value, (bytes, bytearray)):
        return {"b": bytes(value).hex()}
    if isinstance(value, complex):
        return {"c": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, Decimal):
        return {"D": str(value)}
    if isinstance(value, Fraction):
        return {"F": [hex(value.numerator), hex(value.denominator)]}
    if isinstance(value, (type({}.keys()), type({}.values()), type({}.items()), range)):
        return {"l": [encode(item, refer) for item in value]}
    return refer(value)


def decode(given, referred):
    """Returns the value that JSON stands for. What does not fit is an error of some kind."""
    if given is None or isinstance(given, (bool, int, str)):
        return given
    if not isinstance(given, dict):
        raise ValueError("not a value")
    ((tag, inside),) = given.items()
    if tag in ("s", "z", "d") and len(inside) > MOST_HASHED:
        raise ValueError("too many entries")
    if tag in ("i", "D") and len(inside) > LONGEST_NUMBER:
        raise ValueError("too long a number")
    if tag in LISTS:
        return LISTS[tag](decode(item, referred) for item in inside)
    if tag == "d":
        return {decode(k, referred): decode(v, referred) for k, v in inside}
    if tag == "i":
        return int(inside, 16)
    if tag == "f":
        return float.fromhex(inside)
    if tag == "b":
        return bytes.fromhex(inside)
    if tag == "c":
        real, imaginary = inside
        return complex(float.fromhex(real), float.fromhex(imaginary))
    if tag == "D":
        return Decimal(inside)
    if tag == "F":
        above, below = inside
        if len(above) + len(below) > LONGEST_NUMBER // 10:
            raise ValueError("too long a fraction")
        return Fraction(int(above, 16), int(below, 16))
    return referred(tag, inside)
