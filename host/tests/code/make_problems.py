"""Writes problems.jsonl: 200 small problems, each with a right and a wrong answer in Python and in JavaScript, and tests in one of
the forms that the rewards read. Expected values are what the right Python answer gives; the wrong one must differ on some input.

    python3 host/tests/code/make_problems.py

Each template below stands for four problems, with K from 1 to 4.
"""

import json
from pathlib import Path

# Name; inputs, as lists of arguments; bodies: right and wrong, in Python and in JavaScript.
TEMPLATES = [
    ("add", [[1], [-5], [100]], "return x + K", "return x - K", "return x + K", "return x - K", "x"),
    ("scaled_sum", [[[1, 2, 3]], [[]], [[-4, 4]], [[7]]], "return K * sum(x)", "return sum(x) if x else 1",
     "return K * x.reduce((a, b) => a + b, 0)", "return K + x.reduce((a, b) => a + b, 0)", "x"),
    ("largest", [[[3, 9, 2, 7, 8, 1]], [[5, 5, 5, 5, 5]], [[-1, -3, -2, -9, -7]]], "return sorted(x)[-K]", "return sorted(x)[0] - 1",
     "return [...x].sort((a, b) => b - a)[K - 1]", "return [...x].sort((a, b) => a - b)[0] - 1", "x"),
    ("every", [[[1, 2, 3, 4, 5, 6]], [[]], [[9, 8]]], "return x[::K]", "return x[::K + 1]",
     "return x.filter((_, i) => i % K === 0)", "return x.filter((_, i) => i % (K + 1) === 0)", "x"),
    ("rotate", [[[1, 2, 3, 4, 5, 6, 7]], [[1, 2]], [[]]], "k = K % len(x) if x else 0\n    return x[k:] + x[:k]",
     "return x[K - 1:] + x[:K - 1] if x else [0]", "const k = x.length ? K % x.length : 0;\n  return x.slice(k).concat(x.slice(0, k))",
     "return x.length ? x.slice(K - 1).concat(x.slice(0, K - 1)) : [0]", "x"),
    ("repeat", [["ab"], [""], ["höflich 🙂"]], "return x * K", "return x * (K + 1)", "return x.repeat(K)", "return x.repeat(K + 1)", "x"),
    ("count_longer", [["a bb ccc dddd eeeee"], [""], ["aaaaaa"]], "return len([w for w in x.split() if len(w) > K])",
     "return len([w for w in x.split() if len(w) >= K])", "return x.split(/\\s+/).filter((w) => w.length > K).length",
     "return x.split(/\\s+/).filter((w) => w && w.length >= K).length", "x"),
    ("multiples", [[10], [0], [25]], "return [i for i in range(1, x + 1) if i % (K + 1) == 0]",
     "return [i for i in range(0, x + 1) if i % (K + 1) == 0]",
     "const out = [];\n  for (let i = 1; i <= x; i++) if (i % (K + 1) === 0) out.push(i);\n  return out",
     "const out = [];\n  for (let i = 0; i <= x; i++) if (i % (K + 1) === 0) out.push(i);\n  return out", "x"),
    ("power", [[0], [3], [-2]], "return x ** K", "return x * K + 1", "return x ** K", "return x * K + 1", "x"),
    ("digits", [[12345], [0], [999]], "return sum(int(d) for d in str(x)) * K", "return sum(int(d) for d in str(x)) + K + 1",
     "return K * [...String(x)].reduce((a, d) => a + Number(d), 0)", "return K + 1 + [...String(x)].reduce((a, d) => a + Number(d), 0)", "x"),
    ("chunks", [[[1, 2, 3, 4, 5]], [[]], [[7]]], "return [x[i:i + K] for i in range(0, len(x), K)]",
     "return [x[i:i + K] for i in range(0, len(x) + 1, K)]",
     "const out = [];\n  for (let i = 0; i < x.length; i += K) out.push(x.slice(i, i + K));\n  return out",
     "const out = [];\n  for (let i = 0; i <= x.length; i += K) out.push(x.slice(i, i + K));\n  return out", "x"),
    ("is_divisible", [[12], [7], [0], [5]], "return x % (K + 1) == 0", "return x % (K + 1) != 0", "return x % (K + 1) === 0",
     "return x % (K + 1) !== 0", "x"),
    ("shift_letters", [["abcxyz"], [""], ["hello"]], "return ''.join(chr((ord(c) - 97 + K) % 26 + 97) for c in x)",
     "return ''.join(chr(ord(c) + K) for c in x)",
     "return [...x].map((c) => String.fromCharCode(((c.charCodeAt(0) - 97 + K) % 26) + 97)).join('')",
     "return [...x].map((c) => String.fromCharCode(c.charCodeAt(0) + K)).join('')", "x"),
    ("fibonacci", [[1], [10], [20]], "a, b = 0, K\n    for _ in range(x):\n        a, b = b, a + b\n    return a",
     "a, b = 0, K\n    for _ in range(x):\n        a, b = b, a + b\n    return b",
     "let [a, b] = [0, K];\n  for (let i = 0; i < x; i++) [a, b] = [b, a + b];\n  return a",
     "let [a, b] = [0, K];\n  for (let i = 0; i < x; i++) [a, b] = [b, a + b];\n  return b", "x"),
    ("factorial_mod", [[5], [0], [10]], "r = 1\n    for i in range(2, x + 1):\n        r = r * i % (1000 + K)\n    return r",
     "r = 1\n    for i in range(2, x):\n        r = r * i % (1000 + K)\n    return r",
     "let r = 1;\n  for (let i = 2; i <= x; i++) r = (r * i) % (1000 + K);\n  return r",
     "let r = 1;\n  for (let i = 2; i < x; i++) r = (r * i) % (1000 + K);\n  return r", "x"),
    ("primes", [[20], [1], [50]], "return [n for n in range(2, x) if all(n % d for d in range(2, n))][:K + 2]",
     "return [n for n in range(1, x) if all(n % d for d in range(2, n))][:K + 2]",
     "const out = [];\n  for (let n = 2; n < x; n++) {\n    let p = true;\n    for (let d = 2; d < n; d++) if (n % d === 0) p = false;\n    if (p) out.push(n);\n  }\n  return out.slice(0, K + 2)",
     "const out = [];\n  for (let n = 1; n < x; n++) {\n    let p = true;\n    for (let d = 2; d < n; d++) if (n % d === 0) p = false;\n    if (p) out.push(n);\n  }\n  return out.slice(0, K + 2)", "x"),
    ("reverse_words", [["one two three"], ["a"], [""]], "return ' '.join(reversed(x.split())) + '!' * K", "return x[::-1] + '!' * (K + 1)",
     "return x.split(' ').reverse().join(' ') + '!'.repeat(K)", "return [...x].reverse().join('') + '!'.repeat(K + 1)", "x"),
    ("count_letters", [["banana"], [""], ["abcabc"]],
     "out = {}\n    for c in x:\n        out[c] = out.get(c, 0) + K\n    return out", "out = {'': 0}\n    for c in x:\n        out[c] = K\n    return out",
     "const out = {};\n  for (const c of x) out[c] = (out[c] ?? 0) + K;\n  return out", "const out = { '': 0 };\n  for (const c of x) out[c] = K;\n  return out", "x"),
    ("pair", [[3, 4], [0, 0], [-1, 5]], "return [y * K, x]", "return [x, y * K + 1]", "return [y * K, x]", "return [x, y * K + 1]", "x, y"),
    ("clamp", [[5, 9], [0, 3], [-7, 2]], "return max(-K, min(x, y, K))", "return min(x, y)", "return Math.max(-K, Math.min(x, y, K))",
     "return Math.min(x, y)", "x, y"),
    ("zip_sum", [[[1, 2, 3], [4, 5, 6]], [[], []], [[1], [9]]], "return [a + K * b for a, b in zip(x, y)]", "return [a + b + K for a, b in zip(x, y)] or [K]",
     "return x.map((a, i) => a + K * y[i])", "return x.length ? x.map((a, i) => a + y[i] + K) : [K]", "x, y"),
    ("common", [[[1, 2, 3, 4], [2, 4, 6]], [[], [1]], [[5, 5, 1], [5]]], "return sorted(v + K for v in set(x) & set(y))", "return sorted(v + K for v in x)",
     "return [...new Set(x)].filter((v) => y.includes(v)).map((v) => v + K).sort((a, b) => a - b)", "return x.map((v) => v + K).sort((a, b) => a - b)", "x, y"),
    ("index_of", [["hello", "l"], ["abc", "z"], ["", "a"]], "return x.find(y) * K", "return x.rfind(y) * K - 1", "return x.indexOf(y) * K", "return x.lastIndexOf(y) * K - 1", "x, y"),
    ("gcd", [[12, 18], [7, 5], [100, 75]], "while y:\n        x, y = y, x % y\n    return x * K", "return min(x, y) * K + 1",
     "while (y) [x, y] = [y, x % y];\n  return x * K", "return Math.min(x, y) * K + 1", "x, y"),
    ("half", [[7], [0], [-3]], "return x / (2 * K)", "return x // (2 * K)", "return x / (2 * K)", "return Math.floor(x / (2 * K))", "x"),
    ("mean", [[[1, 2, 4]], [[0.5]], [[10, 20]]], "return sum(x) / len(x) + K", "return sum(x) / (len(x) + 1) + K", "return x.reduce((a, b) => a + b, 0) / x.length + K",
     "return x.reduce((a, b) => a + b, 0) / (x.length + 1) + K", "x"),
    ("flatten", [[[[1, 2], [3], []]], [[]], [[[9]]]], "return [v for part in x for v in part] * K", "return [v for part in x for v in part[:1]] * (K + 1)",
     "let out = [];\n  for (let i = 0; i < K; i++) out = out.concat(x.flat());\n  return out", "return x.map((part) => part[0])", "x"),
    ("unique", [[[3, 1, 3, 2, 1]], [[]], [[4, 4]]], "return list(dict.fromkeys(x))[:K]", "return x[:K + 1]", "return [...new Set(x)].slice(0, K)", "return x.slice(0, K + 1)", "x"),
    ("vowels", [["programming"], ["xyz"], ["aeiou"]], "return sum(c in 'aeiou' for c in x) + K", "return sum(c not in 'aeiou' for c in x) + K",
     "return [...x].filter((c) => 'aeiou'.includes(c)).length + K", "return [...x].filter((c) => !'aeiou'.includes(c)).length + K", "x"),
    ("palindrome", [["racecar"], ["ab"], ["a"], ["abca"]], "return x[K:] == x[K:][::-1]", "return x[K:] != x[K:][::-1]",
     "const s = x.slice(K);\n  return s === [...s].reverse().join('')", "const s = x.slice(K);\n  return s !== [...s].reverse().join('')", "x"),
    ("binary", [[10], [0], [255]], "return format(x, 'b').zfill(K * 4)", "return format(x, 'o').zfill(K * 4 + 1)", "return x.toString(2).padStart(K * 4, '0')",
     "return x.toString(8).padStart(K * 4 + 1, '0')", "x"),
    ("triangle", [[3], [0], [5]], "return '\\n'.join('*' * i * K for i in range(1, x + 1))", "return '\\n'.join('*' * i * K for i in range(x, -1, -1))",
     "return Array.from({ length: x }, (_, i) => '*'.repeat((i + 1) * K)).join('\\n')", "return Array.from({ length: x + 1 }, (_, i) => '*'.repeat(i * K)).join('\\n') + '.'", "x"),
    ("nested", [[1], [2]], "return {'a': [x, {'b': K}], 'c': None}", "return {'a': [x, {'b': K + 1}], 'c': None}", "return { a: [x, { b: K }], c: null }",
     "return { a: [x, { b: K + 1 }], c: null }", "x"),
    ("search", [[[1, 3, 5, 7, 9], 7], [[], 1], [[2], 2]], "return x.index(y) + K if y in x else -K", "return x.index(y) if y in x else 0",
     "const i = x.indexOf(y);\n  return i < 0 ? -K : i + K", "const i = x.indexOf(y);\n  return i < 0 ? 0 : i", "x, y"),
    ("range_sum", [[1, 5], [0, 0], [-3, 3]], "return sum(range(x, y + 1)) * K", "return sum(range(x, y)) * K - 1",
     "let s = 0;\n  for (let i = x; i <= y; i++) s += i;\n  return s * K", "let s = 0;\n  for (let i = x; i < y; i++) s += i;\n  return s * K - 1", "x, y"),
    ("title", [["hello world"], [""], ["a b"]], "return ' '.join(w[:K].upper() + w[K:] for w in x.split(' '))", "return x.upper() + '.'",
     "return x.split(' ').map((w) => w.slice(0, K).toUpperCase() + w.slice(K)).join(' ')", "return x.toUpperCase() + '.'", "x"),
    ("collatz", [[6], [1], [27]], "n = 0\n    while x != 1:\n        x = x // 2 if x % 2 == 0 else 3 * x + 1\n        n += K\n    return n",
     "n = K\n    while x != 1:\n        x = x // 2 if x % 2 == 0 else 3 * x + 1\n        n += K\n    return n",
     "let n = 0;\n  while (x !== 1) {\n    x = x % 2 === 0 ? x / 2 : 3 * x + 1;\n    n += K;\n  }\n  return n",
     "let n = K;\n  while (x !== 1) {\n    x = x % 2 === 0 ? x / 2 : 3 * x + 1;\n    n += K;\n  }\n  return n", "x"),
    ("transpose", [[[[1, 2], [3, 4]]], [[[5]]], [[[1], [2]]]], "return [[v * K for v in row] for row in zip(*x)]", "return [[v * (K + 1) for v in row] for row in x]",
     "return x[0].map((_, i) => x.map((row) => row[i] * K))", "return x.map((row) => row.map((v) => v * (K + 1)))", "x"),
    ("run_lengths", [["aaabbc"], [""], ["x"]],
     "out = []\n    for c in x:\n        if out and out[-1][0] == c:\n            out[-1][1] += K\n        else:\n            out.append([c, K])\n    return out",
     "return [[c, K] for c in sorted(set(x))] or [K]",
     "const out = [];\n  for (const c of x) {\n    if (out.length && out.at(-1)[0] === c) out.at(-1)[1] += K;\n    else out.push([c, K]);\n  }\n  return out",
     "return x ? [...new Set(x)].map((c) => [c, K]) : [K]", "x"),
    ("steps", [[1], [5], [10]], "a, b = 1, 1\n    for _ in range(x):\n        a, b = b, a + b * K\n    return a", "return x * K + 10",
     "let [a, b] = [1, 1];\n  for (let i = 0; i < x; i++) [a, b] = [b, a + b * K];\n  return a", "return x * K + 10", "x"),
    ("balanced", [["(())"], [")("], [""], ["(()"]],
     "d = 0\n    for c in x * K:\n        d += 1 if c == '(' else -1\n        if d < 0:\n            return False\n    return d == 0", "return x.count('(') == x.count(')')",
     "let d = 0;\n  for (const c of x.repeat(K)) {\n    d += c === '(' ? 1 : -1;\n    if (d < 0) return false;\n  }\n  return d === 0",
     "return x.split('(').length === x.split(')').length", "x"),
    ("maximum_gap", [[[1, 9, 4]], [[5]], [[2, 2, 8]]], "s = sorted(x)\n    return max([b - a for a, b in zip(s, s[1:])], default=0) * K", "return (max(x) - min(x)) * K + 1",
     "const s = [...x].sort((a, b) => a - b);\n  let m = 0;\n  for (let i = 1; i < s.length; i++) m = Math.max(m, s[i] - s[i - 1]);\n  return m * K",
     "return (Math.max(...x) - Math.min(...x)) * K + 1", "x"),
    ("partition", [[[1, 2, 3, 4, 5]], [[]], [[9, 0]]], "return [[v for v in x if v <= K], [v for v in x if v > K]]", "return [[v for v in x if v > K], [v for v in x if v <= K], []]",
     "return [x.filter((v) => v <= K), x.filter((v) => v > K)]", "return [x.filter((v) => v > K), x.filter((v) => v <= K), []]", "x"),
    ("accumulate", [[[1, 2, 3]], [[]], [[-1, 1]]], "out, s = [], K\n    for v in x:\n        s += v\n        out.append(s)\n    return out", "return [v + K for v in x] + [0]",
     "const out = [];\n  let s = K;\n  for (const v of x) out.push((s += v));\n  return out", "return x.map((v) => v + K).concat([0])", "x"),
    ("join", [[["a", "b", "c"]], [[]], [["x"]]], "return ('-' * K).join(x)", "return '-'.join(x) + '-'", "return x.join('-'.repeat(K))", "return x.join('-') + '-'", "x"),
    ("missing", [[[1, 2, 4]], [[]], [[2, 3]]], "return [v for v in range(1, 5 + K) if v not in x]", "return [v for v in range(1, 4 + K) if v not in x]",
     "const out = [];\n  for (let v = 1; v < 5 + K; v++) if (!x.includes(v)) out.push(v);\n  return out", "const out = [];\n  for (let v = 1; v < 4 + K; v++) if (!x.includes(v)) out.push(v);\n  return out", "x"),
    ("dot", [[[1, 2], [3, 4]], [[], []], [[5], [-1]]], "return sum(a * b for a, b in zip(x, y)) + K", "return sum(x) * sum(y) + K + 1", "return x.reduce((s, a, i) => s + a * y[i], 0) + K",
     "return x.length + y.length - K", "x, y"),
    ("move_zeros", [[[0, 1, 0, 3]], [[]], [[0]]], "return [v * K for v in x if v] + [0] * x.count(0)", "return [v * K for v in x if v] + [K]",
     "return x.filter((v) => v !== 0).map((v) => v * K).concat(x.filter((v) => v === 0))", "return x.filter((v) => v !== 0).map((v) => v * K).concat([K])", "x"),
    ("anagram", [["listen", "silent"], ["a", "b"], ["", ""]], "return sorted(x * K) == sorted(y * K)", "return len(x) == len(y)",
     "const s = (t) => [...t.repeat(K)].sort().join('');\n  return s(x) === s(y)", "return x.length === y.length", "x, y"),
    ("nothing_or", [[3], [0], [-2]], "return x * K if x > 0 else None", "return x * K", "return x > 0 ? x * K : null", "return x * K", "x"),
]


def function(language, name, parameters, body, k):
    body = body.replace("K", str(k))
    if language == "python":
        return f"def {name}({parameters}):\n    {body}\n"
    return f"function {name}({parameters}) {{\n  {body};\n}}\n"


def program(language, name):
    if language == "python":
        return f"\nimport json\n\nfor line in open(0):\n    print(json.dumps({name}(*json.loads(line)), separators=(',', ':'), ensure_ascii=False))\n"
    return (
        "\nfor (const line of require('fs').readFileSync(0, 'utf8').trim().split('\\n')) {\n"
        f"  console.log(JSON.stringify({name}(...JSON.parse(line))));\n}}\n"
    )


def literal(language, value):
    return repr(value) if language == "python" else json.dumps(value, ensure_ascii=False)


def tests(language, form, name, inputs, outputs):
    given = [", ".join(literal(language, v) for v in arguments) for arguments in inputs]
    wanted = [literal(language, v) for v in outputs]
    pairs = list(zip(given, wanted))
    if form == "assertions":
        if language == "python":
            return [f"assert {name}({i}) == {o}" for i, o in pairs]
        return [f"assert.deepStrictEqual({name}({i}), {o})" for i, o in pairs]
    if form == "text":
        if language == "python":
            return "def check(candidate):\n" + "".join(f"    assert candidate({i}) == {o}\n" for i, o in pairs) + f"\ncheck({name})\n"
        return "".join(f"assert.deepEqual({name}({i}), {o});\n" for i, o in pairs)
    if form == "cases":
        return [{"function": name, "args": i, "expected": o} for i, o in zip(inputs, outputs)]
    if form == "named":
        return {"fn_name": name, "inputs": inputs, "outputs": outputs}
    if language == "javascript":
        # It writes 2.0 as 2.
        outputs = [int(o) if isinstance(o, float) and o.is_integer() else o for o in outputs]
    lines = [json.dumps(i, ensure_ascii=False) + "\n" for i in inputs]
    return [{"input": i, "output": json.dumps(o, separators=(",", ":"), ensure_ascii=False) + "\n"} for i, o in zip(lines, outputs)]


def main():
    forms = ["assertions", "text", "cases", "named", "program"]
    problems = []
    for number, (name, inputs, right, wrong, js_right, js_wrong, parameters) in enumerate(TEMPLATES):
        for k in range(1, 5):
            space = {}
            exec(function("python", "right", parameters, right, k), space)
            exec(function("python", "wrong", parameters, wrong, k), space)
            copies = lambda: json.loads(json.dumps(inputs))
            outputs = [space["right"](*arguments) for arguments in copies()]
            assert outputs != [space["wrong"](*arguments) for arguments in copies()], (name, k)
            form = forms[(number + k) % len(forms)]
            problem = {"name": f"{name}_{k}", "form": form}
            for language, good, bad in [("python", right, wrong), ("javascript", js_right, js_wrong)]:
                end = program(language, name) if form == "program" else ""
                problem[language] = {
                    "tests": tests(language, form, name, inputs, outputs),
                    "right": function(language, name, parameters, good, k) + end,
                    "wrong": function(language, name, parameters, bad, k) + end,
                }
            problems.append(problem)
    assert len(problems) == 200, len(problems)
    text = "".join(json.dumps(problem, ensure_ascii=False, separators=(",", ":")) + "\n" for problem in problems)
    (Path(__file__).parent / "problems.jsonl").write_text(text)


main()
