"""A real Prometheus scrapes the server, accepts config/prometheus/rules.yml, and answers the queries of the
Grafana dashboard.

    prometheus_test.py PROGRAM MODEL

Skipped (exit 77) where the Debian package prometheus is missing.
"""
import json, os, re, shutil, socket, subprocess, sys, tempfile, time, urllib.parse, urllib.request

sys.path.insert(0, os.path.dirname(__file__))
if not shutil.which("prometheus") or not shutil.which("promtool"):
    print("skipped: no prometheus and promtool here (Debian package prometheus)")
    sys.exit(77)
from server_under_test import Server

CONFIG = os.path.join(os.path.dirname(__file__), "../../config")


def main():
    faults = []
    s = Server(sys.argv[1], sys.argv[2])
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        rules = os.path.abspath(os.path.join(CONFIG, "prometheus/rules.yml"))
        open(f"{folder}/p.yml", "w").write(f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{rules}]\nscrape_configs:\n  - job_name: qengine\n    static_configs: [{{targets: ['127.0.0.1:{s.port}']}}]\n")
        for what in (["check", "config", f"{folder}/p.yml"], ["check", "rules", rules]):
            r = subprocess.run(["promtool", *what], capture_output=True, text=True)
            if r.returncode: faults.append(r.stdout + r.stderr)
        # promtool's own opinion of the exposition: names, help, types.
        r = subprocess.run(["promtool", "check", "metrics"], input=s.get("/metrics"), capture_output=True, text=True)
        # vLLM's names have colons and its histograms no unit in some names; everything else must be clean.
        odd = [line for line in (r.stdout + r.stderr).splitlines() if line.strip() and "should not contain ':'" not in line and "no help text" not in line and "colon" not in line and not line.startswith("vllm:")]
        if odd: faults.append("promtool check metrics: " + "; ".join(odd[:10]))
        prometheus = subprocess.Popen(["prometheus", f"--config.file={folder}/p.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            def ask(q):
                url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": q})
                return json.load(urllib.request.urlopen(url, timeout=10))["data"]["result"]
            until = time.time() + 60
            while True:
                try:
                    up = ask("up{job=\"qengine\"}")
                    if up and up[0]["value"][1] == "1": break
                except OSError:
                    pass
                if time.time() > until or prometheus.poll() is not None: raise SystemExit("fault: Prometheus does not scrape the server: " + (prometheus.stderr.read() if prometheus.poll() is not None else str(up)))
                time.sleep(0.2)
            for i in range(5): s.post("/v1/completions", {"prompt": "a b c", "max_tokens": 8, "ignore_eos": True})
            time.sleep(4)
            total = ask("vllm:generation_tokens_total")
            if not total or float(total[0]["value"][1]) != 40: faults.append(f"generation_tokens_total is {total}, 40 tokens were made")
            dashboard = json.load(open(os.path.join(CONFIG, "grafana/qengine.json")))
            n = 0
            for panel in dashboard["panels"]:
                for target in panel.get("targets", []):
                    q = target["expr"].replace("$__rate_interval", "10s").replace("$model", ".*")
                    n += 1
                    try:
                        if not ask(q): faults.append(f"panel \"{panel['title']}\": no data for {q}")
                    except urllib.error.HTTPError as e:
                        faults.append(f"panel \"{panel['title']}\": {q}: {e.read().decode()[:200]}")
            alerts = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules", timeout=10))["data"]["groups"]
            for g in alerts:
                for rule in g["rules"]:
                    if rule.get("health") not in ("ok", "unknown") or rule.get("lastError"): faults.append(f"rule {rule['name']}: {rule.get('lastError')}")
            print(f"{n} queries of the dashboard, {sum(len(g['rules']) for g in alerts)} rules")
        finally:
            prometheus.terminate()
            prometheus.wait(20)
    begin = time.perf_counter()
    for _ in range(20): s.get("/metrics")
    scrape = (time.perf_counter() - begin) / 20
    if scrape > 1: faults.append(f"a scrape takes {scrape * 1000:.1f} ms")  # 5 ms by itself; the machine may be busy
    s.stop()
    for f in faults: print("fault:", f)
    print(f"a scrape takes {scrape * 1000:.1f} ms")
    sys.exit(1 if faults else 0)


main()
