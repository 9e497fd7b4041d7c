"""Random schemas: whatever the grammar lets through, the Python package jsonschema must validate.

    jsonschema_test.py PROGRAM [--schemas N] [--seed S]

Skipped (exit 77) where the package is missing: pip install jsonschema.
"""
import argparse, json, random, re, subprocess, sys

try:
    import jsonschema
except ImportError:
    print("skipped: the Python package jsonschema is not installed (pip install jsonschema)")
    sys.exit(77)


class Generator:
    def __init__(self, rng):
        self.r = rng

    def name(self):
        return self.r.choice(["a", "b", "name", "value", "x-y", "é", "a/b", "quote\"d", "n_1", "s_2", ""])

    def literal(self, depth=0):
        k = self.r.randrange(8 if depth < 2 else 6)
        if k == 0: return None
        if k == 1: return self.r.random() < 0.5
        if k == 2: return self.r.randint(-50, 200)
        if k == 3: return self.r.choice([0.5, -1.25, 1e20, 3.0, 1e-7])
        if k in (4, 5): return self.r.choice(["", "a", "name", "é😀", "line\nbreak", "q\"\\", "\u0001"])
        if k == 6: return [self.literal(depth + 1) for _ in range(self.r.randrange(3))]
        return {self.name(): self.literal(depth + 1) for _ in range(self.r.randrange(3))}

    def string(self):
        s = {"type": "string"}
        if self.r.random() < 0.3: s["minLength"] = self.r.randrange(4)
        if self.r.random() < 0.3: s["maxLength"] = self.r.randrange(1, 8)
        if self.r.random() < 0.35: s["pattern"] = self.r.choice(["^a+b?$", "[0-9]{2}", "^(?:x|yy)*$", "^[^a-z]*$", "é", "^\\d{3}-\\w+$", "a.c", "\\\\", "^\"", "^$|^ab"])
        if self.r.random() < 0.15: s["format"] = self.r.choice(["date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname", "uri", "duration"])
        return s

    def number(self):
        s = {"type": self.r.choice(["integer", "number"])}
        v = lambda: self.r.choice([self.r.randint(-20, 120), round(self.r.uniform(-5, 5), 2), 0])
        if self.r.random() < 0.4: s[self.r.choice(["minimum", "exclusiveMinimum"])] = v()
        if self.r.random() < 0.4: s[self.r.choice(["maximum", "exclusiveMaximum"])] = v()
        if self.r.random() < 0.15: s["multipleOf"] = self.r.choice([1, 2, 5, 7, 10])
        return s

    def array(self, depth):
        s = {"type": "array"}
        if self.r.random() < 0.8: s["items"] = self.schema(depth + 1)
        if self.r.random() < 0.3: s["prefixItems"] = [self.schema(depth + 1) for _ in range(self.r.randrange(1, 3))]
        if self.r.random() < 0.3: s["minItems"] = self.r.randrange(4)
        if self.r.random() < 0.3: s["maxItems"] = self.r.randrange(5)
        return s

    def object(self, depth):
        s = {"type": "object"}
        if self.r.random() < 0.85: s["properties"] = {self.name(): self.schema(depth + 1) for _ in range(self.r.randrange(5))}
        names = list(s.get("properties", {}))
        if self.r.random() < 0.6: s["required"] = [n for n in names if self.r.random() < 0.5] + ([self.name()] if self.r.random() < 0.1 else [])
        if self.r.random() < 0.5: s["additionalProperties"] = self.r.choice([False, True, None])
        if s.get("additionalProperties", 1) is None: s["additionalProperties"] = self.schema(depth + 1)
        if self.r.random() < 0.2: s["patternProperties"] = {"^n_": self.schema(depth + 1)}
        if self.r.random() < 0.1: s["propertyNames"] = {"maxLength": 5}
        if self.r.random() < 0.2: s["minProperties"] = self.r.randrange(3)
        if self.r.random() < 0.2: s["maxProperties"] = self.r.randrange(4)
        return s

    def schema(self, depth=0):
        k = self.r.random()
        if depth > 3: k = k * 0.5
        if k < 0.03: return self.r.choice([True, {}, {"description": "anything"}])
        if k < 0.22: return self.string()
        if k < 0.36: return self.number()
        if k < 0.42: return {"enum": [self.literal() for _ in range(self.r.randrange(1, 5))]}
        if k < 0.46: return {"const": self.literal()}
        if k < 0.50: return {"type": self.r.sample(["null", "boolean", "integer", "string", "array", "object", "number"], 2)}
        if k < 0.62: return self.array(depth)
        if k < 0.80: return self.object(depth)
        if k < 0.88: return {"anyOf": [self.schema(depth + 1) for _ in range(self.r.randrange(1, 4))]}
        if k < 0.92: return {"allOf": [self.schema(depth + 1), self.schema(depth + 1)]}
        if k < 0.95: return {"oneOf": [self.string(), self.array(depth), {"type": "null"}]}
        s = self.object(depth)
        s["anyOf"] = [{"required": [n]} for n in list(s.get("properties", {"a": 1}))[:2]] or [{}]
        return s if depth else self.recursive()

    def recursive(self):
        return {"$defs": {"node": {"type": "object", "properties": {"v": self.string(), "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}, "c": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["v"]}},
                "$ref": "#/$defs/node"}


def no_duplicates(pairs):
    return dict(pairs)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("--schemas", type=int, default=400)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    rng = random.Random(a.seed)
    child = subprocess.Popen([a.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    compiled = refused = texts = 0
    reasons = {}
    bad = []
    for i in range(a.schemas):
        schema = Generator(rng).schema()
        child.stdin.write(json.dumps({"schema": schema, "n": 12, "seed": i, "max_tokens": 60}) + "\n")
        child.stdin.flush()
        answer = json.loads(child.stdout.readline())
        if "error" in answer:
            refused += 1
            reasons[re.sub(r"\d+|\".*\"", "_", answer["error"])[:60]] = reasons.get(re.sub(r"\d+|\".*\"", "_", answer["error"])[:60], 0) + 1
            continue
        if "fault" in answer:
            bad.append((schema, answer["fault"], ""))
            continue
        compiled += 1
        validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
        for text in answer["texts"]:
            texts += 1
            try:
                validator.validate(json.loads(text))
            except Exception as e:
                bad.append((schema, text, str(e).splitlines()[0]))
                break
    child.stdin.close()
    for schema, text, why in bad[:10]:
        print("schema", json.dumps(schema, ensure_ascii=False), "\n  text", text, "\n  ", why)
    print(f"{compiled} schemas, {texts} texts valid but for {len(bad)}; {refused} schemas refused: {reasons}")
    # A compiler that refuses everything would pass too easily.
    sys.exit(1 if bad or compiled < a.schemas // 2 else 0)


main()
