"""Tokenizer pipelines: a small tokenizer.json for each kind of normalizer, pre-tokenizer, decoder and model option, with encodings.

usage: make_pipelines.py OUT_FOLDER      (writes NAME/tokenizer.json and NAME/cases.json)
Trained on the strings of make_tokens.py; ids and texts by the tokenizers library, 0.23.3.
"""
import json, os, sys
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers as N, pre_tokenizers as P, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = open(os.path.join(HERE, "make_tokens.py")).read()
STRINGS = {}
exec("import unicodedata\n" + SOURCE[SOURCE.index("S1 = ["):SOURCE.index("def smollm2")], STRINGS)
TEXTS = [s for s in STRINGS["S1"] + STRINGS["S2"] if len(s) < 200]
ADDED = ["[W]", " [W] ", "[W][W]", "a[W]", "[W]é", " <L> x", "a  <L>", "<R>  b", "<R>\n\n\n\n<L>", " <L>  <R>  <LR>  x", "Héllo", "he\u0301llo", "\n\n\n\n\n", "xim_endx", " <LR>\u00a0\u3000 <L>", "<s>a</s>"]

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
HAN = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(**k): return P.ByteLevel(**{**dict(add_prefix_space=False, use_regex=False), **k})
def regex(p, behavior="isolated", invert=False): return P.Sequence([P.Split(Regex(p), behavior, invert), byte_level()])


SPM = dict(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
SPM_DECODER = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
BOS = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
BOTH = processors.TemplateProcessing(single="<s> $A </s>", pair="$A $B", special_tokens=[("<s>", 1), ("</s>", 2)])

# name: normalizer, pre-tokenizer, decoder, post-processor, model options
KINDS = {
    "llama3": (None, regex(LLAMA3), decoders.ByteLevel(), processors.Sequence([processors.ByteLevel(trim_offsets=False), BOS]), dict(ignore_merges=True)),
    "tekken": (None, regex(TEKKEN), decoders.ByteLevel(), BOS, dict(ignore_merges=True)),
    "intersection": (None, regex(HAN), decoders.ByteLevel(), None, {}),
    "gpt2-prefix": (None, byte_level(use_regex=True, add_prefix_space=True), decoders.ByteLevel(), processors.RobertaProcessing(("</s>", 2), ("<s>", 1)), {}),
    "digits": (None, P.Sequence([P.Digits(False), byte_level()]), decoders.ByteLevel(), None, {}),
    "llama2": (N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), None, SPM_DECODER, BOS, SPM),
    "llama2-metaspace": (None, P.Metaspace("▁", "first", False), SPM_DECODER, BOS, SPM),
    "metaspace-always": (None, P.Metaspace("▁", "always", True), decoders.Metaspace("▁", "always", True), None, SPM),
    "metaspace-never": (None, P.Metaspace("▁", "never", True), decoders.Metaspace("▁", "never", True), None, SPM),
    "gemma": (N.Replace(" ", "▁"), P.Split(" ", "merged_with_previous"), decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]), BOTH, SPM),
    "end-of-word": (None, P.Whitespace(), decoders.BPEDecoder("</w>"), None, dict(fuse_unk=True, unk_token="<unk>", end_of_word_suffix="</w>")),
    "prefix-of-word": (N.Sequence([N.NFD(), N.StripAccents(), N.Lowercase()]), P.WhitespaceSplit(), decoders.WordPiece("##"), None, dict(unk_token="<unk>", continuing_subword_prefix="##")),
    "bert": (N.BertNormalizer(), P.BertPreTokenizer(), None, processors.BertProcessing(("</s>", 2), ("<s>", 1)), dict(unk_token="<unk>")),
    "nfkc": (N.Sequence([N.NFKC(), N.Strip(), N.Nmt()]), P.Sequence([P.Punctuation("contiguous"), byte_level()]), decoders.ByteLevel(), None, {}),
    "delimiter": (None, P.CharDelimiterSplit("a"), decoders.CTC(), None, dict(unk_token="<unk>")),
    "scripts": (None, P.Sequence([P.UnicodeScripts(), byte_level()]), decoders.ByteLevel(), None, {}),
    "length": (None, P.Sequence([P.FixedLength(3), byte_level()]), decoders.ByteLevel(), None, {}),
    "byte-normalizer": (N.ByteLevel(), None, decoders.ByteLevel(), None, {}),
    "replace": (N.Sequence([N.Replace(Regex(r"\s{2,}|\h+Z"), "_"), N.NFD()]), regex(r"\w+\b|\W|^.|[a-f&&[^cd]]+"), decoders.ByteLevel(), None, {}),
}
for b in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
    KINDS["split-" + b.replace("_", "-")] = (N.NFC(), regex(r"\s|\d+|[\p{P}]", b), decoders.ByteLevel(), None, {})
    KINDS["split-" + b.replace("_", "-") + "-inverted"] = (N.NFC(), regex(r"\s|\d+|[\p{P}]", b, True), decoders.ByteLevel(), None, {})


def train(normalizer, pre, decoder, post, options):
    t = Tokenizer(models.BPE(**options))
    if normalizer: t.normalizer = normalizer
    if pre: t.pre_tokenizer = pre
    bytes_ = [f"<0x{i:02X}>" for i in range(256)] if options.get("byte_fallback") else []
    more = {k: options[k] for k in ("end_of_word_suffix", "continuing_subword_prefix") if k in options}
    is_bytes = isinstance(decoder, decoders.ByteLevel)
    if is_bytes: more["initial_alphabet"] = P.ByteLevel.alphabet()
    t.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=650, special_tokens=["<unk>", "<s>", "</s>"] + bytes_, show_progress=False, limit_alphabet=1000 if is_bytes else 120, **more))
    if decoder: t.decoder = decoder
    if post: t.post_processor = post
    t.add_tokens([AddedToken("[W]", single_word=True, normalized=False), AddedToken("<L>", lstrip=True), AddedToken("<R>", rstrip=True, normalized=False), AddedToken("Héllo", normalized=True), AddedToken("im_end"),
                  AddedToken("<LR>", lstrip=True, rstrip=True, normalized=True), AddedToken("\n\n\n\n", normalized=False)])
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]  # bytes are no added tokens
    return j


if __name__ == "__main__":
    for name, kind in KINDS.items():
        folder = os.path.join(sys.argv[1], name); os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "tokenizer.json"), "w") as f: json.dump(train(*kind), f, ensure_ascii=False, separators=(",", ":"))
        t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json")); cases = []
        for s in TEXTS[::2] + ADDED:
            if name == "scripts" and "\N{LLAMA}" in s: continue  # newer than the library's table of scripts
            ids, special = t.encode(s, add_special_tokens=False).ids, t.encode(s).ids
            c = dict(text=s, ids=ids, decoded=t.decode(ids, skip_special_tokens=False), decoded_skip_special=t.decode(special))
            if special != ids: c["ids_with_special"] = special
            cases.append(c)
        with open(os.path.join(folder, "cases.json"), "w") as f: json.dump(dict(tool="tokenizers " + tokenizers.__version__, cases=cases), f, ensure_ascii=False, separators=(",", ":"))
