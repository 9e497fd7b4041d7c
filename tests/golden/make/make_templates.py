"""Chat-template goldens: small templates and what Python's Jinja makes of them.

usage: make_templates.py OUT.json
The environment is the one that chat templates are rendered in: sandboxed, trim_blocks, lstrip_blocks, loop controls,
tojson without HTML escaping, raise_exception. Made with jinja2 3.1.6.
"""
import json, sys
import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    e = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    e.filters["tojson"] = tojson
    e.globals["raise_exception"] = raise_exception
    return e


CONTEXT = dict(messages=[{"role":"user","content":"Hi é"},{"role":"assistant","content":None,"tool_calls":[{"function":{"name":"f","arguments":{"a":1,"b":[1.5,True,None]}}}]},{"role":"tool","content":[{"type":"text","text":"x"}]}],
  n=7,f=2.5,s="Hello World",d={"b":1,"a":"x","C":None},l=[3,1,2],e="",t=True,z=None,big=[{"n":"b","v":2,"q":{"w":1}},{"n":"a","v":1,"q":{"w":2}},{"n":"B","v":3,"q":{"w":0}}],uni="日本語 é ß",sp="  a  b \n c ", nested={"x":{"y":[1,{"z":"deep"}]}},quote="it's \"q\" \\ \n\t")
# One template a line.
LINES = r'''
{{ s }}|{{ n }}|{{ f }}|{{ d }}|{{ l }}|{{ t }}|{{ z }}|{{ undefined_thing }}|{{ e }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 % 2 }} {{ 1e3 }} {{ 1_000 }} {{ 0x1F }} {{ 0b11 }}
{{ -n }} {{ +n }} {{ -n|abs }} {{ (-n)|abs }} {{ 2**3**2 }} {{ -2**2 }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }} {{ "a" "b" 'c' }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ none == none }} {{ 'a' in 'abc' }} {{ 'x' not in d }} {{ 'a' in d }} {{ 3 in l }} {{ 1 in range(3) }}
{{ not true }} {{ true and 'x' }} {{ '' or 'y' }} {{ none and 1 }} {{ not 1 == 2 }}
{{ 'yes' if t else 'no' }} {{ 'yes' if e }}| {{ 1 if false else 2 if false else 3 }}
{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[:-6] }} {{ l[::-1] }} {{ l[1:] }} {{ l[5:] }} {{ uni[0:3] }} {{ uni[::-1] }} {{ uni|length }} {{ s[10:2:-3] }} {{ l[-100:100:2] }}
{{ d.a }} {{ d['b'] }} {{ d.nope }} {{ d.C }} {{ nested.x.y[1].z }} {{ nested['x']['y'][0] }} {{ l.0 }} {{ l[9] }}|
{{ d.nope.more }}
{{ undefined_thing.x }}
{{ undefined_thing + 1 }}
{{ z.foo }}|
{{ z.foo.bar }}
{{ z() }}
{{ 'a' + 1 }}
{{ 'a' * 3 }} {{ [1] * 2 }} {{ 3 * 'ab' }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ (1,2) }} {{ () }} {{ (1) }}
{{ {'a': 1, 'b': {'c': [1, 2.0, 'x\'y', none]}} }} {{ {} }} {{ [] }} {{ ['é', "it's", 'a\nb'] }}
{{ {'a': 1, 'a': 2} }} {{ {1: 2, none: 3, true: 4} }}
{{ 1/0 }}
{{ d|tojson }} {{ d|tojson(indent=2) }} {{ messages|tojson }} {{ quote|tojson }} {{ [1.0, 1e16, 1e-5, 123456789.123, 0.1]|tojson }} {{ d|tojson(sort_keys=true) }} {{ d|tojson(separators=(',',':')) }} {{ uni|tojson(ensure_ascii=true) }} {{ uni|tojson(true) }} {{ []|tojson(indent=4) }} {{ {}|tojson(indent=4) }} {{ {'a':[]}|tojson(indent=4) }} {{ [[1,[2]],{}]|tojson(indent=1) }}
{{ undefined_thing|tojson }}
{{ s|upper }} {{ s|lower }} {{ uni|upper }} {{ 'hello world-foo (bar'|title }} {{ 'hELLO wORLD'|capitalize }} {{ sp|trim }} {{ 'xxaxx'|trim('x') }} {{ s|replace('l','L') }} {{ s|replace('l','L',1) }} {{ 'abc'|replace('','-') }} {{ s|length }} {{ l|length }} {{ d|count }}
{{ l|sort }} {{ l|sort(reverse=true) }} {{ ['b','A','c']|sort }} {{ ['b','A','c']|sort(case_sensitive=true) }} {{ big|sort(attribute='n')|map(attribute='v')|list }} {{ big|sort(attribute='q.w')|map(attribute='n')|join(',') }} {{ big|sort(attribute='n,v')|map(attribute='n')|join }}
{{ d|dictsort }} {{ {'b':2,'a':1,'C':3}|dictsort }} {{ {'b':2,'a':1}|dictsort(false,'value') }} {{ {'b':2,'a':1}|dictsort(reverse=true) }} {{ {'b':2,'A':1}|dictsort(true) }}
{{ l|join(', ') }} {{ big|join('-', attribute='n') }} {{ 'abc'|join('.') }} {{ [1,none,'x']|join('|') }} {{ undefined_thing|join }}|
{{ l|first }} {{ l|last }} {{ []|first }}| {{ l|max }} {{ l|min }} {{ []|max }}| {{ ['b','A']|min }} {{ big|max(attribute='v') }} {{ l|sum }} {{ big|sum(attribute='v') }} {{ l|sum(start=10) }} {{ l|reverse|list }} {{ s|reverse }} {{ [1,1,2,'a','A']|unique|list }} {{ 'aab'|unique|join }}
{{ l|map('string')|list }} {{ ['a','b']|map('upper')|join }} {{ big|map(attribute='zz', default='D')|list }} {{ l|select('odd')|list }} {{ l|reject('odd')|list }} {{ l|select('>', 1)|list }} {{ [0,1,'',none,'x']|select|list }} {{ big|selectattr('v','gt',1)|map(attribute='n')|list }} {{ big|rejectattr('v','equalto',1)|map(attribute='n')|list }} {{ big|selectattr('q')|list|length }} {{ messages|selectattr('role','equalto','user')|list }} {{ messages|selectattr('content','string')|list|length }} {{ messages|selectattr('tool_calls','defined')|list|length }}
{{ undefined_thing|default('D') }} {{ e|default('D') }} {{ e|default('D', true) }} {{ z|default('D') }} {{ z|d('D', boolean=true) }} {{ undefined_thing|default }}|
{{ '42'|int }} {{ '42.9'|int }} {{ 'x'|int }} {{ 'x'|int(-1) }} {{ 3.9|int }} {{ '0x1f'|int(base=16) }} {{ '3.5'|float }} {{ 'x'|float }} {{ 3|float }} {{ 2.5|round }} {{ 3.5|round }} {{ 2.345|round(2) }} {{ 2.1|round(method='ceil') }} {{ 2.9|round(0,'floor') }} {{ 42|round }} {{ true|int }} {{ ' 7 '|int }}
{{ l|list }} {{ 'abc'|list }} {{ d|list }} {{ d|items|list }} {{ d.items()|list }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.get('a') }} {{ d.get('q') }} {{ d.get('q','D') }} {{ undefined_thing|items|list }}
{{ '<a & "b">'|escape }} {{ '<a>'|safe }} {{ '<a>'|e }} {{ 5|string + 'x' }}
{{ 'a\nb\n\nc'|indent }} {{ 'a\nb\n\nc'|indent(2, true) }} {{ 'a\nb\n\nc'|indent(2, blank=true) }} {{ 'a\nb'|indent('>> ') }} {{ 'a'|indent(first=true) }}
{{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true) }} {{ 'foo bar baz qux'|truncate(11) }} {{ 'foo bar baz qux'|truncate(11, false, '...', 0) }} {{ 'a b c'|wordcount }} {{ 'x'|center(5) }}| {{ '%s-%s'|format('a', 1) }} {{ '%(x)s'|format(x=3) }}
{{ [1,2,3,4,5]|batch(2)|list }} {{ [1,2,3,4,5]|batch(2,'-')|list }} {{ [1,2,3,4,5]|slice(2)|list }} {{ [1,2,3,4,5]|slice(2,'-')|list }}
{% for g, items in big|groupby('v') %}{{ g }}:{{ items|length }} {% endfor %}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.swapcase is defined }} {{ s.startswith('He') }} {{ s.endswith(('x','ld')) }} {{ s.split() }} {{ s.split('l') }} {{ s.split('l', 1) }} {{ s.rsplit('l', 1) }} {{ sp.split() }} {{ ' a b c '.split(none, 1) }} {{ ' a b c '.rsplit(none, 1) }} {{ sp.strip() }}|{{ sp.lstrip() }}|{{ sp.rstrip() }}| {{ 'xyax'.strip('xy') }} {{ 'a\nb\r\nc\n'.splitlines() }} {{ s.find('l') }} {{ s.rfind('l') }} {{ s.find('z') }} {{ s.index('W') }} {{ s.count('l') }} {{ '-'.join(['a','b']) }} {{ 'a{}b{}'.format(1,'x') }} {{ '{0}{1}{0}'.format('a','b') }} {{ '{x}'.format(x=1) }} {{ 'abc'.replace('b','X') }} {{ 'aXbXc'.partition('X') }} {{ 'aXbXc'.rpartition('X') }} {{ 'abc'.partition('Z') }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3,'*') }} {{ 'ab'.center(5,'*') }} {{ 'abc'.center(6,'*') }} {{ 'prefix'.removeprefix('pre') }} {{ 'prefix'.removesuffix('fix') }} {{ 'hELLO'.capitalize() }} {{ uni.find('é') }}
{{ '%d %5d|%-5d|%05d %x %s %r %.2f %5.1f %% %e' % (1, 2, 3, 4, 255, 'a', 'b', 1.005, 2.25, 3.0) }} {{ '%s' % 'x' }} {{ '%s' % none }} {{ '%10s|%-10s|%.2s' % ('a','b','cde') }}
{{ '%s %s' % ('a',) }}
{{ '%d' % 'x' }}
{{ n is defined }} {{ n is number }} {{ n is integer }} {{ f is float }} {{ t is boolean }} {{ t is number }} {{ s is string }} {{ d is mapping }} {{ l is sequence }} {{ s is sequence }} {{ l is iterable }} {{ n is iterable }} {{ z is none }} {{ z is not none }} {{ undefined_thing is undefined }} {{ undefined_thing is defined }} {{ t is true }} {{ 1 is true }} {{ false is false }} {{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(4) }} {{ n is eq 7 }} {{ n is gt 3 }} {{ n is in [7] }} {{ 'a' is in 'abc' }} {{ n is sameas n }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ range is callable }} {{ undefined_thing is iterable }} {{ z is sameas none }} {{ d is sequence }} {{ not n is defined }} {{ n is not string and s is string }}
{% if n > 5 and s %}A{% elif n %}B{% else %}C{% endif %} {% if n < 5 %}A{% elif n == 7 %}B{% else %}C{% endif %} {% if e %}A{% else %}C{% endif %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.cycle('a','b') }} {% endfor %}
{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }}{{ loop.length }}{{ loop.nextitem }} {% else %}none{% endfor %}
{% for x in [] %}x{% else %}empty{% endfor %} {% for x in l if x > 9 %}x{% else %}empty{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for c in 'añb' %}[{{ c }}]{% endfor %} {% for i in range(3) %}{{ i }}{% endfor %} {% for i in range(5,0,-2) %}{{ i }}{% endfor %} {% for (a,b),c in [((1,2),3)] %}{{ a+b+c }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}
{% for x in undefined_thing %}x{% endfor %}|
{% for x in none %}x{% endfor %}
{% for x in 5 %}x{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
{% set ns = namespace(c=0, items=[]) %}{% for i in l %}{% set ns.c = ns.c + i %}{% set ns.items = ns.items + [i] %}{% endfor %}{{ ns.c }} {{ ns.items }} {{ ns.missing }}|
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{% set ns.q = 5 %}{{ ns.q }}{{ ns['q'] }}
{% set d.x = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set (a, b) = (3, 4) %}{{ a }}{{ b }} {% set q = 1, 2 %}{{ q }}
{% set a, b = [1] %}
{% set block %}hello {{ n }}{% endset %}[{{ block }}] {% set block | upper | trim %} hello {{ n }} {% endset %}[{{ block }}]
{% macro m(a, b=2, c='x') %}({{ a }},{{ b }},{{ c }}){% endmacro %}{{ m(1) }}{{ m(1, c='z') }}{{ m(1, 2, 3) }}{{ m() }}{{ m(b=5, a=4) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(q=2) }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}
{% macro m(n) %}{% if n > 0 %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}
{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body {{ n }}{% endcall %}
{% macro m(l) %}{% for i in l %}{{ caller(i, loop.index) }}{% endfor %}{% endmacro %}{% call(x, y) m(l) %}<{{ x }}:{{ y }}>{% endcall %}
{% macro a() %}{{ glob }}{% endmacro %}{% set glob = 'G' %}{{ a() }}
{% filter upper %}abc {{ s }}{% endfilter %} {% filter replace('a','b')|upper %}banana{% endfilter %}
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}|
{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}|
{% raw %}{{ not }} {% x %}{% endraw %} {%- raw -%} a {%- endraw -%} b
{# comment #}a{#- x -#} b {# multi
line #}c
a {%- if true %} b {%- endif %} c {{- ' d ' -}} e {%- if true -%} f {% endif -%} g
   {% if true %}
  indented
   {% endif %}
after
  {{ 'x' }}
 {%+ if true %}y{% endif +%}
z
{% for x in l recursive %}{{ x }}{% endfor %} {% for x in [[1,[2,[3]]],4] recursive %}{% if x is sequence %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}
{{ range(3)|list }} {{ range(10)[2] }} {{ dict(a=1, b=2) }} {{ dict([('x',1)]) }} {% set j = joiner('|') %}{{ j() }}a{{ j() }}b {% set c = cycler('x','y') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}
{{ raise_exception('boom') }}
{{ l.append(4) }}
{{ d.update({'x':1}) }}
{{ d.pop('a') }}
{{ s|nofilter }}
{{ s is notest }}
{{ s.nomethod() }}
{{ (1, 2, 3)|last }} {{ ((1,2),(3,4))|map('last')|list }} {{ d|length }} {{ 'x' * 0 }}|
{{ "\x41\u00e9\U0001F600\101\q\\" }} {{ 'a\'b' }} {{ "\"" }}
{{ [1,2,3].index(2) }} {{ [1,1].count(1) }} {{ (1,2).index(1) }} {{ l|length > 2 }} {{ (l|length) ~ 'x' }} {{ l|length ~ 'x' }}
{{ f|string }} {{ 1.0 }} {{ 100000000000000000.0 }} {{ 1e-7 }} {{ 3.14e20 }} {{ 0.1 + 0.2 }} {{ 1/3 }} {{ 10/2 }} {{ 2**0.5 }} {{ 1e22 }} {{ 123456789012345680.0 }}
{{ messages[0].role }} {{ messages[-1].content[0].text }} {{ messages[1].tool_calls[0].function.arguments|tojson }} {{ messages[1]['content'] is none }} {{ messages[0]['content'] + '!' }} {{ messages|length - 1 }}
{%- for message in messages %}{{- '<|' + message.role + '|>' }}{% if message.content is string %}{{ message.content }}{% elif message.content is iterable and message.content is not none %}{% for c in message.content %}{{ c.text }}{% endfor %}{% endif %}
{% endfor %}
{% if messages[0]['role'] == 'system' %}x{% set sys = 1 %}{% endif %}{{ sys is defined }}{{ sys }}|
{{ loop }}
{{ loop.index }}
{% break %}
{{ 
{% if %}
{% endif %}
{% for %}{% endfor %}
{{ 'a' 
{{ 1 +  }}
{% unknown %}
{{ a b }}
{{ {'a' 1} }}
{{ [1, 2 }}
{{ (1 }}
{% if true %}
{{ 'x'.join(1) }}
{{ ','.join([1]) }}
{{ not not true }} {{ - - 3 }} {{ [1,2][0] }} {{ 'abc'[1] }} {{ {'a':1}['a'] }} {{ {'a':1}.a }} {{ (1,2)[1] }} {{ 'a'.upper().lower().upper() }} {{ ('a' ~ 'b').upper() }} {{ 'a' ~ 'b'.upper() }}
{{ true }} {{ True }} {{ none }} {{ None }} {{ false }} {{ [true, none] }}
{{ x if x is defined else 'undef' }} {{ (x is defined) and x }} {{ x or 'dflt' }} {{ x|default(none) is none }}
{{ 5 is odd and 4 is even }} {{ [1,2,3]|select('in',[1,2])|list }} {{ 'a' if 'b' in ['b'] else 'c' }} {{ 1 if not e else 2 }} {{ [x for x in l] }}
{{ l|map('int')|sum }} {{ ['1','2']|map('int')|list }} {{ [['a',1]]|map('first')|list }} {{ l|map('default', 1)|list }} {{ ['a b']|map('replace',' ','_')|list }}
{{ 'a,b;c'.replace(',', ' ').replace(';', ' ').split()|map('trim')|map('upper')|join('+') }}
{% set x %}  
 a
{% endset %}[{{ x }}]
{% for i in range(3) -%} {{ i }} {%- endfor %}
{% if true -%}
   a
{%- else -%}
   b
{%- endif %}
x
{{ s  }}   
   {# c #}   
end
{{ s.__class__.__mro__ }}
{{ l[1:2:0] }}
{{ l['a'] }}|{{ s['x'] }}
{{ n['x'] }}|{{ z['x'] }}|{{ n[0] }}|
{{ d[l] }}
{% for a, b in [[1,2],[3]] %}{{ a }}{% endfor %}
{{ [3,'a']|sort }}
{{ [3,none]|max }}
{{ 1 < 'a' }}
{{ undefined_thing < 1 }}
{{ undefined_thing == undefined_other }} {{ undefined_thing == none }} {{ undefined_thing != 1 }} {{ 'x' in undefined_thing }} {{ undefined_thing|length }} {{ undefined_thing|list }} {{ undefined_thing|upper }}| {{ undefined_thing ~ 'x' }} {{ undefined_thing|trim }}|
{{ undefined_thing|int }}
{{ undefined_thing in 'abc' }}
{{ -undefined_thing }}
{{ 'a' is defined is true }}
{{ '{}' }} {{ '}}' }} {{ "{{" }} {{ '{%' }} {{ {'a':{'b':{}}} }} {{ {'a':{'b':1}}}} 
{{ n if n else}}
{%if n%}x{%endif%}{{n}}{{-n}}{{+n}}
{% set x = {'a': 1} %}{{ x.items()|list }} {% set y = dict(x, b=2) %}{{ y }} {% for k, v in x|dictsort %}{{ k }}{{ v }}{% endfor %}
{% if e %}{{ s|from_json }}{% endif %}{{ s|from_json if false else 'y' }}{% if false %}{{ s is never }}{% endif %}x
{% if n %}{{ s|from_json }}{% endif %}
{{ 'from_json' is filter }} {{ 'upper' is filter }} {{ 'never' is test }} {{ 'odd' is test }}
{{ none|map('upper')|list }} {{ nothing|map(attribute='a')|list }} {{ ''|select|list }} {{ none|reject('odd')|list }} {{ none|selectattr('k')|list }} {{ none|rejectattr('k','defined')|list }} {{ none|map('nofilter')|list }} {{ 0|select('notest')|list }} {{ false|selectattr|list }}
{{ l|map('nofilter')|list }}
{{ d[1:2] }}
{{ n[:1] }}
{{ z[::2] }}
{{ nothing[1:] }}
{{ range(10)[2:8:3] }} {{ range(10)[::-1] }} {{ range(5, 0, -2)[1:]|list }} {{ range(3)[5:]|list }}
{{ -0.0 }} {{ -(0.0) }} {{ +2.5 }} {{ 2.5 is even }} {{ 3.0 is odd }} {{ 2.5 is odd }} {{ 7.5 is divisibleby 2.5 }} {{ -3 is odd }} {{ true is odd }}
{{ big|sort(attribute='zz')|map(attribute='n')|list }} {{ 'ba'|sort(attribute='zz') }}
{{ [1, nothing]|sort }}
{{ '' % [1] }} {{ 'a' % {} }} {{ 'a' % nothing }} {{ '%s' % [1, 2] }}
{{ 'a' % 1 }}
{{ nothing is callable }} {{ nothing.x is callable }}
{{ nothing is callable }} {{ 'abc'|truncate(5) }} {{ nothing|truncate(5) }}| {{ [1, 2]|truncate(5) }}
{{ [1,2]|indent }}
{{ nothing|indent }}
{{ 5|truncate }}
{{ (1, 2).copy() }}
{{ nothing is sequence }} {{ nothing is iterable }} {{ nothing is mapping }} {{ z is sequence }}
{{ 0 ** -1 }}
{%- macro render(t, depth=0) -%}
{{ '  ' * depth }}{{ t.name }}
{% for c in t.children|default([]) -%}
{{ render(c, depth + 1) }}
{%- endfor -%}
{%- endmacro -%}
{{ render({'name': 'r', 'children': [{'name': 'a'}, {'name': 'b', 'children': [{'name': 'c'}]}]}) }}
'''

# Templates of several lines.
TEXTS = ["""   {% if true %}
  indented
   {% endif %}
after
  {{ 'x' }}
 {%+ if true %}y{% endif +%}
z
""","""{% set x %}  
 a
{% endset %}[{{ x }}]
""","""{% if true -%}
   a
{%- else -%}
   b
{%- endif %}
x
{{ s  }}   
   {# c #}   
end

""","""{%- macro render(t, depth=0) -%}
{{ '  ' * depth }}{{ t.name }}
{% for c in t.children|default([]) -%}
{{ render(c, depth + 1) }}
{%- endfor -%}
{%- endmacro -%}
{{ render({'name': 'r', 'children': [{'name': 'a'}, {'name': 'b', 'children': [{'name': 'c'}]}]}) }}
""","a\r\nb\r\n{{ n }}\r\n","{% for m in messages %}\n  {% if m.role == 'user' %}\n    u:{{ m.content }}\n  {% else %}\n\t{# c #}\n    o\n  {% endif %}\n{% endfor %}\n\n","{% raw %}\n a {{ x }}\n{% endraw %}\n b","  {% raw %} a {% endraw %}  \n b\n","{# a #}\n{# b #}\nc\n  {#- d #}\n  {# e -#}\n f","{{ 'a' }}\n{% if n %}\n\n  b\n\n{% endif %}\n","{% macro g(p) %}\n  {%- if p %}x{% else %}\n y{% endif %}\n{% endmacro %}\n[{{ g(1) }}][{{ g(0) }}]",
"{% for x in l %}\n{{ x }}{{ ',' if not loop.last }}\n{% endfor %}","{%- set a = 1 -%}\n\n {%- set b = 2 %}\n\n{{ a + b }}","{% set ns = namespace(x=false) %}{% for m in messages if ns.x == false %}{% set ns.x = true %}{{ m.role }}{% endfor %}",
"{% for m in messages %}{% if loop.changed(m.role[0]) %}{{ m.role }}{% endif %}{% endfor %}", "{% set x = 'outer' %}{% macro p() %}{{ x }}{% endmacro %}{% for i in [1] %}{% set x = 'inner' %}{{ p() }}{{ x }}{% endfor %}", "{% for i in [1,2] %}{% macro q() %}{{ i }}{% endmacro %}{{ q() }}{% endfor %}",
"{% if true %}{% set v = 3 %}{% endif %}{{ v }}", "{% for i in [1] %}{% if true %}{% set v = 3 %}{% endif %}{{ v }}{% endfor %}{{ v }}|", "{% set x = x | default('d') %}{{ x }}", "{% set messages = messages[1:] %}{{ messages|length }}", "{% for messages in messages %}{{ messages.role }}{% endfor %}{{ messages|length }}",
"{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for x in l %}{% set outer = loop %}{% for y in [1,2] %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}", "{% set x = 5 %}{% set x = x + 1 %}{{ x }}{% with x = 9 %}{{ x }}{% endwith %}{{ x }}", "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m(x) %}{% set x = x + 1 %}{{ x }}{% endmacro %}{% set x = 10 %}{{ m(1) }}{{ x }}", "{% macro a(x) %}<{{ x }}>{% endmacro %}{% macro b(x) %}{{ a(a(x)) }}{% endmacro %}{{ b(1)|length }}{{ b(1) }}", "{{ messages | selectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | join(',') }}", "{% set t = messages | map(attribute='content') | select('none') | list | length %}{{ t }}"]


if __name__ == "__main__":
    cases, env = [], environment()
    for t in LINES.strip("\n").split("\n") + TEXTS:
        try: cases.append(dict(template=t, text=env.from_string(t).render(**CONTEXT)))
        except Exception as e: cases.append(dict(template=t, error=type(e).__name__ + ": " + str(e)[:200]))
    with open(sys.argv[1], "w") as f: json.dump(dict(tool="jinja2 " + jinja2.__version__, context=CONTEXT, cases=cases), f, ensure_ascii=False, indent=1)
