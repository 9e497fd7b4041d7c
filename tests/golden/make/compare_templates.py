"""Random templates through `qengine tokenize --jsonl` and through Python's Jinja: prints those that differ.

usage: compare_templates.py QENGINE TOKENIZER [COUNT [SEED]]
Expressions are drawn from a grammar over the variables of make_templates.CONTEXT; one in eight is a statement. Where
Jinja fails, ours must fail; where it prints, ours must print the same. Left out: what Python prints of objects (addresses,
generators), what our bounds refuse, slices of constants that have none, and unknown names that Jinja refuses before anything reaches them. Made with jinja2 3.1.6.
"""
import copy, json, random, re, subprocess, sys
from make_templates import CONTEXT, environment

NAMES = ["messages", "n", "f", "s", "d", "l", "e", "t", "z", "big", "uni", "sp", "nested", "quote", "nothing"]
LITERALS = ["0", "1", "-1", "2", "7", "3.5", "-0.0", "1e3", "'a'", "'l'", "''", "' x '", "'é日'", "true", "false", "none", "[]", "{}", "()", "[1,2,3]", "['b','A','c']", "{'a':1,'b':[1]}",
            "(1,'x')", "[none,0,'',false,1]", "'a,b,,c'", "'%s-%d'", "'Hello world'", "range(4)", "[[1,2],[3]]", "[{'k':1},{'k':none},{}]", "'\\n x\\n\\ty'", "'12'", "'-3.7'", "'0x1f'"]
FILTERS = ["abs", "attr('x')", "batch(2)|list", "capitalize", "center(9)", "count", "default('D')", "default('D',true)", "d(1)", "dictsort", "dictsort(reverse=true)", "dictsort(by='value')",
           "escape", "first", "float", "float(1)", "format(1,2)", "groupby('k')|list", "indent", "indent(2,true)", "int", "int(5)", "int(0,16)", "items|list", "join", "join(',')", "join('-','k')", "last", "length",
           "list", "lower", "map('upper')|list", "map(attribute='k')|list", "map(attribute='k',default=9)|list", "map('int')|list", "max", "min", "max(attribute='k')", "reject('none')|list", "reject|list",
           "rejectattr('k')|list", "rejectattr('k','none')|list", "replace('l','L')", "replace('a','',1)", "reverse|list", "round", "round(1)", "round(0,'ceil')", "select|list", "select('string')|list",
           "selectattr('k')|list", "selectattr('k','defined')|list", "selectattr('k','equalto',1)|list", "slice(2)|list", "sort", "sort(reverse=true)", "sort(attribute='k')", "string", "sum", "sum(start=3)", "title",
           "tojson", "tojson(indent=2)", "trim", "trim('a')", "truncate(5)", "truncate(5,true,'')", "unique|list", "upper", "wordcount", "safe", "nofilter", "map('nofilter')|list", "selectattr('k','notest')|list"]
TESTS = ["boolean", "callable", "defined", "divisibleby(2)", "eq(1)", "even", "false", "float", "ge(1)", "gt(1)", "in([1,2,'a'])", "integer", "iterable", "le(2)", "lower", "lt(2)", "mapping", "ne(1)", "none", "number", "odd",
         "sameas(1)", "sequence", "string", "true", "undefined", "upper", "notest", "filter", "test"]
METHODS = ["upper()", "lower()", "strip()", "strip('a ')", "lstrip()", "rstrip('l')", "split()", "split(',')", "split('l',1)", "rsplit(none,1)", "startswith('a')", "endswith(('a','d'))", "replace('a','b')", "find('l')", "count('l')",
           "title()", "capitalize()", "isdigit()", "isalpha()", "splitlines()", "partition('l')", "join(['x','y'])", "join(l)", "zfill(5)", "items()|list", "keys()|list", "values()|list", "get('a')", "get('q',3)", "index(1)", "format(1)",
           "removeprefix('He')", "swapcase()", "isupper()", "nomethod()", "ljust(4)", "center(7,'*')", "casefold()", "rfind('l')", "isspace()", "copy()", "isnumeric()", "isdecimal()", "rindex('l')"]
ATTRIBUTES = [".a", ".b", "['a']", "[0]", "[-1]", "[1:]", "[::-1]", "[:2]", "[0].role", ".x.y[1].z", ".nope", "['nope']", "[5]", "[1:-1]", "[::2]", ".k", ".content", "[none:2]", "['x']"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">", "<=", ">=", "and", "or", "in", "not in"]


def expression(r, depth=0):
    kind = r.random()
    if depth > 3 or kind < 0.25: return r.choice(NAMES + LITERALS)
    sub = lambda: expression(r, depth + 1)
    if kind < 0.50: return f"{bracket(sub())}|{r.choice(FILTERS)}"
    if kind < 0.58: return f"({bracket(sub())} is {'not ' if r.random() < .3 else ''}{r.choice(TESTS)})"
    if kind < 0.68: return f"{bracket(sub())}{r.choice(ATTRIBUTES)}"
    if kind < 0.78: return f"{bracket(sub())}.{r.choice(METHODS)}"
    if kind < 0.92: return f"{sub()} {r.choice(BINARY)} {sub()}"
    if kind < 0.95: return f"({sub()} if {sub()} else {sub()})"
    if kind < 0.97: return f"not {sub()}"
    return r.choice(["[%s, %s]", "{'a': %s, 'k': %s}", "(%s, %s)", "namespace(a=%s, b=%s).a"]) % (sub(), sub())


def bracket(e): return e if re.fullmatch(r"[\w.'\[\]|]+", e) and not e[0].isdigit() else f"({e})"


def template(r):
    e = lambda: expression(r, 1)
    if r.random() < 0.875: return "{{ " + expression(r) + " }}"
    return r.choice([
        lambda: "{%% for x in %s %%}{{ loop.index }}{{ x }},{%% else %%}none{%% endfor %%}" % e(),
        lambda: "{%% for x in %s if x %%}{{ loop.last }}{{ x }}{%% endfor %%}" % e(),
        lambda: "{%% for a, b in %s %%}{{ a }}={{ b }};{%% endfor %%}" % e(),
        lambda: "{%% if %s %%}A{%% elif %s %%}B{%% else %%}C{%% endif %%}" % (e(), e()),
        lambda: "{%% if false %%}{{ %s }}{%% endif %%}x" % e(),
        lambda: "{{ %s if false else 'y' }}" % e(),
        lambda: "{%% set v = %s %%}{{ v }}|{{ v is defined }}" % e(),
        lambda: "{%% set a, b = %s %%}{{ a }}" % e(),
        lambda: "{%% macro m(x, y=%s) %%}[{{ x }}{{ y }}]{%% endmacro %%}{{ m(%s) }}" % (e(), e()),
        lambda: "{%% set ns = namespace(v=%s) %%}{%% for i in [1,2] %%}{%% set ns.v = %s %%}{%% endfor %%}{{ ns.v }}" % (e(), e()),
        lambda: "{%% set q | trim %%} {{ %s }} {%% endset %%}[{{ q }}]" % e(),
        lambda: "{%- for m in messages -%}\n  {{- m.role }}: {{ " + e() + " }}\n{% endfor %}",
    ])()


def python(env, source):
    try: return env.from_string(source).render(**copy.deepcopy(CONTEXT))  # |indent of a list changes it
    except RecursionError: return None
    except Exception as x: return x


def main(program, tokenizer, count=5000, seed=1):
    env, r, asked = environment(), random.Random(int(seed)), []
    while len(asked) < int(count):
        source = template(r); want = python(env, source)
        if want is None or (isinstance(want, str) and (re.search(r"<\w[\w. ]+ (object|method|of)|<function|<class|b'|dict_(keys|items|values)|Undefined|\bnan\b|\binf\b|TypedDict|<Namespace", want) or len(want) > 5000)): continue
        if isinstance(want, Exception) and re.search(r"Range too big|too large|generator|Exceeds the limit|complex|unhashable|not subscriptable", str(want)) or type(want).__name__ == "TemplateAssertionError": continue
        asked.append((source, want))
    lines = [json.dumps(dict(chat=CONTEXT, template=s)) for s, _ in asked]
    out = subprocess.run([program, "tokenize", "--tokenizer", tokenizer, "--jsonl"], input="\n".join(lines) + "\n", capture_output=True, text=True)
    answers = [json.loads(x) for x in out.stdout.split("\n") if x]
    assert len(answers) == len(asked), out.stderr[-500:]
    differ = 0
    for (source, want), got in zip(asked, answers):
        failed = isinstance(want, Exception)
        if failed == ("error" in got) and (failed or got["text"] == want): continue
        if "cannot be sliced" in got.get("error", ""): continue
        differ += 1
        print(f"{source}\n  jinja {type(want).__name__ + ': ' + str(want)[:150] if failed else repr(want)[:300]}\n  ours  {repr(got.get('text', got.get('error')))[:300]}")
    print(f"{differ} of {len(asked)} differ ({sum(isinstance(w, Exception) for _, w in asked)} of them fail in jinja)")


if __name__ == "__main__": main(*sys.argv[1:])
