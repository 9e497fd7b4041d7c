"""lm-evaluation-harness against the server: local-completions (log-likelihoods by echo and logprobs) and
local-chat-completions, on a task of a few local questions; no network.

    lm_eval_test.py PROGRAM MODEL

Skipped (exit 77) where lm_eval is missing: tests/serve/setup.sh makes an environment that has it.
"""
import importlib.util, json, math, os, subprocess, sys, tempfile

sys.path.insert(0, os.path.dirname(__file__))
if importlib.util.find_spec("lm_eval") is None:
    print("skipped: the Python package lm-eval is not installed (tests/serve/setup.sh)")
    sys.exit(77)
from server_under_test import Server

QUESTIONS = [("The sun rises in the", [" east", " west", " north"], 0), ("Water is", [" dry", " wet", " square"], 1), ("One plus one is", [" two", " nine", " blue"], 0), ("Fire is", [" cold", " hot", " green"], 1)]
CHOICE = """task: qe_choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
WRITE = """task: qe_write
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 8, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def run(folder, model, args, task, *more):
    out = tempfile.mkdtemp(dir=folder)
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "x", "HF_HOME": folder, "TOKENIZERS_PARALLELISM": "false"}
    r = subprocess.run([sys.executable, "-m", "lm_eval", "--model", model, "--model_args", args, "--tasks", task, "--include_path", folder, "--output_path", out, "--log_samples", *more], env=env, capture_output=True, text=True)
    if r.returncode: raise SystemExit(f"lm_eval {model} {task} failed:\n" + r.stdout[-2000:] + r.stderr[-4000:])
    samples = [json.loads(line) for root, _, files in os.walk(out) for f in files if f.startswith("samples") for line in open(os.path.join(root, f))]
    return sorted(samples, key=lambda s: s["doc_id"])


def main():
    s = Server(sys.argv[1], sys.argv[2])
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "data.jsonl")
        with open(data, "w") as f:
            for q, c, a in QUESTIONS: f.write(json.dumps({"question": q, "choices": c, "answer": a}) + "\n")
        for name, text in (("choice", CHOICE), ("write", WRITE)): open(os.path.join(folder, name + ".yaml"), "w").write(text.replace("DATA", data))
        base = f"model=m,base_url={s.url}/v1/completions,tokenizer_backend=remote,num_concurrent=4"
        samples = run(folder, "local-completions", base, "qe_choice")
        if len(samples) != len(QUESTIONS): faults.append(f"{len(samples)} samples of {len(QUESTIONS)}")
        for sample, (question, choices, _) in zip(samples, QUESTIONS):
            for (response,), choice in zip(sample["resps"], choices):
                got = float(response[0])
                # The same number from the server's own answer, asked for directly.
                prompt, text = s.post("/tokenize", {"prompt": question})["tokens"], s.post("/tokenize", {"prompt": question + choice})["tokens"]
                r = s.post("/v1/completions", {"model": "m", "prompt": text, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0})
                want = sum(r["choices"][0]["logprobs"]["token_logprobs"][len(prompt):len(text)])
                if not math.isclose(got, want, abs_tol=1e-4): faults.append(f"\"{question}{choice}\": lm_eval says {got}, the server {want}")
        written = run(folder, "local-completions", base, "qe_write")
        chat = run(folder, "local-chat-completions", f"model=m,base_url={s.url}/v1/chat/completions,num_concurrent=4", "qe_write", "--apply_chat_template")
        for kind, samples in (("completions", written), ("chat", chat)):
            if len(samples) != len(QUESTIONS) or any(not isinstance(x["resps"][0][0], str) or "\n" in x["resps"][0][0] for x in samples): faults.append(f"{kind}: {samples}")
    if s.stop() != 0: faults.append("SIGTERM")
    for f in faults: print("fault:", f)
    print(f"lm_eval: {len(QUESTIONS)} questions, {len(faults)} faults")
    sys.exit(1 if faults else 0)


main()
