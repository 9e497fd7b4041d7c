"""What libqe_kernel_times.so wrote, summed up: by kernel and the one before it, from one end to the next.

    kernel_times.py FILE [LEAST_COUNT]
"""
import collections, re, statistics, sys

NAMES = re.compile(r"(stream_gemm|wide_gemm|attention_decode|attention_prefill|unpack_rows|add_norm|act_mul|argmax|advance|qkv_finish|nvjet|cutlass)")

kernels = []
for line in open(sys.argv[1]):
    begin, end, grid, threads, registers, shared, name = line.rstrip("\n").split(" ", 6)
    found = NAMES.search(name)
    kernels.append((int(end), int(begin), found[1] if found else name[:30], grid, registers, shared))
kernels.sort()
groups = collections.defaultdict(list)
for before, now in zip(kernels, kernels[1:]):
    groups[before[2], *now[2:]].append((now[0] - before[0]) / 1000)
least = int(sys.argv[2]) if len(sys.argv) > 2 else 20
print(f"{'after':18} {'kernel':18} {'grid':12} {'registers':>9} {'shared':>7} {'count':>6} {'us, end to end: 10 %':>20} {'median':>7} {'90 %':>7}")
for (before, name, grid, registers, shared), us in sorted(groups.items(), key=lambda x: -sum(x[1])):
    if len(us) < least: continue
    us.sort()
    print(f"{before:18} {name:18} {grid:12} {registers:>9} {shared:>7} {len(us):6} {us[len(us) // 10]:20.2f} {statistics.median(us):7.2f} {us[len(us) * 9 // 10]:7.2f}")
