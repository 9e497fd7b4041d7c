"""layout.py: does a change of qe/plugin.h keep the word of docs/abi.md?

  layout.py --check HEADER BASELINE [--cc gcc]     0: equal, or grown as allowed; 1: not, with a line for each break
  layout.py --write HEADER BASELINE [--cc gcc]     takes the header as it is for the new baseline
  layout.py --self-test HEADER [--cc gcc]          changes the header in ways that must and must not be found

A small C program, made from the header's own text, prints offset, size and declaration of every field, the size of every struct, and
every number that has a name.
"""
import re, subprocess, sys, tempfile
from pathlib import Path


def declarations(text):
    """structs: [(name, [(field, declaration)])] and the names of all enumerators."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"^\s*#.*$", " ", text, flags=re.M)
    text = re.sub(r"\bQE_NOEXCEPT\b", "", text)
    structs, numbers = [], []
    for body, name in re.findall(r"typedef\s+struct\s*\{(.*?)\}\s*(\w+)\s*;", text, flags=re.S):
        fields = []
        for piece in body.split(";"):
            piece = " ".join(piece.split())
            if not piece:
                continue
            # function pointers of the struct itself, not those among a function's arguments
            pointers = [m.group(1) for m in re.finditer(r"\(\s*\*\s*(\w+)\s*\)\s*\(", piece) if piece.count("(", 0, m.start()) == piece.count(")", 0, m.start())]
            if pointers:
                fields += [(p, piece) for p in pointers]
                continue
            kind = re.match(r"(?:const\s+)?\w+(?:\s+const)?", piece).group(0)
            for one in piece[len(kind):].split(","):
                fields.append((re.findall(r"(\w+)\s*(?:\[[^\]]*\])*\s*$", one.strip())[0], kind + " " + one.strip()))
        structs.append((name, fields))
    for body in re.findall(r"\benum\s*\{(.*?)\}", text, flags=re.S):
        numbers += [n for n in re.findall(r"(?:^|,)\s*(QE_\w+)", body) if n not in ("QE_ABI_MINOR",)]
    return structs, numbers


def layout(header, cc):
    text = Path(header).read_text()
    structs, numbers = declarations(text)
    program = f'#include "{Path(header).resolve()}"\n#include <stdio.h>\nint main(void) {{\n'
    for name, fields in structs:
        program += f'printf("struct {name} %zu\\n", sizeof({name}));\n'
        for field, declaration in fields:
            text = declaration.replace("\\", "\\\\").replace('"', '\\"')
            program += f'printf("field {name}.{field} %zu %zu {text}\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));\n'
    for n in numbers:
        program += f'printf("number {n} %lld\\n", (long long){n});\n'
    for name in re.findall(r"\}\s*(\w+)\s*;\s*/\*\s*FROZEN", Path(header).read_text()):
        program += f'printf("frozen {name} -\\n");\n'
    program += "return 0; }\n"
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "layout.c", Path(folder) / "layout"
        source.write_text(program)
        subprocess.run([cc, "-std=gnu11", str(source), "-o", str(binary)], check=True)
        return subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout


def parse(text):
    structs, fields, numbers, frozen = {}, {}, {}, set()
    for line in text.splitlines():
        kind, name, rest = line.split(" ", 2)
        if kind == "struct":
            structs[name] = int(rest)
        elif kind == "field":
            offset, size, declaration = rest.split(" ", 2)
            fields.setdefault(name.split(".")[0], {})[name.split(".")[1]] = (int(offset), int(size), declaration)
        elif kind == "frozen":
            frozen.add(name)
        else:
            numbers[name] = int(rest)
    return structs, fields, numbers, frozen


def breaks(old_text, new_text):
    old_structs, old_fields, old_numbers, frozen = parse(old_text)
    new_structs, new_fields, new_numbers, _ = parse(new_text)
    out = []
    for name, size in old_structs.items():
        if name not in new_structs:
            out.append(f"struct {name} is gone")
            continue
        # a step's head holds the size of the whole step
        sized = old_fields[name].get("struct_size", old_fields[name].get("head", (1,)))[0] == 0
        if (name in frozen or not sized) and new_structs[name] != size:
            out.append(f"{name} is FROZEN{'' if name in frozen else ' (it has no struct_size)'}: {size} bytes before, {new_structs[name]} now")
        for field, was in old_fields[name].items():
            now = new_fields[name].get(field)
            if now is None:
                out.append(f"{name}.{field} is gone")
            elif now[:2] != was[:2]:
                out.append(f"{name}.{field} was at byte {was[0]} with {was[1]} bytes, is at {now[0]} with {now[1]}")
            elif now[2] != was[2]:
                out.append(f"{name}.{field} was declared \"{was[2]}\", now \"{now[2]}\"")
        end = max(offset + bytes for offset, bytes, _ in old_fields[name].values())
        for field, now in new_fields[name].items():
            if field not in old_fields[name] and now[0] < end:
                out.append(f"{name}.{field} is new and not at the end: byte {now[0]}, the old fields reach {end}")
    for n, value in old_numbers.items():
        if n not in new_numbers:
            out.append(f"{n} is gone; numbers and names are never taken back")
        elif new_numbers[n] != value:
            out.append(f"{n} was {value}, is {new_numbers[n]}")
    return out


def self_test(header, cc):
    text, base = Path(header).read_text(), layout(header, cc)
    cases = [
        ("nothing", lambda t: t, False),
        ("a field at the end of qe_host", lambda t: t.replace("} qe_host;", "  void (*newer)(void *self) QE_NOEXCEPT;\n} qe_host;"), False),
        ("a new struct", lambda t: t.replace("typedef struct { uint32_t struct_size; int32_t kind; } qe_step;", "typedef struct { int x; } qe_newer;\ntypedef struct { uint32_t struct_size; int32_t kind; } qe_step;"), False),
        ("a new number at the end", lambda t: t.replace("QE_STEP_ARGMAX }", "QE_STEP_ARGMAX, QE_STEP_NEWER }"), False),
        ("two functions of qe_weight_v1 swapped", lambda t: t.replace("(*run)(", "(*SWAP)(").replace("(*warmup)(", "(*run)(").replace("(*SWAP)(", "(*warmup)("), True),
        ("a field in the middle of qe_plugin", lambda t: t.replace("const char *id ", "int32_t extra; const char *id "), True),
        ("a FROZEN struct grown", lambda t: t.replace("typedef struct { const char *p; size_t n; } qe_str;", "typedef struct { const char *p; size_t n, m; } qe_str;"), True),
        ("a step grown at its end", lambda t: t.replace("float x; int32_t variant; } qe_step_simple", "float x; int32_t variant; float y; } qe_step_simple"), False),
        ("another type of the same size", lambda t: t.replace("float eps; int32_t gemma /* 1+w */;", "int32_t eps; int32_t gemma /* 1+w */;"), True),
        ("another argument of a function", lambda t: t.replace("uint64_t (*bytes)(qe_linear, int32_t mem)", "uint64_t (*bytes)(qe_linear, int64_t mem)"), True),
        ("a number changed", lambda t: t.replace("QE_E_OOM = -3", "QE_E_OOM = -9"), True),
        ("a number in the middle", lambda t: t.replace("QE_STEP_BIAS,", "QE_STEP_NEWER, QE_STEP_BIAS,"), True),
        ("a field taken away", lambda t: t.replace("  int32_t (*threads)(void *self) QE_NOEXCEPT;", "", 1), True),
    ]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, change, must_break in cases:
            changed = change(text)
            if changed == text and name != "nothing":
                print(f"self-test \"{name}\": the header has no such text")
                wrong += 1
                continue
            file = Path(folder) / "plugin.h"
            file.write_text(changed)
            found = breaks(base, layout(file, cc))
            print(("breaks: " if found else "keeps:  ") + name + (f" ({found[0]})" if found else ""))
            wrong += bool(found) != must_break
    return wrong


def main(args):
    cc = args[args.index("--cc") + 1] if "--cc" in args else "cc"
    if args[0] == "--self-test":
        return 1 if self_test(args[1], cc) else 0
    header, baseline = args[1], Path(args[2])
    now = layout(header, cc)
    if args[0] == "--write":
        baseline.write_text(now)
        return 0
    found = breaks(baseline.read_text(), now)
    for line in found:
        print("breaks the ABI: " + line)
    if not found and baseline.read_text() != now:
        print("grown as allowed; take it into the baseline with --write once the minor is raised")
    return 1 if found else 0


sys.exit(main(sys.argv[1:]))
