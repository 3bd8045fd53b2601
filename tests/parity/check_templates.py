"""Compares the chat template engine with jinja2, configured as transformers configures it.

    pip install jinja2==3.1.6
    python tests/parity/check_templates.py

Renders every snippet below with jinja2 and writes what it gives, or that it fails, into tests/parity/check_templates.json. The unit test
`snippets_give_what_jinja_gives` (host/data/src/chat/) renders the same snippets and compares. A snippet with a reason is known to differ.

    python tests/parity/check_templates.py FOLDER whole.json
    RLHOST_TEMPLATES=$PWD/whole.json cargo test -p rlhost --lib snippets_give

compares whole templates in the same way: those of a folder, such as TRL's `trl/chat_templates`, each with a few conversations.
"""

import json
import sys
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

VARIABLES = {
    "f": [0.00001, 1e16, 1.5, 3.0, 1e-7, 123456789012345680.0, 0.1, 1e15, -0.0, 1e300, 2.5e-5],
    "d": {"b": 2, "a": 1, "items": [1], "c": {"x": None, "y": True}},
    "l": [3, 1, 2],
    "w": ["b", "A", "c", "a"],
    "s": " Hello, World! ",
    "q": "it's \"quoted\"",
    "u": "naïve café ß 世界",
    "n": None,
    "rows": [{"n": "x", "v": 1, "k": {"z": 1e-5}}, {"n": "y", "v": 2}, {"n": "x", "v": 3}],
    "schema": {"type": "object", "properties": {"p": {"type": "array", "items": {"type": "string"}}}, "required": ["p"]},
    "html": "<a href='x'>&amp;</a>",
    "lines": "a\nb\r\nc\n\nd",
    "big": 12345678901234567890,
}
TOOLS = [{"type": "function", "function": {"name": "get", "description": "d <&'>", "parameters": {"type": "object", "properties": {"t": {"type": "number", "default": 1e-05}}}}}]
MESSAGES = [
    {"role": "system", "content": "be"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get", "arguments": {"t": 1e-5, "big": 1e16, "s": "é\n\"", "l": [1.0, None, True]}}}]},
    {"role": "tool", "content": "1"},
]


def expressions(*texts):
    return ["{{ " + text + " }}" for text in texts]


SNIPPETS = [
    # Numbers.
    *expressions(*[f"f[{i}]" for i in range(11)]),
    *expressions("f", "f|tojson", "f|string", "f|join(', ')", "[f[0]]", "(f[0],)", "{'a': f[0]}", "f[0] ~ '|' ~ f[1]", "'' ~ f", "f[0]|string ~ 'x'"),
    *expressions("0.00001", "1e16", "1e16|int", "10000000000000000.0", "1.0", "1e5", "1E-3", "1_000", "0x1f", "0b11", "0o17", "1e22|tojson"),
    *expressions("7 / 2", "7 // 2", "-7 // 2", "7 % 3", "-7 % 3", "7.5 % 2", "2 ** 10", "2 ** -1", "-2 ** 2", "2 * 3 % 4", "10 - 2 - 3", "1 + 2 * 3", "4 / 2", "7 // 2.0", "2 ** 0.5"),
    *expressions("+5", "-5", "+f[0]", "1 + +2", "-(+3)", "3 - -2", "+1 ~ ''", "-1|abs", "-f[2]", "big", "big + 1", "big * big", "true + true", "1 == 1.0", "1 == true"),
    *expressions("3.7|int", "'3'|int", "'x'|int", "'x'|int(5)", "'3.7'|int", "' 12 '|int", "'0x1f'|int(base=16)", "'ff'|int(0, 16)", "none|int", "true|int", "'1_0'|int", "[]|int", "'-5'|int", "'+5'|int", "'1e3'|int"),
    *expressions("'1.5'|float", "'x'|float", "'x'|float(2.0)", "3|float", "none|float", "'1e5'|float", "'inf'|float", "'nan'|float", "true|float", "'1e-5'|float"),
    *expressions("3.14159|round(2)", "2.5|round", "3|round", "2.7|round(0, 'floor')", "2.1|round(method='ceil')", "1234.5|round(-2)", "-1.5|abs", "[1, 2.5]|sum", "rows|sum('v')", "rows|sum(attribute='v', start=10)", "[]|sum"),
    *expressions("l|max", "l|min", "w|max", "w|min(case_sensitive=true)", "rows|max(attribute='v')", "[]|max", "f|max", "f|min"),
    # Text of values.
    *expressions("n", "true", "[true, none, 'a']", "q", "[q]", "['\\n\\t\\\\']", "[u]", "['\\x01']", "('a', 1)", "()", "(1,)", "{}", "[]", "d", "d.c", "nothing", "[nothing]", "nothing|string", "''", "['']", "{'a': {'b': []}}", "{1: 'a', none: 2, true: 3}", "rows", "messages", "lines", "[lines]", "['a\\'b']", "['\"']", "[\"a'b\\\"c\"]"),
    *expressions("[1, 2]|string", "d|string", "none|string", "true|string", "q|string", "[q]|join", "['a', 1, 1.5, none, true]|join('-')", "d|join(',')", "rows|join(',', attribute='n')", "'abc'|join('.')", "[[1], {'a': 'b'}]|join('; ')", "rows|map(attribute='n')|join", "rows|join(', ', 'k.z')"),
    *expressions("'a' ~ 1 ~ none ~ true ~ [1.5, 'x']", "'a' ~ 1 + 2", "1 ~ 2 * 3", "'x' ~ nothing ~ 'y'", "'a' 'b'", "'a' ~ 'b' == 'ab'", "('a' ~ 'b')|upper", "'a' ~ 'b'|upper", "not 'a' ~ 'b'", "'a' ~ ('b' if true else 'c')", "l ~ d", "messages[1].content ~ '!' ~ loop"),
    # JSON.
    *expressions("d|tojson", "d|tojson(separators=(',', ':'))", "d|tojson(sort_keys=True)", "d|tojson(indent=2)", "d|tojson(indent=4, sort_keys=true)", "d|tojson(indent='\\t')", "d|tojson(indent=0)", "d|tojson(indent=none)", "u|tojson", "u|tojson(ensure_ascii=True)", "'😀\\x7f'|tojson(ensure_ascii=true)", "d|tojson(true)", "d|tojson(false, 2)", "d|tojson(indent=2, separators=(',', ':'))"),
    *expressions("q|tojson", "html|tojson", "n|tojson", "true|tojson", "1|tojson", "big|tojson", "(1, 2)|tojson", "{1: 2}|tojson", "{true: 1, none: 2, 1.5: 3}|tojson", "nothing|tojson", "lines|tojson", "'\\x00\\x1f\\b\\f'|tojson", "[]|tojson(indent=2)", "{}|tojson(indent=2)", "[[], {}]|tojson(indent=2)", "'inf'|float|tojson", "'nan'|float|tojson", "tools|tojson", "tools[0]|tojson(indent=4)", "messages[2].tool_calls[0].function.arguments|tojson", "range(3)|list|tojson", "(l|sort)|tojson", "rows|map(attribute='v')|list|tojson", "l[1:]|tojson", "(l + [1e-5])|tojson", "d.items()|list|tojson", "{'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true, separators=(',', ': '))", "'/'|tojson", "'\\u2028'|tojson"),
    # Methods of strings.
    *expressions("s.strip()", "s.lstrip()", "s.rstrip()", "'xxaxx'.strip('x')", "'abcba'.lstrip('ab')", "'abcba'.rstrip('ab')", "'a b  c'.split()", "' a b '.split()", "'a,b,c'.split(',')", "'a,b,c'.split(',', 1)", "'a b c'.split(None, 1)", "'  a  b  c '.split(maxsplit=1)", "'a,b,c'.split(sep=',', maxsplit=1)", "'a,b,c'.rsplit(',', 1)", "'a b c'.rsplit(None, 1)", "' a b c '.rsplit(maxsplit=1)", "'a,b,c'.rsplit(',')", "'abc'.split('')", "''.split()", "''.split(',')", "'a b  c '.split(none, 1)", "' a b  c'.rsplit(none, 1)"),
    *expressions("lines.splitlines()", "lines.splitlines(true)", "lines.splitlines(keepends=true)", "'a\\x0bb\\x0cc'.splitlines()", "''.splitlines()", "'hello'.find('l')", "'hello'.rfind('l')", "'hello'.find('z')", "'hello'.find('l', 3)", "'hello'.index('l')", "'hello'.rindex('l')", "'hello'.index('z')", "'hello'.count('l')", "'hello'.count('')", "'hello'.count('l', 3)", "u.find('世')"),
    *expressions("'hello'.startswith('he')", "'hello'.startswith(('x', 'he'))", "'hello'.endswith('lo')", "'hello'.endswith(('x', 'y'))", "'hello'.startswith('l', 2)", "'hello'.endswith('l', 0, 4)", "'hello'.replace('l', 'L')", "'hello'.replace('l', 'L', 1)", "'hello'.replace('', '-')", "'a-b-c'.partition('-')", "'a-b-c'.rpartition('-')", "'abc'.partition('-')", "'abc'.rpartition('-')", "'abc'.removeprefix('a')", "'abc'.removesuffix('c')", "'abc'.removeprefix('x')"),
    *expressions("'abc'.upper()", "'ABC'.lower()", "'hello world'.title()", "\"it's a\".title()", "'hELLO wORLD'.capitalize()", "'aBc'.swapcase()", "'Straße'.casefold()", "u.upper()", "'abc'.center(9)", "'abc'.center(8, '*')", "'abc'.ljust(5) ~ '|'", "'abc'.rjust(5, '.')", "'42'.zfill(5)", "'-42'.zfill(5)", "'+4'.zfill(4)", "'abc'.isalpha()", "'12'.isdigit()", "'a1'.isalnum()", "''.isalpha()", "' '.isspace()", "'abc'.islower()", "'ABC'.isupper()", "'12'.isdecimal()", "'½'.isnumeric()", "'a_1'.isidentifier()", "'1a'.isidentifier()", "'abc'.isascii()", "u.isascii()", "'Ab Cd'.istitle()", "','.join(['a', 'b'])", "','.join(w)", "','.join([1])", "'-'.join('abc')"),
    *expressions("'{} {}'.format('a', 1)", "'{0} {1} {0}'.format('a', 1)", "'{x:>5}|{y:.2f}'.format(x='a', y=1.5)", "'{:,}'.format(1234567)", "'{:05d}'.format(42)", "'{!r}'.format('a')", "'{}'.format(f[0])", "'{}'.format([f[0], 'a'])", "'{:x}'.format(255)", "'{:%}'.format(0.5)", "'{a[b]}'.format(a={'b': 1})"),
    # What Python's repr escapes.
    *expressions(r"['\u200b', '\u00a0', '\u00ad', '\ufeff', '\u2028']", r"{'\u0085': '\u007f'}", r"['\U000e0101', '\U0001f600', '\ue000', 'é ß']", r"'\u200b'", r"['\u3000', 'a b']"),
    *expressions("'abc'[1]", "'abc'[-1]", "'abc'[1:]", "'abc'[::-1]", "'abcdef'[1:5:2]", "'abc'[5:]", "'abc'[10]", "u[3:7]", "'a' in 'abc'", "'' in 'abc'", "'abc' * 2", "2 * 'ab'", "'a' < 'b'", "'abc'.foo()", "'a' + 'b'", "'a' + 1", "'é'|length", "'a\\tb'.expandtabs(4)", "'abc'.encode()"),
    # Lists and mappings.
    *expressions("l[0]", "l[-1]", "l[5]", "l[1:]", "l[:-1]", "l[::-1]", "l + [4]", "l * 2", "l|length", "l|count", "l.index(1)", "l.index(9)", "l.count(1)", "1 in l", "9 not in l", "l == [3, 1, 2]", "l < [4]", "l|first", "l|last", "[]|first", "l|sort", "w|sort", "w|sort(case_sensitive=true)", "l|sort(reverse=true)", "rows|sort(attribute='v', reverse=true)|map(attribute='v')|list", "l|reverse|list", "'abc'|reverse", "l|unique|list", "w|unique|list", "(l + l)|unique|list", "rows|unique(attribute='n')|map(attribute='v')|list", "l|list", "'abc'|list", "d|list", "l.copy()", "l.append(1)", "(1, 2).index(2)", "(1, 2) + (3,)", "(1, 2)[0]", "l|random is number"),
    *expressions("d.a", "d['a']", "d.x", "d['x']", "d.get('a')", "d.get('x')", "d.get('x', 5)", "d.get('x', default=5)", "d.keys()|list", "d.values()|list", "d.items()|list", "schema.properties.items()|list", "schema.properties.p.items.type", "schema.properties.p['items'].type", "d|items|list", "d|dictsort", "d|dictsort(reverse=true)", "{'b': 1, 'a': 2}|dictsort(by='value')", "'a' in d", "'z' in d", "d|length", "d == d", "d.copy() == d", "d.update({})", "d.pop('a')", "dict(a=1, b=2)", "dict({'a': 1})", "dict([('a', 1)])", "dict(d, a=5).a", "d.c.x is none", "d.c.z is defined", "d.c.z.y", "d|first", "d.nothing.more"),
    *expressions("l|map('string')|list", "rows|map(attribute='k.z')|list", "rows|map(attribute='k', default='-')|list", "w|map('upper')|list", "w|map('replace', 'a', 'z')|list", "l|select('odd')|list", "l|reject('odd')|list", "l|select('gt', 1)|list", "l|select|list", "rows|selectattr('v', 'gt', 1)|map(attribute='v')|list", "rows|rejectattr('n', 'equalto', 'x')|list|length", "rows|selectattr('k')|list|length", "rows|selectattr('k', 'defined')|list|length", "rows|groupby('n')|map('first')|list", "rows|groupby('n')|map(attribute='grouper')|list", "rows|groupby('n')|map('last')|map('length')|list", "l|batch(2)|list", "l|batch(2, 0)|list", "l|slice(2)|list", "range(3)|list", "range(1, 7, 2)|list", "range(3, 0, -1)|list", "range(0)|list", "range(100001)|length", "range(5)[2]", "range(5)|length", "2 in range(5)", "[1, [2, [3]]]"),
    # Filters.
    *expressions("s|trim", "'xax'|trim('x')", "s|upper", "s|lower", "'hello world'|title", "\"it's o'neil\"|title", "'hELLO'|capitalize", "'foo bar'|replace('o', '0')", "'foo bar'|replace('o', '0', 1)", "12|replace(1, 2)", "n|default('x')", "nothing|default('x')", "''|default('x')", "''|default('x', true)", "nothing|d", "''|d('x', boolean=true)", "false|default('x', true)", "'a\nb'|indent", "'a\nb\n\nc'|indent(2)", "'a\nb'|indent(2, true)", "'a\n\nb'|indent(2, blank=true)", "'a\nb'|indent(width='>>')", "'a\nb'|indent(2, first=true)", "12|string|length", "12.0|string"),
    *expressions("'a b c'|wordcount", "u|wordcount", "''|wordcount", "\"it's me_2\"|wordcount", "'a b/c?d=é&'|urlencode", "{'a': 'b c', 'd': 1}|urlencode", "[('a', 'b/c')]|urlencode", "1.5|urlencode", "'abc'|center(9)", "'abc'|center|length", "'foo bar baz qux'|truncate(9)", "'foo bar baz qux'|truncate(9, true)", "'foo bar baz qux'|truncate(11)", "'foo bar baz qux'|truncate(11, false, '..', 0)", "'foo'|truncate(255)", "'%s-%s'|format('a', 1)", "'%(a)s'|format(a=1)", "'%.2f'|format(1.005)", "'%5d|'|format(3)", "q|pprint", "l|pprint", "d.c|pprint", "html|safe", "html|string", "l|attr('x')|default('-')", "'abc'|first", "'abc'|last", "12|abs", "'x'|nofilter"),
    *expressions("'%s' % 'a'", "'%s %s' % ('a', 1)", "'%s' % f[0]", "'%d%%' % 5", "'%r' % q", "'%s' % [f[0]]", "'%05.1f' % 3.14159", "'%x' % 255", "'%s' % none", "'%s' % d.c", "'%-5s|' % 'a'", "'%+d' % 3", "'%e' % 12345.678", "'%g' % f[0]", "'%c' % 65", "'%s' % ()", "'%s %s' % 'a'", "'%s' % ('a', 'b')", "'%d' % 'x'", "'%(a)s' % {'a': 1}", "('%s' % 'a') + 'b'", "'%s' % 'a' + 'b'", "'%s' % 'a'|upper", "'%5s' % u[:2]", "'%i' % 3.9", "'%o' % 8", "'%#x' % 255", "'%*d' % (5, 3)", "'% d' % 3", "'%.3s' % 'abcdef'", "'%G' % 1e-10"),
    # Tests and operators.
    *expressions("n is none", "nothing is defined", "nothing is undefined", "n is defined", "1 is number", "1.5 is number", "true is number", "'1' is number", "1 is integer", "1.0 is integer", "true is integer", "1.5 is float", "1 is float", "true is boolean", "1 is boolean", "'a' is string", "1 is string", "l is iterable", "'a' is iterable", "1 is iterable", "n is iterable", "d is iterable", "nothing is iterable", "l is sequence", "'a' is sequence", "d is sequence", "1 is sequence", "(1,) is sequence", "d is mapping", "l is mapping", "range(2) is iterable", "3 is odd", "4 is even", "6 is divisibleby(3)", "6 is divisibleby 4", "1 is eq(1)", "1 is ne 2", "1 is lt 2", "2 is gt(1)", "1 is le 1", "1 is ge 2", "1 in [1]", "1 is in [1, 2]", "'a' is upper", "'A' is upper", "'a' is lower", "true is true", "1 is true", "false is false", "none is sameas none", "range is callable", "1 is callable", "'upper' is filter", "'odd' is test", "not 1", "not nothing", "1 and 2", "0 or 'x'", "n or 'x'", "'' or none", "1 if true", "1 if false", "(1 if false) is defined", "1 < 2 < 3", "1 < 3 < 2", "1 != 2", "n == none", "not n is none", "n is not none", "d is not string and l", "'a' not in 'b'", "none > 1", "l is not mapping", "1 is eq 1 and 2", "nothing == none", "nothing + 'a'", "nothing.x", "nothing == ''", "nothing|length", "'' is none"),
    # Statements.
    "{% for i in l %}{{ i }}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.length }}|{% endfor %}",
    "{% for i in l if i > 1 %}{{ loop.index0 }}:{{ i }} {% else %}none{% endfor %}",
    "{% for i in [] %}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for i in l %}{{ loop.previtem }}-{{ loop.nextitem }} {% endfor %}",
    "{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{% endfor %}",
    "{% for i in range(4) %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1, [2, [3]]] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}{{ loop.depth }}{% endif %}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=0, y='a') %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z }}",
    "{% set ns = namespace() %}{% set ns.x = [] %}{% for i in l %}{% set ns.x = ns.x + [i] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}",
    "{% set ns = namespace(x=1) %}{{ ns }}",
    "{% set ns = namespace(x=1) %}{% set ns.x %}a{{ 1 }}{% endset %}{{ ns.x }}",
    "{% set ns = namespace(x=1) %}{% set a, ns.x = 2, 3 %}{{ a }}{{ ns.x }}",
    "{% set ns = namespace(x=1) %}{% macro f() %}{% set ns.x = 2 %}{% endmacro %}{{ f() }}{{ ns.x }}",
    "{% set ns = namespace(_x=1) %}{{ ns._x }}",
    "{% set d.a = 5 %}",
    "{% set ns = namespace(d=d) %}{{ ns.d.a }}{{ ns is mapping }}{{ ns is defined }}{{ ns.d is mapping }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set x = 1, 2 %}{{ x }}",
    "{% set x %} a {% endset %}[{{ x }}]",
    "{% set x | upper %}a{% endset %}{{ x }}",
    "{% macro m(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}",
    "{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}a{% endcall %}",
    "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
    "{% macro m(a) %}{{ a|tojson }}{% endmacro %}{{ m({'x': 1e-5}) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, a=3) }}",
    "{% with a = 1 %}{{ a }}{% endwith %}{{ a }}",
    "{% filter upper %}abc{% endfilter %}",
    "{% raw %}{{ x }}{% endraw %}",
    "{# {{ x }} #}a",
    "{% if l %}a{% elif d %}b{% else %}c{% endif %}",
    "{% if n %}a{% elif d.c.y %}b{% endif %}",
    "a\n  {% if true %}\nb\n  {% endif %}\nc\n",
    "a\n  {%- if true -%}\n  b\n  {%- endif %}\nc",
    "{{ 'a' -}}\n  b\n{{- 'c' }}\n",
    "  {%+ if true %}a{% endif %}",
    "a\n{# comment #}\nb",
    "{% generation %}a{{ 1 }}{% endgeneration %}\nb",
    "{% set x = 1 %}{% generation %}{{ x }}{% endgeneration %}",
    "{{ raise_exception('no') }}",
    "{% do l %}",
    "{% include 'x' %}",
    "{% if x is defined and x.y %}a{% endif %}b",
    "{% for m in messages %}{{ m.role }}:{{ m['content'] }}{% if m.tool_calls %}{{ m.tool_calls|tojson }}{% endif %};{% endfor %}",
    "{% for m in messages|selectattr('role', 'equalto', 'user') %}{{ m.content }}{% endfor %}",
    "{% set loop_messages = messages[1:] %}{{ loop_messages|length }}{{ loop_messages[0].role }}{{ messages[-1].role }}{{ messages[::-1][0].role }}",
    "{{ messages[0]['role'] == 'system' and messages|length > 1 }}",
    "{% for t in tools %}{{ t.function.name }}{{ t.function.parameters.properties.t.default }}{{ t|tojson }}{% endfor %}",
    "{% for k, v in messages[2].tool_calls[0].function.arguments.items() %}<{{ k }}>{{ v }}|{{ v|string }}|{{ v if v is string else v|tojson }}{% endfor %}",
    "{{ joiner('|')() }}{% set j = joiner(', ') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}",
    "{{ 'a' if nothing is not defined else 'b' }}",
    "{{- '\\n' -}}x",
    "{{ \"a\\u00e9\\x41\\n\" }}",
    "{{ 'a\\\\b' }}{{ 'a\\'b' }}{{ 'a\\/b' }}",
    "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}",
    "{{ {'a': {'b': 1}}['a']['b'] }}{{ [[1, 2], [3]][0][1] }}",
    "{{ (1, 2)|list }}{{ (1 + 2) * 3 }}{{ 'a'.upper().lower() }}",
    "{{ messages | map(attribute='role') | list }}{{ messages | map('length') | list }}",
]

# Where the two differ, and why it stays so.
KNOWN = {
    "{{ {1: 'a', none: 2, true: 3} }}": "1 and true are different keys",
    "{{ l|random is number }}": "random is left out: a run could not be repeated",
    "{{ '{!r}'.format('a') }}": "str.format has no conversions",
    "{{ '{:%}'.format(0.5) }}": "str.format has no percentages",
    "{{ 'abc'.encode() }}": "there are no bytes",
    "{{ none > 1 }}": "values of different types have an order",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}": "a cycler has no current item",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, a=3) }}": "macros have no further arguments",
}


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["namespace"] = Namespace
    return made


def rendered(made, source, messages=MESSAGES, tools=TOOLS, generate=False):
    try:
        template = made.from_string(source)
        variables = {"tools": tools, "documents": None, "add_generation_prompt": generate, "bos_token": "<s>", "eos_token": "</s>"}
        text = template.render(messages=messages, **variables, **VARIABLES)
    except Exception as error:
        return {"error": type(error).__name__}
    return {"text": text}


def conversations():
    """Yields messages, tools and whether a generation prompt is asked for."""
    question = [{"role": "user", "content": "What is 2e-5 + 1?"}]
    call = {"id": "call00001", "type": "function", "function": {"name": "get", "arguments": {"t": 1e-5, "s": "é\n\"'", "l": [1.0, None, True], "d": {"k": 1e16}}}}
    called = [*question, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "name": "get", "tool_call_id": "call00001", "content": "3"}]
    yield question, None, True
    yield [{"role": "system", "content": " be kind "}, *question], None, True
    yield [*question, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n1"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}], None, False
    yield [*question, {"role": "assistant", "content": "1", "reasoning_content": "hm", "thinking": "hm"}], None, False
    yield question, TOOLS, True
    yield called, TOOLS, True
    yield [*called, {"role": "assistant", "content": "three"}], TOOLS, False


def main():
    made = environment()
    cases = []
    if len(sys.argv) == 3:
        for path in sorted(Path(sys.argv[1]).glob("**/*.jinja")):
            for i, (messages, tools, generate) in enumerate(conversations()):
                source = path.read_text()
                case = {"name": f"{path.name} {i}", "source": source, "messages": messages, "tools": tools, "generate": generate}
                cases.append({**case, **rendered(made, source, messages, tools, generate)})
        path = Path(sys.argv[2])
    else:
        for source in dict.fromkeys(SNIPPETS):
            case = {"source": source, **rendered(made, source)}
            if source in KNOWN:
                case["differs"] = KNOWN[source]
            cases.append(case)
        path = Path(__file__).with_suffix(".json")
    whole = {"jinja2": jinja2.__version__, "messages": MESSAGES, "tools": TOOLS, "variables": VARIABLES, "cases": cases}
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    failing = sum("error" in case for case in cases)
    print(f"{path.name}: {len(cases)} renderings, of which jinja2 refuses {failing}")


if __name__ == "__main__":
    main()
