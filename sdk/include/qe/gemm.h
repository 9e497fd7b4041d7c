/* SPDX-License-Identifier: Apache-2.0
 *
 * qe/gemm.h: the host's dense matrix product on a GPU, for plugins that keep no library of their own.
 *
 *   const qe_gemm_v1 *g = host->extension(host->self, QE_GEMM_ID);      NULL: this host has none
 *   g->gemm(g->self, &args, &error);
 *
 *   out[m, n] = in[m, k] * W[n, k]^T * scales        fp32 sums; out is not read
 *
 * All pointers are device memory of the current device; nothing is kept after the work that the call
 * enqueues on `stream` has run. [step]: no allocation, no synchronization, legal while the stream is
 * being captured. QE_E_UNSUPPORTED: no algorithm for these types, strides or alignments (nothing was
 * enqueued; a caller falls back to kernels of its own).
 */
#ifndef QE_GEMM_H
#define QE_GEMM_H

#include <qe/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QE_GEMM_ID "qe.gemm/1"

/* Bytes of workspace that serve every call; with less (or none) fewer algorithms can be chosen. */
enum { QE_GEMM_WORKSPACE = 33554432 };

typedef struct {
  uint32_t struct_size, flags; /* flags: 0 */
  int64_t m, n, k;
  qe_tensor in;     /* [m, k] BF16 or E4M3; stride[0] in elements, stride[1] 1 */
  qe_tensor weight; /* [n, k] of the same type; likewise */
  qe_tensor out;    /* [m, n] BF16 or F32; likewise */
  /* E4M3 only, F32, data NULL for BF16. By shape: [1] one for all; in_scale [m], weight_scale [n] per row; in_scale [m, ceil(k/128)] with
     weight_scale [ceil(n/128), ceil(k/128)] in blocks. A scale multiplies. Blocks are known with strides {1, m} and {ceil(k/128) rounded up to a
     multiple of 4, 1}, 16-byte aligned, and m a multiple of 4; what of this a GPU has: QE_E_UNSUPPORTED tells. */
  qe_tensor in_scale, weight_scale;
  void *workspace;
  uint64_t workspace_bytes;
  qe_stream stream;
} qe_gemm_args;

typedef struct {
  uint32_t struct_size, reserved;
  void *self;
  qe_status (*gemm)(void *self, const qe_gemm_args *, qe_error *) QE_NOEXCEPT; /* [step] */
  /* [load] Optional (NULL): chooses algorithms for these shapes now, so that later calls only enqueue. `args` as for gemm; outputs are overwritten. */
  qe_status (*warmup)(void *self, const qe_gemm_args *, qe_error *) QE_NOEXCEPT;
} qe_gemm_v1;

#ifdef __cplusplus
}
#endif
#endif /* QE_GEMM_H */
