/* SPDX-License-Identifier: Apache-2.0
 *
 * qe/plugin.h: the contract between qengine and a format plugin. ABI 0.x. C11 and valid C++20.
 *
 * A plugin is one shared library that exports exactly one symbol, `qe_plugin_query`. It returns a constant
 * descriptor (qe_plugin); abilities hang behind `extension("qe.weight/1")` and `extension("qe.kv/1")`.
 *
 * Units    Sizes are bytes, shapes and strides elements, times nanoseconds.
 * Threads  [scan]  repeatable, no device      [load] one thread per device, may block
 *          [step]  no allocation, lock, sync, file, log above debug; one call at a time per handle
 *          [any]   thread-safe
 * Memory   Pointers in are borrowed until the call returns unless a comment says more. Who creates destroys.
 * Growth   Growable structs start with struct_size and only ever grow at the end; FROZEN ones may be embedded
 *          by value and never change. Reserved fields are zero. Numbers and names are never reused.
 * Errors   qe_status 0 is success; anything else has filled the caller's qe_error. No exception crosses.
 */
#ifndef QE_PLUGIN_H
#define QE_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define QE_NOEXCEPT noexcept
extern "C" {
#else
#define QE_NOEXCEPT
#endif

/* qe/plugin.h, ABI 0.x. C11 and valid C++20. Sizes are bytes, shapes and strides elements, times nanoseconds.
   [scan] [load] [step] [any]: thread rule 11. Pointers in are borrowed until the call returns unless it says more.
   Growable structs start with struct_size; FROZEN ones may be embedded by value and never change. */
enum { QE_ABI_MAJOR = 0, QE_ABI_MINOR = 1, QE_MAGIC = 0x31504551 /* "QEP1" */ };
#define QE_HAS(p, f) ((p)->struct_size >= offsetof(__typeof__(*(p)), f) + sizeof((p)->f)) /* before reading a newer field */
typedef int32_t qe_status; /* 0 = ok; anything else has filled the caller's qe_error */
enum { QE_OK = 0, QE_E_UNSUPPORTED = -1, QE_E_CHECKPOINT = -2, QE_E_OOM = -3, QE_E_DEVICE = -4, QE_E_ARGUMENT = -5,
       QE_E_CANCELLED = -6, QE_E_INTERNAL = -7 };
typedef struct { int32_t device_code; char subject[160] /* tensor, option */, message[384], hint[384]; } qe_error; /* FROZEN, caller's */
/* message is one line without a full stop; the host puts `subject` before it unless it is already in there. It may begin with a code of
   docs/errors.md ("E206 ... has 3 NaN values"); else QE_E_CHECKPOINT becomes E202 when the subject is no tensor of the checkpoint, E204
   from plan and tensors, E206 from load. */
typedef char qe_reason[256];                             /* FROZEN, caller's; one sentence: value found, values supported */
typedef struct { const char *p; size_t n; } qe_str;      /* FROZEN; UTF-8, not NUL-terminated */
/* qe_cfg, the host's: what a plugin may read about the checkpoint, by dotted path. Arrays take a number as a path item.
     ""  (root)     the quantization config ("quant_method", "bits", "config_groups.group_0.weights.num_bits")
     "options.*"    this plugin's options (--plugin-opt, [plugins.options.NAME])
     "model.*"      config.json ("model.hidden_size")
     "gguf.*"       GGUF metadata ("gguf.general.file_type"); a key with dots is looked up whole first */
typedef struct qe_cfg_s *qe_cfg;
typedef struct qe_ckpt_s *qe_ckpt;     /* host's: tensors by name; never a file, a path or a descriptor */
typedef struct qe_dev_s *qe_dev;       /* plugin's: state for one device and one engine instance */
typedef struct qe_linear_s *qe_linear; /* plugin's: one packed linear */
typedef struct qe_kv_s *qe_kv;         /* plugin's: one KV format opened for one model */
typedef void *qe_stream;               /* host's cudaStream_t; NULL on CPU, where a call returns with its work done */
enum { QE_F32 = 1, QE_F16, QE_BF16, QE_E4M3, QE_E5M2, QE_E8M0, QE_I8, QE_U8, QE_I16, QE_I32, QE_I64, QE_E2M1X2,
       QE_GGML = 16 /* + GGUF type id, at most 47: raw blocks, shape in elements */ };
typedef struct { int32_t dtype, rank; int64_t dim[4], stride[4]; void *data; } qe_tensor; /* FROZEN; a borrowed view */
typedef struct { uint32_t struct_size; int32_t kind, ordinal, sm /* 90 = 9.0 */, sm_count, driver /* 13000 */;
                 uint64_t smem_optin, l2_bytes, mem_bytes, cpu_isa; } qe_device; /* may describe a GPU that is not in this machine */
typedef struct { uint32_t struct_size; int32_t layers, q_heads, kv_heads, head_dim, compute; qe_str model_type;
                 qe_cfg cfg; qe_ckpt ckpt /* NULL: planning from config.json alone */; } qe_model;
enum { QE_CPU = 1, QE_CUDA = 2 }; enum { QE_MEM_WEIGHT = 1, QE_MEM_PERSIST, QE_MEM_LOAD_TEMP }; /* weights, plugin state, load peak */
typedef struct { /* host services; the table and `self` outlive the plugin */
  uint32_t struct_size, abi_major, abi_minor, abi_oldest_minor; void *self;
  void (*log)(void *self, int32_t level, qe_str) QE_NOEXCEPT;                                                             /* [any] */
  qe_status (*alloc)(void *self, const qe_device *, uint64_t bytes, uint64_t align, int32_t mem, void **out) QE_NOEXCEPT; /* [load] */
  void (*free)(void *self, const qe_device *, void *) QE_NOEXCEPT;                                                        /* [load] */
  qe_status (*upload)(void *self, void *dst, const void *src, uint64_t bytes, qe_stream) QE_NOEXCEPT;  /* [load] pinned staging, async */
  void (*parallel_for)(void *self, int64_t n, void (*body)(void *, int64_t), void *arg) QE_NOEXCEPT;   /* [load]; on CPU also [step] */
  /* A path is the quantization config's own ("config_groups.group_0.weights.num_bits"), or begins with "options." (this plugin's options),
     "model." (config.json) or "gguf." (metadata, key as in the file). Keys may hold dots; "#3" is the fourth value of an object or array.
     null counts as absent; cfg_size of a single value is 0. Strings live as long as the checkpoint. */
  int64_t (*cfg_size)(void *self, qe_cfg, const char *path) QE_NOEXCEPT;                               /* [any] items; -1 = absent */
  bool (*cfg_key)(void *self, qe_cfg, const char *path, int64_t i, qe_str *out) QE_NOEXCEPT;           /* [any] */
  bool (*cfg_str)(void *self, qe_cfg, const char *path, qe_str *out) QE_NOEXCEPT;                      /* [any] */
  bool (*cfg_f64)(void *self, qe_cfg, const char *path, double *out) QE_NOEXCEPT;                      /* [any] */
  bool (*cfg_i64)(void *self, qe_cfg, const char *path, int64_t *out) QE_NOEXCEPT;                     /* [any] bool as 0, 1 */
  bool (*match)(void *self, qe_str pattern, qe_str name) QE_NOEXCEPT;                   /* [any] exact, glob or re:, bounded work */
  /* QE_E_CHECKPOINT when absent. data is NULL before load for tensors above 1 MiB, and is aligned to the element; it lasts until load returns. */
  qe_status (*tensor)(void *self, qe_ckpt, qe_str name, qe_tensor *out) QE_NOEXCEPT;    /* [any] before load: data only up to 1 MiB */
  bool (*cancelled)(void *self) QE_NOEXCEPT;                                            /* [any] ask often in load */
  const void *(*extension)(void *self, const char *id) QE_NOEXCEPT;                     /* [any] "qe.gemm/1"; NULL = absent */
  int32_t (*threads)(void *self) QE_NOEXCEPT;    /* [any] how many threads parallel_for spreads over; NULL or 0: not said */
} qe_host;
typedef struct { uint32_t struct_size; int32_t kind, sm_min, sm_max /* 0 = open */, tier; } qe_capability; /* 1 native, 2 weight-only, 3 reference */
typedef struct { uint32_t struct_size, n_rows; const char *name /* SCHEME in --plugin ID:SCHEME */, *quant_method, *summary;
                 const qe_capability *const *rows; } qe_method;
typedef struct { uint32_t struct_size; int32_t kind /* 1 flag, 2 name, 3 option, 4 value */;
                 const char *alias, *condition /* quant_method, "none", "" = any */, *replacement, *since, *removed_in, *message; } qe_alias;
typedef struct { /* the plugin: constant data, readable before anything is started */
  uint32_t struct_size, magic, abi_major, abi_built_minor, abi_needs_minor, n_methods, n_aliases, n_options;
  const char *id /* reverse DNS */, *name, *version, *vendor, *license, *url, *build /* compilers, CUDA */, *sdk;
  const qe_method *const *methods; const qe_alias *const *aliases; const char *const *options;
  qe_status (*init)(const qe_host *, qe_error *) QE_NOEXCEPT;                    /* [scan] idempotent, no device */
  void (*shutdown)(void) QE_NOEXCEPT;                                            /* [load] at process end; the library stays mapped */
  int32_t (*detect)(const qe_model *, qe_reason why) QE_NOEXCEPT;                /* [scan] 0 = not mine .. 1000 = exactly mine */
  qe_status (*dev_open)(const qe_device *, qe_dev *out, qe_error *) QE_NOEXCEPT; /* [load] several may be open on one device */
  void (*dev_close)(qe_dev) QE_NOEXCEPT;                                         /* [load] */
  const void *(*extension)(const char *id) QE_NOEXCEPT;                          /* [scan] "qe.weight/1", "qe.kv/1"; NULL = absent */
} qe_plugin;
typedef const qe_plugin *(*qe_plugin_query_fn)(uint32_t host_major, uint32_t host_minor); /* NULL = no common major */
/* ---- steps: what the model does next to a product, in order. Pointers NULL in plan, device memory in run ---- */
enum { QE_STEP_RMS_NORM = 1, QE_STEP_BIAS, QE_STEP_QK_NORM, QE_STEP_ROPE, QE_STEP_KV_APPEND, QE_STEP_ACT_MUL,
       QE_STEP_RESIDUAL, QE_STEP_SUMSQ, QE_STEP_SOFTCAP, QE_STEP_ARGMAX };
typedef struct { uint32_t struct_size; int32_t kind; } qe_step; /* FROZEN head; struct_size is that of the whole step */
typedef struct { qe_step head; qe_tensor value; float x; int32_t variant; } qe_step_simple; /* BIAS [n], RESIDUAL [m,n],
                 SUMSQ out f32 [m,n/64], ACT_MUL 0 silu 1 gelu_tanh, SOFTCAP x, ARGMAX out */
typedef struct { qe_step head; qe_tensor weight, sumsq /* of the input, if known */; float eps; int32_t gemma /* 1+w */; } qe_step_norm;
typedef struct { qe_step head; qe_tensor q_weight, k_weight; float eps; int32_t gemma; } qe_step_qk_norm;
typedef struct { qe_step head; qe_tensor cos_sin /* f32 [pos, rot_dim] */, position /* i32 [m] */; int32_t rot_dim, interleaved; } qe_step_rope;
enum { QE_KV_OPAQUE = 0, QE_KV_BF16, QE_KV_E4M3_TENSOR, QE_KV_E4M3_HEAD, QE_KV_I8_TOKEN_HEAD, QE_KV_I4_TOKEN_HEAD };
typedef struct { qe_step head; int32_t encoding, block_tokens; void *pool_k, *pool_v, *pool_scale; uint64_t block_stride;
                 const float *k_scale, *v_scale; const int64_t *slot; /* [m], -1 = skip */ } qe_step_kv;
/* ---- "qe.weight/1" ---- */
enum { QE_ROLE_OTHER = 0, QE_ROLE_Q, QE_ROLE_K, QE_ROLE_V, QE_ROLE_O, QE_ROLE_GATE, QE_ROLE_UP, QE_ROLE_DOWN, QE_ROLE_LM_HEAD,
       QE_ROLE_EMBED /* only `rows` is called; a tied model has one handle, of role LM_HEAD, for both */ };
typedef struct { uint32_t struct_size; int32_t role; qe_str name /* prefix */; int64_t n, n_begin, n_end /* this rank's rows */; } qe_part;
enum { QE_LAYER_EXACT = 1 /* f32 on dequantized weights */, QE_LAYER_ACT_QUANT = 2 /* quantized activations, as the checkpoint says */,
       QE_LAYER_ACT_AUTO = 4 /* with it: only above M = 32 */, QE_LAYER_ACT_TOKEN = 8 /* with it: per token where the checkpoint says nothing */,
       QE_LAYER_NAMED = 16 /* the user asked for this plugin on this very layer (override, --quantize-lm-head) */ };
typedef struct { uint32_t struct_size, n_parts /* qkv 3, gate_up 2 */, n_before, n_after; const qe_part *const *parts; const char *method;
                 int32_t index, tp_rank, tp_size, act, flags /* QE_LAYER_* */; int64_t k, k_begin, k_end /* this rank's inputs */, m_max;
                 const qe_step *const *before, *const *after; } qe_layer; /* the chain of section 5 */
enum { QE_ACT_COMPUTE = 1, QE_ACT_E4M3_TENSOR = 2, QE_ACT_E4M3_TOKEN = 4, QE_ACT_E4M3_TOKEN128 = 8, QE_ACT_I8_TOKEN = 16 };
enum { QE_GRAPH_SAFE = 1, QE_PDL_SAFE = 2, QE_DETERMINISTIC = 4, QE_BATCH_INVARIANT = 8, QE_NEEDS_WARMUP = 16 };
typedef struct { int64_t m_hi; uint32_t n_before, n_after /* steps it takes */, in_encodings, flags, launches, reserved;
                 uint64_t workspace_bytes; char kernel[48]; uint64_t zero[5]; } qe_regime; /* FROZEN, 128 bytes */
typedef struct { uint32_t struct_size; int32_t claim /* 0 no, 1 fallback, 2 native */; qe_reason reason; int32_t fuse_parts, n_regimes;
                 int64_t n_multiple, k_multiple; uint64_t weight_bytes, persist_bytes, load_temp_bytes;
                 qe_regime regime[4]; /* rising m_hi, the last one covers m_max */
                 char scheme[48]; /* what the layer is stored as: "w4g128", "fp8_per_channel"; empty: the method's name */ } qe_plan;
typedef struct { uint32_t struct_size; int32_t required, rank /* -1: any */; qe_str name; uint64_t dtypes /* 1 << dtype; 0: any */;
                 int64_t dim[4] /* -1: any */; } qe_want;
enum { QE_RUN_CAPTURING = 1, QE_RUN_PDL = 2, QE_RUN_OTHER_BEHIND = 4, QE_RUN_OTHER_BEFORE = 8 /* with PDL: the
       kernel behind or before is no product and may have few blocks; hints for how blocks spread (qe/cuda/work.hpp) */ };
typedef struct { uint32_t struct_size, flags, n_before, n_after; int64_t m; qe_tensor in, in_scale, out;
                 const qe_step *const *before, *const *after; void *workspace; uint64_t workspace_bytes; qe_stream stream; } qe_run;
typedef struct { uint32_t struct_size, reserved;
  qe_status (*plan)(const qe_device *, const qe_model *, const qe_layer *, qe_plan *out, qe_error *) QE_NOEXCEPT;     /* [any] pure, < 1 ms */
  qe_status (*tensors)(const qe_model *, const qe_layer *, void (*want)(void *, const qe_want *), void *arg, qe_error *) QE_NOEXCEPT; /* [any] pure */
  qe_status (*load)(qe_dev, const qe_model *, const qe_layer *, qe_stream, qe_linear *out, qe_error *) QE_NOEXCEPT;   /* [load] */
  qe_status (*warmup)(qe_linear, const int64_t *m, uint32_t n_m, const qe_run *scratch, qe_error *) QE_NOEXCEPT;      /* [load] then capture is legal */
  qe_status (*run)(qe_linear, const qe_run *, qe_error *) QE_NOEXCEPT;                                                /* [step] */
  qe_status (*dequant)(qe_linear, int64_t n_begin, int64_t n_end, qe_tensor *out, qe_stream, qe_error *) QE_NOEXCEPT; /* [load] f32, unrounded */
  qe_status (*rows)(qe_linear, const int32_t *ids, int64_t n, qe_tensor *out, qe_stream, qe_error *) QE_NOEXCEPT;     /* [step] embedding lookup; NULL: not offered */
  uint64_t (*bytes)(qe_linear, int32_t mem) QE_NOEXCEPT;                                                              /* [any] equals plan */
  void (*destroy)(qe_linear) QE_NOEXCEPT;                                                                             /* [load] nothing in flight */
} qe_weight_v1;
/* ---- "qe.kv/1": a block is position-independent bytes, which the host may copy, share and move ---- */
/* Block sizes are those of one layer. cfg "options.method" is the SCHEME that was asked for (absent: the plugin's own choice). detect of a
   plugin without qe.weight/1 is about the cache: 600 and more when the checkpoint asks for it. scale_kind says where scales come from. */
enum { QE_KV_SCALE_NONE = 0, QE_KV_SCALE_ONE, QE_KV_SCALE_CHECKPOINT };
typedef struct { uint32_t struct_size; int32_t claim; qe_reason reason; int32_t encoding, scale_kind, has_attention, flags;
                 uint64_t block_bytes_k, block_bytes_v, block_bytes_scale, align; } qe_kv_plan;
/* pool_*: this layer's, aligned; block b begins at b times its block bytes, which are multiples of `align`. Rows have strides; F32 on the CPU.
   store    token i of k, v [n_tokens, kv_heads * head_dim] goes to slot[i] = block * block_tokens + offset, -1 skips it. Slots are distinct.
   gather   writes k, v [sum of seq_len, kv_heads * head_dim]: of each of n_seqs sequences its first seq_len[s] tokens, which lie in the
            blocks block_table[s * max_blocks ...]; slot is NULL. Several threads may gather from one qe_kv at once.
   encoding  one that is not opaque says what a value is (E4M3: one byte, times the scale of its layer, K and V apart, and of its head for
            _HEAD), and that a block is [slot][kv head][dim]: core's own kernels may then store and attend, and no function here is called.
   decode, prefill   q, out [n_tokens, q_heads * head_dim]; rows cu_q[s] .. cu_q[s+1]-1 are the last ones of sequence s, whose seq_len counts
            them; q is not scaled yet. Core uses them on the CPU only when both are there: a prompt cut elsewhere must give the same numbers. */
typedef struct { uint32_t struct_size, flags; int32_t layer, n_seqs, n_tokens, max_blocks, window; float sm_scale, softcap;
                 qe_tensor q, k, v, out; void *pool_k, *pool_v, *pool_scale; const int32_t *block_table, *seq_len, *cu_q;
                 const int64_t *slot; void *workspace; uint64_t workspace_bytes; qe_stream stream; } qe_kv_args; /* device memory */
typedef struct { uint32_t struct_size, reserved;
  qe_status (*plan)(const qe_device *, const qe_model *, int32_t block_tokens, qe_kv_plan *out, qe_error *) QE_NOEXCEPT; /* [any] pure */
  qe_status (*open)(qe_dev, const qe_model *, int32_t block_tokens, qe_kv *out, qe_error *) QE_NOEXCEPT;                 /* [load] */
  qe_status (*store)(qe_kv, const qe_kv_args *, qe_error *) QE_NOEXCEPT;   /* [step] quantize rotated k and v, scatter by slot */
  qe_status (*gather)(qe_kv, const qe_kv_args *, qe_error *) QE_NOEXCEPT;  /* [step] blocks to compute dtype; never NULL: the oracle */
  qe_status (*decode)(qe_kv, const qe_kv_args *, qe_error *) QE_NOEXCEPT;  /* [step] NULL: core's attention reads `encoding` */
  qe_status (*prefill)(qe_kv, const qe_kv_args *, qe_error *) QE_NOEXCEPT; /* [step] NULL: core stores, then attends over what `gather` gives */
  void (*close)(qe_kv) QE_NOEXCEPT;                                        /* [load] */
  /* [load] Of an encoding that is not opaque: the scales of a layer, F32 [kv_heads] each in host memory; value = code * scale. NULL: all 1. */
  qe_status (*scales)(qe_kv, int32_t layer, float *k_scale, float *v_scale, qe_error *) QE_NOEXCEPT;
} qe_kv_v1;
/* "qe.fused_step/1", DRAFT: plan [any], build [load], run [step], destroy [load], like qe_weight_v1. In: layer range, with_embed,
   with_lm_head, m_max, this plugin's own qe_linear handles, the qe_kv in use. plan adds extra_bytes, max_ns of one call, `cooperative`
   (needs the whole GPU). Same weights, same paged KV; hidden states or logits out; never samples. */

#ifdef __cplusplus
}
#endif
#endif /* QE_PLUGIN_H */
