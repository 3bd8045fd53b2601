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
    # Views of mappings, and ranges.
    *expressions("d.keys()", "d.values()", "d.items()", "d.keys()|string", "d.c.keys() ~ ''", "[d.c.values()]", "d.c.items()|join('-')", "d.keys()[0]", "d.keys() == ['b', 'a', 'items', 'c']", "d.keys() == d.keys()", "d.keys() == d.copy().keys()", "d.values() == d.values()", "d.items() == d.items()", "d.keys() is sequence", "d.keys() is iterable", "d.keys() is mapping", "d.keys() is callable", "d.keys()|length", "d.keys()|sort", "d.keys()|first", "d.keys()|last", "d.c.items()|last", "d.values()|length", "'a' in d.keys()", "'z' in d.keys()", "('a', 1) in d.items()", "('a', 2) in d.items()", "1 in d.values()", "{}.keys()", "({}.keys())|length", "not {}.keys()", "d.keys()|tojson", "d.keys() + ['x']", "d.keys() * 2", "d.keys()[1:]", "d.keys()|join(',')", "d.keys()|map('upper')|list", "d.keys()|list|length", "'{}'.format(d.c.keys())", "'%s' % d.c.keys()", "d.c.keys() < 1", "d|dictsort|first", "d|items|first", "nothing|items|list", "5|items|list", "none|items|list", "dict(d.c.items())", "dict(d.c.keys())", "d.keys()|reverse|list", "d.keys().foo()", "d.c.keys()|pprint"),
    *expressions("range(3)", "range(1, 3)", "range(1, 7, 2)", "range(10)[2:5]", "range(10)[::-1]", "range(10)[::2]", "range(10)[8:2:-3]", "range(5)[-1]", "range(5)[7]", "range(3) == [0, 1, 2]", "range(3) == range(0, 3)", "range(0, 3, 2) == range(0, 4, 2)", "range(0) == range(2, 1)", "range(3) != range(4)", "range(3).start", "range(3).stop", "range(1, 7, 2).step", "range(3).nothing", "range(3.0)", "range('3')", "range(true)", "range(none)", "range()", "range(1, 2, 0)", "range(stop=3)", "range(3)|tojson", "range(3) + [1]", "range(3)|sum", "range(3) * 2", "[range(2)]", "range(3)|string", "range(3) is sequence", "range(3) is mapping", "range(3) is callable", "range(3)|first", "range(3)|last", "range(3)|reverse|list", "2 in range(3)", "3 in range(3)", "2.0 in range(3)", "'a' in range(3)", "range(3).index(2)", "range(3).index(7)", "range(3).count(1)", "range(3)|join", "range(3)|batch(2)|list", "range(3)|map('string')|list", "range(3) < range(4)", "range(3)|length", "range(3)|max", "not range(0)", "range(2)|pprint", "range(-3)|list", "range(2) ~ 'x'"),
    # Slices.
    *expressions("l[2:0:-1]", "l[0:2:-1]", "l[:0:-1]", "l[::-2]", "l[-1:-3:-1]", "l[-1::-1]", "l[5:0:-1]", "l[-9:9]", "l[9:]", "l[:-9]", "l[1:1]", "l[2:1]", "l[none:2]", "l[::none]", "l[::0]", "l['a':]", "l[1.0:]", "l[true:]", "'abcdef'[4:1:-1]", "'abcdef'[4:1:-2]", "'abcdef'[-2:-5:-1]", "'abcdef'[::-2]", "'abcdef'[:0:-1]", "u[-3:]", "''[::-1]", "(1, 2, 3)[2:0:-1]", "(1, 2, 3)[1:]", "(1, 2, 3)[:1]", "nothing[1:]", "n[1:]", "l[0][1:]", "d[1:]", "l[1:][0]", "l[l[1]:]", "l[-(1):]", "(l + l)[1:4]|length", "messages[1:]|length", "messages[:-1][-1].role", "l[1:] == [1, 2]", "l[1:] + l[:1]", "l[0 if true else 1:2]", "l[1:]|tojson", "l[1:] is sequence", "(l[1:])[1:]"),
    # Escapes for HTML, and groups.
    *expressions("html|e", "html|escape", "q|e", "1|e", "none|e", "nothing|e", "[html]|e", "html|safe|e", "html|e|e", "html|forceescape", "html|safe|forceescape", "(html|e) ~ '<'", "'<' ~ (html|e)", "html|e|upper", "html|e|length", "html|e is string", "html|e is escaped", "html is escaped"),
    *expressions("rows|groupby('n')|list", "rows|groupby(attribute='n')|list", "rows|groupby('v')|map('last')|list", "rows|groupby('k.z', default=0)|list|length", "(rows|groupby('n'))[0][0]", "(rows|groupby('n'))[0].list|length", "(rows|groupby('n'))[0] is sequence", "(rows|groupby('n'))|length", "rows|groupby('n')|map('length')|list", "rows|groupby('n')|tojson", "[{'n': 'b'}, {'n': 'B'}, {'n': 'a'}]|groupby('n')|list", "[{'n': 'b'}, {'n': 'B'}]|groupby('n', case_sensitive=true)|list", "[{'n': 1}, {'n': 'B'}]|groupby('n')", "[{'n': 1}, {}]|groupby('n')|list", "[[1, 2], [1, 3]]|groupby(0)|list", "rows|groupby", "messages|groupby('role')|map(attribute='grouper')|list"),
    "{% for k, v in rows|groupby('n') %}{{ k }}{{ v|length }}{% endfor %}",
    "{% for g in rows|groupby('n') %}{{ g.grouper }}{{ g.list|map(attribute='v')|list }}{% endfor %}",
    # Sorting.
    *expressions("w|sort(true)", "w|sort(false, true)", "w|sort(true, true)", "rows|sort(false, false, 'v')|map(attribute='v')|list", "rows|sort(attribute='n,v')|map(attribute='v')|list", "rows|sort(attribute='k.z')|length", "w|sort(reverse=true, case_sensitive=true)", "['b', 1]|sort", "[none, 1]|sort", "[1, true, 0.5]|sort", "[[2], [1, 5], [1]]|sort", "[(2, 'a'), (1, 'b')]|sort", "[{}, {}]|sort", "'bca'|sort", "d|sort", "n|sort", "5|sort", "nothing|sort", "['a', 'B', 'A', 'b']|sort", "['a', 'B', 'A', 'b']|sort(reverse=true)", "['ß', 's', 'z']|sort", "w|unique(true)|list", "(w + ['B'])|unique|list", "(w + ['B'])|unique(true)|list", "(w + ['B'])|unique(case_sensitive=true)|list", "[1, 1.0, true, 2]|unique|list", "rows|unique(false, 'n')|map(attribute='v')|list", "[[1]]|unique|list", "nothing|unique|list", "n|unique|list", "w|max(true)", "w|min(true)", "w|max(case_sensitive=true)", "rows|max(false, 'v')", "rows|min(attribute='v')", "[]|min", "nothing|max", "['a', 1]|max", "[1, none]|min", "['a', 'A']|max", "['a', 'A']|min", "['A', 'a']|max", "[1, 1.0]|max", "n|max", "l|max(true)", "rows|max", "'bca'|max"),
    *expressions("d|dictsort(true)", "{'b': 1, 'a': 2}|dictsort(false, 'value')", "{'b': 1, 'a': 2}|dictsort(false, 'value', true)", "{'b': 1, 'A': 2}|dictsort(true)", "{'b': 1, 'A': 2}|dictsort", "{'b': 1, 'a': 2}|dictsort(by='other')", "{'b': 1, 'a': 2}|dictsort(by='key', reverse=true)", "{1: 2, 'a': 3}|dictsort", "{'a': none, 'b': 1}|dictsort(by='value')", "l|dictsort", "nothing|dictsort", "{}|dictsort", "({'b': 1}|dictsort)[0]", "d|dictsort|tojson"),
    # str.format.
    *expressions("'{!r}'.format(q)", "'{!s}'.format(q)", "'{!a}'.format(u)", "'{!r:>10}'.format('a')", "'{:.1%}'.format(0.123)", "'{:%}'.format(0.5)", "'{:.0%}'.format(1)", "'{:>{w}}'.format('a', w=5)", "'{:{}}'.format('a', 3)", "'{:{}.{}f}'.format(1.23456, 8, 2)", "'{0:{1}}|{0}'.format('a', 3)", "'{:>5}'.format(l)", "'{}'.format(l)", "'{}'.format(d.c)", "'{}'.format(none)", "'{:>5}'.format(none)", "'{}'.format(true)", "'{:>6}'.format(true)", "'{:d}'.format(true)", "'{}'.format(nothing)", "'{:5}|'.format('a')", "'{:5}|'.format(1)", "'{:<5}|'.format(1)", "'{:^5}|'.format('ab')", "'{:*^7}'.format('ab')", "'{:=5}'.format(-3)", "'{:05}'.format(-3)", "'{:05}'.format('a')", "'{:=5}'.format('a')", "'{:+}'.format(3)", "'{: }'.format(3)", "'{:+}'.format('a')", "'{:+.1f}'.format(2)", "'{:,}'.format(1234567.891)", "'{:_}'.format(1234567)", "'{:,.2f}'.format(1234567.891)", "'{:012,}'.format(1234567)", "'{:,}'.format('a')", "'{:b}'.format(5)", "'{:#b}'.format(5)", "'{:#x}'.format(255)", "'{:#X}'.format(255)", "'{:o}'.format(8)", "'{:_b}'.format(1023)", "'{:c}'.format(65)", "'{:n}'.format(1234)", "'{:e}'.format(12345.678)", "'{:.2e}'.format(0.00012)", "'{:E}'.format(12345)", "'{:g}'.format(0.00001)", "'{:g}'.format(1234567)", "'{:.3g}'.format(3.14159)", "'{:G}'.format(1e-10)", "'{:.2}'.format(3.14159)", "'{:.3}'.format('abcdef')", "'{:8.3}|'.format('abcdef')", "'{:.2f}'.format('a')", "'{:d}'.format(1.5)", "'{:d}'.format('a')", "'{:x}'.format(1.5)", "'{:.2d}'.format(1)", "'{:s}'.format('a')", "'{:s}'.format(1)", "'{:f}'.format(3)", "'{:f}'.format(f[0])", "'{}'.format(f[1])", "'{:10}|'.format(f[0])", "'{:10}|'.format(1e16)", "'{:.3}'.format(1e10)", "'{:q}'.format(1)"),
    *expressions("'{{}}'.format(1)", "'{{{}}}'.format(1)", "'{'.format(1)", "'}'.format(1)", "'{}'.format()", "'{1}'.format(1)", "'{x}'.format(1)", "'{} {0}'.format(1)", "'{0} {}'.format(1)", "'{a.b}'.format(a={'b': 1})", "'{a[b]}'.format(a=d)", "'{0[a]}'.format(d)", "'{0[1]}'.format(l)", "'{[1]}'.format(l)", "'{0[-1]}'.format(l)", "'{0[x]}'.format(d)", "'{0[c][y]}'.format(d)", "'{0.__class__}'.format(1)", "'{x!z}'.format(x=1)", "'{x!}'.format(x=1)", "'{x:}'.format(x=1)", "'{x!r:}'.format(x='a')", "'{} {}'.format(*l)", "'{a}'.format(**d)", "'{a}{b}'.format_map(d)", "'a'.format(1, 2, x=3)", "'{:{}}'.format(1)", "'{:1000000000000}'.format(1)", "'{0:>{0}}'.format(5)"),
    *expressions("'%a' % u", "'%a' % 'a'", "'%5a|' % 'a'", "'%r' % u"),
    # Letters and digits of Unicode.
    *expressions(r"'ßa'|capitalize", r"'ßa'.capitalize()", r"'\u01c6abc'.capitalize()", r"'ΑΣ'|capitalize", r"'ΑΣ'.capitalize()", r"'ﬁx'.capitalize()", r"'ﬁx'|capitalize", r"'ß'.title()", r"'\u01c6'.title()", r"'\u01c5'.istitle()", r"'ßa'|title", r"'ΑΣ ΑΣ'.title()", r"'ΑΣ ΑΣ'|title", r"'ﬁ'.casefold()", r"'\u0149'.casefold()", r"'ſ'.casefold()", r"'ΑΣ'.casefold()", r"'ẞ'.casefold()", r"'ᾳ'.title()", r"'ა'.title()", r"'ა'.upper()", r"'ΑΣ'.lower()", r"'ΑΣ'|lower", r"'İ'.lower()|length", r"'ŉa'|capitalize", "'aʼb'.title()", "'ªb'.title()", "'ⓐb'.title()", "'éa'|capitalize", "''|capitalize", "12|capitalize", "''|title", "'1a b2c'.title()", "'1a b2c'|title", "'A'.istitle()", "'Aa Bb'.istitle()", "'AA'.istitle()", "'1'.istitle()", "'Ab1Cd'.istitle()", "'ßa'.swapcase()", "'ΑΣ'.swapcase()", "'ª'.islower()", "'Ⓐ'.isupper()", "'\\u01c5'.isupper()", "'\\u01c5'.islower()"),
    *expressions("'５'|int", "'١'|int", "'１２.５'|float", "'１'|int(base=16)", "'١'.isdecimal()", "'²'.isdecimal()", "'²'.isdigit()", "'½'.isdigit()", "'一'.isnumeric()", "'一'.isdigit()", "'Ⅷ'.isnumeric()", "'①'.isdigit()", "'㉑'.isdigit()", "'\\x1c'.isspace()", "'\\u3000'.isspace()", "'\\u200b'.isspace()", "'a·b'.isidentifier()", "'é'.isidentifier()", "'a-b'.isidentifier()", "'²'.isidentifier()", "'_'.isidentifier()", "''.isidentifier()", "'½'.isalnum()", "'一'.isalnum()", "'ⓐ'.isalpha()", "'\\u0345'.isalpha()", "'ª'.isalpha()", "'abc'.isprintable()", "'\\n'.isprintable()", "''.isprintable()", "u.isprintable()", "'\\u200b'.isprintable()"),
    # Operators.
    *expressions("'a' * -1", "l * -1", "(1, 2) * -1", "-1 * 'a'", "-1 * l", "l * 0", "'a' * 0", "'a' * 2.0", "'a' * true", "l * 'a'", "'a' * 'b'", "2 * 3.5", "2 * -3", "true * 3", "none * 2", "d * 2", "nothing * 2", "2 * 3 * 'a'", "'a' * 2 * 3", "2 + 3 * 4 - 1", "l * 2 + [1]", "-true", "+true", "+'a'", "-'a'", "+l", "-l", "+none", "-none", "+nothing", "-nothing", "-big", "- - 3", "-(1.5)", "+1.5", "-d.a", "-l[0]", "-l|first", "-2|abs", "3 - -l[0]", "not -1", "- 3 * 2", "2 * -l[0]", "1 + -true", "true + 1", "true - true", "1.5 * true", "(-8) ** 2", "2 ** -l[1]", "2 ** 3 ** 2", "true ** 2"),
    *expressions("none < 1", "'a' < 1", "1 < 'a'", "none > none", "none <= none", "nothing < 1", "1 > nothing", "1 >= 1", "1.5 >= 1", "true < 2", "false <= 0", "'a' <= 'a'", "'b' > 'a'", "[1] < [2]", "[1] < [1, 0]", "[1, 'a'] < [1, 2]", "[1, 'a'] < [2, 2]", "[1] < (2,)", "(1, 2) < (1, 3)", "d < d", "l >= l", "'nan'|float < 1", "'nan'|float >= 'nan'|float", "big > 1", "big < 1e30", "1 < 2 < 3", "1 < 2 > 1", "3 > 2 > 2", "1 < 2 == 2", "1 == 1 < 2", "1 < 'a' == 2", "not 1 < 2", "1 < 2 and 2 < 1", "1 + 1 < 3", "'a' ~ 'b' < 'b'", "1 if 1 < 2 else 3", "[1 < 2, 2 < 1]", "{'a': 1 < 2}", "(1 < 2)|string", "l|length > 2", "l|length > 2 and l[0] >= 3", "d.a < d.b", "1 is lt 'a'", "1 is gt none", "'a' is le 'b'", "l|select('gt', 'a')|list", "l|select('lt', 3)|list", "rows|selectattr('v', '>', 1)|list|length", "[1, 'a']|select('<', 2)|list", "rows|selectattr('k', '<', 1)|list", "1 < 2 is true", "3 is divisibleby 3 and 1 < 2", "l[0] is divisibleby l[0] and true"),
    *expressions("1 in 'a'", "nothing in 'abc'", "none in 'abc'", "'a' in nothing", "'a' in none", "'a' in 5", "1 in 5", "1 not in 'a'", "1.0 in l", "true in l", "'a' in ['b', none]", "none in [none]", "nothing in [nothing]", "nothing in l", "[1] in [[1]]", "1 in d", "'a' in d and 'b' in d", "'a' in d == true", "'a' not in d", "not 'a' in d", "'a' in 'abc' in 'abcabc'", "1 in (1, 2)", "'x' is in 'xyz'", "1 is in 'a'", "1 is in none", "'bc'|list|select('in', 'abc')|list", "'a' in ('a' ~ 'b')", "'a' + 'b' in 'abc'", "'role' in messages[0]", "'system' in messages[0].role", "'a' in messages[2]['content']", "('tool_calls' in messages[2]) and messages[2].tool_calls", "'a' if 'b' in 'abc' else 'c'", "[1 in l, 9 in l]", "'a' in w|map('lower')|list", "loop in 'a'"),
    *expressions("nothing|first", "nothing|last", "n|first", "n|last", "5|first", "d|last", "{}|first", "{}|last", "''|first", "''|last", "d.c|last", "nothing|first is undefined", "d.items()|first", "n|join", "n|list", "5|list", "5|join", "nothing|list", "nothing|join", "n|map('upper')|list", "n|select|list", "n|sum", "n|length", "n|reverse", "nothing|reverse|list", "nothing|sum", "nothing|map('upper')|list", "n|batch(2)|list", "n|slice(2)|list", "d.get()", "d.get('a', 1, 2)", "'abc'.startswith(['a'])", "'abc'.endswith(['a'])", "'abc'.startswith(1)", "'abc'.find('', 5)", "'abc'.find('', 3)", "'abc'.startswith('', 5)", "'abc'.startswith('', 3)", "'abc'.endswith('', 5)", "'abc'.rfind('', 5)", "'abc'.rfind('')", "'abc'.index('', 5)", "'abc'.count('', 5)", "'abc'.count('', 3)", "'abc'.count('')", "'abc'.find('c', -1)", "'abc'.find('a', -9)", "'abc'.startswith('b', 1, 0)"),
    *expressions("{1: 1, 'a': 2}|tojson(sort_keys=true)", "{1: 1, 2: 2}|tojson(sort_keys=true)", "{10: 1, 9: 2}|tojson(sort_keys=true)", "{none: 1, 'a': 2}|tojson(sort_keys=true)", "{2: 1, true: 2}|tojson(sort_keys=true)", "l|tojson(indent=100)", "l|tojson(indent=-1)", "l|tojson(indent=true)", "d|attr('a')", "rows|map('attr', 'n')|list", "range(3)|attr('stop')", "l|attr('x')", "messages|map('attr', 'role')|list", "'a'|attr('upper') is defined", "l|pprint(true)"),
    # Unpacking.
    "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in ['xyz'] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in [1] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in [none] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in d.c.items() %}{{ a }}{{ b }}{{ loop.last }}{% endfor %}",
    "{% for a, b in {'xy': 1} %}{{ a }}{{ b }}{% endfor %}",
    "{% for (a, b) in ['xy'] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, (b, c) in [(1, 'xy')] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in ['xy'] if a == 'x' %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in nothing %}{{ a }}{% else %}none{% endfor %}",
    "{% set a, b = 'xy' %}{{ a }}{{ b }}",
    "{% set a, b = l[1:] %}{{ a }}{{ b }}",
    "{% set a, b = 5 %}{{ a }}",
    "{% set a, b = d.c.keys() %}{{ a }}{{ b }}",
    "{% set (a, b) = 'xy' %}{{ a }}{{ b }}",
    "{% set a, b = 'x', 'yz' %}{{ a }}{{ b }}",
    "{% set a, b = (1, 2) if true else (3, 4) %}{{ a }}{{ b }}",
    "{% set ns = namespace() %}{% set a, ns.x = 'xy' %}{{ a }}{{ ns.x }}",
    "{% for x in none %}{{ x }}{% endfor %}",
    "{% for x in n %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in 5 %}{{ x }}{% endfor %}",
    "{% for x in true %}{{ x }}{% endfor %}",
    "{% for x in nothing %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in 'abc' %}{{ x }}{{ loop.length }}{% endfor %}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "{% for x in range(3) %}{{ x }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for x in range(3)[::-1] if x %}{{ x }}{% endfor %}",
    "{% for x in d.keys() %}{{ x }}{{ loop.length }}{% endfor %}",
    "{% for x in (l if true else []) %}{{ x }}{% endfor %}",
    "{% for x in l if x in [1, 2] and x < 2 %}{{ x }}{% endfor %}",
    "{% for x in l|sort if x is divisibleby 2 %}{{ x }}{% endfor %}",
    "{% for x in [[1, [2]], 3] recursive %}{% if x is sequence %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
    "{% for x in [[1], 2] recursive %}{{ loop(x) if x is sequence else x }}{% endfor %}",
    "{% for x in [1] recursive %}{{ loop(none) }}{% endfor %}",
    # Macros.
    "{% macro f(a, b=a) %}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(1, b=3) }}",
    "{% macro f(a, b=a, c=b ~ 'x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}|{{ f(1, 2) }}|{{ f(a=4, c=5) }}",
    "{% macro f(a, b=1) %}{{ a }}{{ b }}{% endmacro %}{{ f() }}|{{ f(nothing, nothing) }}|{{ f(none, none) }}",
    "{% set a = 'out' %}{% macro f(b=a, a=1) %}{{ a }}{{ b }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ varargs }}{{ varargs|length }}{% endmacro %}{{ f() }}{{ f(1) }}{{ f(1, 'a') }}",
    "{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ f() }}|{{ f(1) }}|{{ f(1, 2, 3) }}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ kwargs }}{% endmacro %}{{ f(1, x=3) }}|{{ f(b=1, y='a', z=none) }}",
    "{% macro f(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ f(1, a=2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, x=2) }}",
    "{% macro f(a) %}{{ kwargs }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ varargs }}{% endmacro %}{{ f(1, x=2) }}",
    "{% macro f(n) %}{{ varargs|join }}{% if n > 0 %}{{ f(n - 1, *varargs) }}{% endif %}{% endmacro %}{{ f(2, 'a', 'b') }}",
    "{% macro f() %}{{ caller(varargs) }}{% endmacro %}{% call(x) f(1, 2) %}{{ x }}{% endcall %}",
    "{% macro f() %}{{ f.name }}{% endmacro %}{{ f() }}",
    "{% macro f(a, b=[a, a], c={'k': b}) %}{{ c }}{% endmacro %}{{ f(1) }}",
    "{% macro f(a='x, y', b=(1, 2)) %}{{ a }}{{ b }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% macro g() %}{{ varargs }}{% endmacro %}{{ g(1) }}{% endmacro %}{{ f() }}",
    "{% for x in l %}{{ loop|attr('index') }}{{ loop|attr('x') }}{% endfor %}",
    "{% set ns = namespace(x=1) %}{{ ns|attr('x') }}{% set ns.x = d.c.keys() %}{{ ns.x }}{% set ns.x = range(2) %}{{ ns.x }}",
    # pprint.
    *expressions("d|pprint", "rows|pprint", "messages|pprint", "tools|pprint", "schema|pprint", "{'b': 1, 'a': 2}|pprint", "{'b': {'d': 1, 'c': 2}}|pprint", "{1: 'a', 'b': 2, none: 3}|pprint", "('a', 1)|pprint", "('a',)|pprint", "()|pprint", "{}|pprint", "none|pprint", "'a'|pprint", "u|pprint", "[1.5, true, none]|pprint", "nothing|pprint", "range(40)|list|pprint", "(range(40)|list, 1)|pprint", "['a' * 30, 'b' * 30, 'c' * 30]|pprint", "{'a' * 30: 'b' * 60}|pprint", "('word ' * 30)|pprint", "['word ' * 30]|pprint", "{'k': 'word ' * 30}|pprint", "{'k': ['word ' * 30, 1]}|pprint", "('a\\nb\\n' * 20)|pprint", "('x' * 100)|pprint", "['x' * 100]|pprint", "{'k' * 40: {'l' * 40: 1, 'a': 2}}|pprint", "[[range(30)|list], {'a': range(30)|list}]|pprint", "(('x' * 50, 'y' * 50),)|pprint", "[('x' * 50, 'y' * 50)]|pprint", "(u * 10)|pprint", "lines|pprint", "(\"it's \" * 30)|pprint"),
    # Filters for HTML pages and layout.
    *expressions("'foo bar baz qux'|wordwrap(7)", "'foo bar baz qux'|wordwrap(7, true, '|')", "'foo barbazqux'|wordwrap(5)", "'foo barbazqux'|wordwrap(5, false)", "'foo bar-baz-qux'|wordwrap(5)", "'foo bar-baz-qux'|wordwrap(5, break_on_hyphens=false)", "lines|wordwrap(1)", "'a  b   c'|wordwrap(3)", "' a b'|wordwrap(2)", "''|wordwrap", "('word ' * 30)|wordwrap", "('word ' * 30)|wordwrap(40, wrapstring='\\n> ')", "'a\\n\\nb'|wordwrap(5)", "'foo—bar--baz'|wordwrap(5)", "u|wordwrap(4)", "'foo'|wordwrap(0)", "'well-known co-op e-mail 1-2'|wordwrap(6)", "'-5 a--b -x'|wordwrap(3)", "'hello, world! (yes)'|wordwrap(6)", "12345|wordwrap(2)", "'a\\tb c'|wordwrap(3)"),
    *expressions("'<p>a &amp; <b>b</b>\\n  c</p>'|striptags", "html|striptags", "'a <!-- b --> c'|striptags", "'1 < 2 > 3'|striptags", "1|striptags", "'a<br/>b&lt;c&gt;'|striptags", "'&eacute;&#65;&#x42;&nbsp;x'|striptags", "'<p'|striptags", "'<!-- a'|striptags", "html|safe|striptags"),
    *expressions("{'class': 'a b', 'id': 3, 'x': none, 'y': nothing}|xmlattr", "{'a': '<\"&'}|xmlattr", "{}|xmlattr", "{'a': 1}|xmlattr(false)", "{'a': 1}|xmlattr(autospace=false)", "{'a b': 1}|xmlattr", "{'a': true, 'b': [1]}|xmlattr", "l|xmlattr", "{'a/b': 1}|xmlattr"),
    *expressions("0|filesizeformat", "1|filesizeformat", "999|filesizeformat", "1000|filesizeformat", "1500|filesizeformat", "1234567|filesizeformat", "1e15|filesizeformat", "1024|filesizeformat(true)", "1e30|filesizeformat", "'1000'|filesizeformat", "1|filesizeformat(binary=true)", "-5|filesizeformat", "999999|filesizeformat", "none|filesizeformat", "'x'|filesizeformat"),
    *expressions("'see https://a.com'|urlize"),
    *expressions("1e-5|upper", "1e-5|lower", "rows[0]|trim", "[1e-5]|trim", "'\x1c a'|trim", "none|trim", "'xay'|trim('xy')", "true|abs", "'a'|abs", "'x' % []", "'x' % [1]", "'%s' % [1, 2]", "'%s %s' % [1, 2]", "'%(a)s' % [1]", "'x' % 1", "'a' is odd", "none is even", "'a' is divisibleby 2", "1.5 is odd", "3.0 is odd", "true is odd", "nothing is odd", "4 is divisibleby 0", "-3 is odd", "[1] in d", "d in d", "(1,) in d", "nothing is callable", "[html|e]", "[html|safe]", "['a', 'b'|e]|join", "range(4)[1:9:-1][1::-2]", "range(9)[::3][::-2]"),
    # Methods of other values.
    *expressions("'abc'.translate({97: 'x'})", "(5).bit_length()", "(1.5).is_integer()", "(2.0).is_integer()", "(1.5).hex()", "(1.5).as_integer_ratio()", "d.fromkeys(['a'], 1)", "'a'.maketrans('a', 'b')", "'\\N{BULLET}'", "2**127", "10**40", "1e300|int", "l[1.0]", "{1: 1, 1.0: 2, true: 3}", "(-8) ** 0.5", "d|items|length"),
    "{% autoescape true %}{{ html }}{% endautoescape %}",
]

# Where the two differ, and why it stays so.
KNOWN = {
    "{{ {1: 'a', none: 2, true: 3} }}": "1 and true are different keys",
    "{{ l|random is number }}": "random is left out: a run could not be repeated",
    "{{ 'abc'.encode() }}": "there are no bytes",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}": "a cycler has no current item",
    "{% for x in [1] recursive %}{{ loop(none) }}{% endfor %}": "the engine iterates over none when a loop calls itself",
    "{{ 'a'|attr('upper') is defined }}": "an uncalled method of a string is undefined",
    "{{ '&eacute;&#65;&#x42;&nbsp;x'|striptags }}": "striptags knows few entities by name, and refuses others",
    "{{ 'see https://a.com'|urlize }}": "there is no urlize",
    "{{ 'abc'.translate({97: 'x'}) }}": "there are no tables of characters",
    "{{ 'a'.maketrans('a', 'b') }}": "there are no tables of characters",
    "{{ (5).bit_length() }}": "numbers have no methods but is_integer",
    "{{ (1.5).hex() }}": "numbers have no methods but is_integer",
    "{{ (1.5).as_integer_ratio() }}": "numbers have no methods but is_integer",
    "{{ d.fromkeys(['a'], 1) }}": "a mapping has no fromkeys",
    r"{{ '\N{BULLET}' }}": "there are no names of characters",
    "{{ 2**127 }}": "integers have 128 bits",
    "{{ 10**40 }}": "integers have 128 bits",
    "{{ 1e300|int }}": "integers have 128 bits",
    "{{ l[1.0] }}": "a whole float is an index",
    "{{ {1: 1, 1.0: 2, true: 3} }}": "1 and true are different keys",
    "{{ (-8) ** 0.5 }}": "there are no complex numbers",
    "{{ d|items|length }}": "filters return lists, not iterators",
    "{% autoescape true %}{{ html }}{% endautoescape %}": "nothing is escaped unless a filter says so",
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
