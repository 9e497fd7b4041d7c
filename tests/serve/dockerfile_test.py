"""What the Dockerfile says of its second stage, held against the program: its packages bring every library that the
program and its plugins need, and its health check tells a server that answers from one that does not.

    dockerfile_test.py PROGRAM MODEL

Skipped (exit 77) on other systems than the one that the image is made of.
"""
import glob, json, os, re, subprocess, sys

sys.path.insert(0, os.path.dirname(__file__))
from server_under_test import Server

ROOT = os.path.join(os.path.dirname(__file__), "../..")
text = open(os.path.join(ROOT, "Dockerfile")).read()
if not (os.path.exists("/etc/debian_version") and open("/etc/debian_version").read().startswith("12")) or "FROM debian:12" not in text:
    print("skipped: the image is Debian 12, this system is not")
    sys.exit(77)


def lines(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


def main():
    faults = []
    stage = text.split("\nFROM ")[-1]
    words = re.search(r"apt-get install -y --no-install-recommends ([^\\&]*)", stage)[1].split()
    # What these packages depend on, and what is in every image.
    known = set(lines("dpkg-query", "-W", "-f", "${binary:Package} ${Essential}\n"))
    have, todo = set(), list(words) + [p.split()[0] for p in known if p.endswith(" yes")]
    while todo:
        package = todo.pop().split(":")[0]
        if package in have: continue
        have.add(package)
        for line in lines("dpkg-query", "-W", "-f", "${Pre-Depends}, ${Depends}\n", package):
            todo += [re.split(r"[ (:|]", d.strip())[0] for d in line.split(",") if d.strip()]
    program = sys.argv[1]
    needed = {}
    for file in [program, *glob.glob(os.path.join(os.path.dirname(program), "plugins/*.so"))]:
        for line in lines("ldd", file):
            if m := re.match(r"\s*(\S+) => (/\S+)", line): needed[m[1]] = os.path.realpath(m[2])
            elif "not found" in line: faults.append(f"{file}: {line.strip()}")
    for name, path in sorted(needed.items()):
        if os.path.basename(path).startswith("lib") and re.match(r"lib(asan|tsan|ubsan)\.so", name): continue  # of a build with a sanitizer
        owners = lines("dpkg", "-S", path) or lines("dpkg", "-S", path.replace("/usr/lib/", "/lib/")) or lines("dpkg", "-S", "/usr" + path)
        packages = {o.split(":")[0] for o in owners}
        if not packages & have: faults.append(f"{name} is of {sorted(packages) or path}, which the image does not install")

    check = json.loads(re.search(r"HEALTHCHECK.* CMD (\[.*\])", stage)[1])
    s = Server(program, sys.argv[2])
    ask = lambda: subprocess.run([w.replace("/8000", f"/{s.port}") for w in check], capture_output=True, text=True, timeout=60)
    if not any("/8000" in w for w in check) or "EXPOSE 8000" not in stage: faults.append("the health check does not ask the port that is exposed")
    if (r := ask()).returncode != 0: faults.append(f"the health check fails on a healthy server: {r.stderr}")
    s.stop()
    if ask().returncode == 0: faults.append("the health check succeeds on a server that has ended")
    for f in faults: print("fault:", f)
    print(f"{len(needed)} libraries, {len(words)} packages")
    sys.exit(1 if faults else 0)


main()
