/* toy: a whole weight plugin in plain C11, for tests of the host.
 *
 *   W[n,k] = scale[n] * code[n,k]      P.codes I8 [N,K], P.scale F32 [N]
 *   config   {"quant_method": "toy", "ignore": [...], "no_fuse": true, "tier": "fallback", "fault": "..."}
 *
 * Scheme "online" quantizes P.weight F32 at load: only when asked for by name. "fault" in the config
 * makes it break its contract in one way at a time. Compiled several times, with TOY_* set otherwise.
 */
#include <qe/plugin.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef TOY_ID
#define TOY_ID "test.toy"
#endif
#ifndef TOY_NAME
#define TOY_NAME "toy"
#endif
#ifndef TOY_VERSION
#define TOY_VERSION "1.2.3"
#endif
#ifndef TOY_METHOD
#define TOY_METHOD "toy"
#endif
#ifndef TOY_SCORE
#define TOY_SCORE 1000
#endif
#ifndef TOY_MAJOR
#define TOY_MAJOR QE_ABI_MAJOR
#endif
#ifndef TOY_BUILT
#define TOY_BUILT QE_ABI_MINOR
#endif
#ifndef TOY_NEEDS
#define TOY_NEEDS QE_ABI_MINOR
#endif
#ifndef TOY_SIZE
#define TOY_SIZE sizeof(qe_plugin)
#endif
#ifndef TOY_MAGIC
#define TOY_MAGIC QE_MAGIC
#endif

static const qe_host *host;

struct qe_linear_s {
  int64_t n, k;
  int8_t *codes; /* [n, k], then the scales, float [n] */
  char fault[32];
};

static void say(char *to, size_t size, const char *text) { snprintf(to, size, "%s", text); }

static bool cfg_text(const qe_model *m, const char *path, char *out, size_t size) {
  qe_str s;
  if (!host->cfg_str(host->self, m->cfg, path, &s)) return false;
  snprintf(out, size, "%.*s", (int)s.n, s.p);
  return true;
}

static bool fault_is(const qe_model *m, const char *what) {
  char fault[32] = "";
  cfg_text(m, "fault", fault, sizeof fault);
  return strcmp(fault, what) == 0;
}

static bool online(const qe_layer *l) { return l->method && strcmp(l->method, "online") == 0; }

static qe_status fetch(const qe_model *m, const qe_part *p, const char *suffix, qe_tensor *t, char name[256]) {
  snprintf(name, 256, "%.*s.%s", (int)p->name.n, p->name.p, suffix);
  const qe_str s = {name, strlen(name)};
  return host->tensor(host->self, m->ckpt, s, t);
}

static int32_t detect(const qe_model *m, qe_reason why) {
  char method[64] = "absent";
  cfg_text(m, "quant_method", method, sizeof method);
  snprintf(why, sizeof(qe_reason), "quant_method is %s; this plugin reads " TOY_METHOD, method);
  if (strcmp(method, TOY_METHOD) == 0) return TOY_SCORE;
  return strcmp(method, "absent") == 0 ? 300 : 0;
}

static qe_status plan(const qe_device *d, const qe_model *m, const qe_layer *l, qe_plan *out, qe_error *e) {
  (void)d;
  char pattern[256], text[64];
  if (fault_is(m, "plan")) {
    say(e->message, sizeof e->message, "the wheels came off");
    return QE_E_INTERNAL;
  }
  for (uint32_t i = 0; i < l->n_parts; ++i) {
    qe_str ignored;
    const int64_t n = host->cfg_size(host->self, m->cfg, "ignore");
    for (int64_t r = 0; r < n; ++r) {
      snprintf(pattern, sizeof pattern, "ignore.#%d", (int)r);
      if (host->cfg_str(host->self, m->cfg, pattern, &ignored) && host->match(host->self, ignored, l->parts[i]->name)) {
        say(out->reason, sizeof out->reason, "listed in ignore");
        return QE_OK;
      }
    }
    if (!online(l) && l->parts[i]->role >= QE_ROLE_LM_HEAD && m->ckpt) {
      qe_tensor t;
      char name[256];
      if (fetch(m, l->parts[i], "codes", &t, name) != QE_OK) {
        say(out->reason, sizeof out->reason, "no codes");
        return QE_OK;
      }
    }
    if (online(l) && l->parts[i]->role >= QE_ROLE_LM_HEAD && !(l->flags & QE_LAYER_NAMED)) {
      say(out->reason, sizeof out->reason, "a head or an embedding");
      return QE_OK;
    }
    out->weight_bytes += (uint64_t)(l->parts[i]->n * l->k + l->parts[i]->n * 4);
  }
  out->claim = cfg_text(m, "tier", text, sizeof text) ? 1 : 2;
  say(out->reason, sizeof out->reason, out->claim == 1 ? "toys are slow here" : "");
  host->cfg_i64(host->self, m->cfg, "group", &out->k_multiple);
  int64_t no_fuse = 0;
  host->cfg_i64(host->self, m->cfg, "no_fuse", &no_fuse);
  out->fuse_parts = no_fuse ? 0 : (int32_t)l->n_parts;
  out->n_regimes = fault_is(m, "regimes") ? 5 : 1;
  out->regime[0].m_hi = l->m_max;
  out->regime[0].workspace_bytes = 128;
  say(out->regime[0].kernel, sizeof out->regime[0].kernel, "toy_loop");
  if (!fault_is(m, "no scheme")) say(out->scheme, sizeof out->scheme, online(l) ? "online" : "i8");
  if (fault_is(m, "bytes")) out->weight_bytes -= 1;
  return QE_OK;
}

static qe_status tensors(const qe_model *m, const qe_layer *l, void (*want)(void *, const qe_want *), void *arg, qe_error *e) {
  (void)m, (void)e;
  char name[256];
  for (uint32_t i = 0; i < l->n_parts; ++i) {
    const qe_part *p = l->parts[i];
    qe_want w = {sizeof w, 1, 2, {name, 0}, online(l) ? 1ull << QE_F32 : 1ull << QE_I8, {p->n, l->k, -1, -1}};
    snprintf(name, sizeof name, "%.*s.%s", (int)p->name.n, p->name.p, online(l) ? "weight" : "codes");
    w.name.n = strlen(name);
    want(arg, &w);
    if (online(l)) continue;
    qe_want s = {sizeof s, 1, 1, {name, 0}, 1ull << QE_F32, {p->n, -1, -1, -1}};
    snprintf(name, sizeof name, "%.*s.scale", (int)p->name.n, p->name.p);
    s.name.n = strlen(name);
    want(arg, &s);
  }
  return QE_OK;
}

static void destroy(qe_linear x) {
  host->free(host->self, NULL, x->codes);
  free(x);
}

static qe_status load(qe_dev dev, const qe_model *m, const qe_layer *l, qe_stream stream, qe_linear *out, qe_error *e) {
  (void)dev, (void)stream;
  char name[256];
  int64_t n = 0;
  for (uint32_t i = 0; i < l->n_parts; ++i) n += l->parts[i]->n;
  if (fault_is(m, "value") && l->parts[0]->role == QE_ROLE_DOWN) {
    snprintf(e->subject, sizeof e->subject, "%.*s.scale", (int)l->parts[0]->name.n, l->parts[0]->name.p);
    say(e->message, sizeof e->message, "has 3 NaN values (first at row 512)");
    say(e->hint, sizeof e->hint, "the file is damaged");
    return QE_E_CHECKPOINT;
  }
  if (fault_is(m, "coded")) {
    say(e->message, sizeof e->message, "E204 everything is upside down");
    return QE_E_CHECKPOINT;
  }
  if (fault_is(m, "silent")) return QE_E_INTERNAL;
  if (fault_is(m, "no result")) return QE_OK;
  void *temp = NULL;
  if (fault_is(m, "temp") || fault_is(m, "leak")) host->alloc(host->self, NULL, 4096, 64, QE_MEM_LOAD_TEMP, &temp);
  if (temp && !fault_is(m, "leak")) host->free(host->self, NULL, temp);

  qe_linear x = calloc(1, sizeof *x);
  void *memory;
  const qe_status s = host->alloc(host->self, NULL, (uint64_t)(n * l->k + n * 4), 64, QE_MEM_WEIGHT, &memory);
  if (s != QE_OK) {
    free(x);
    return s;
  }
  x->n = n, x->k = l->k;
  x->codes = memory;
  cfg_text(m, "fault", x->fault, sizeof x->fault);
  int64_t row = 0;
  for (uint32_t i = 0; i < l->n_parts; ++i) {
    const qe_part *p = l->parts[i];
    qe_tensor t, sc;
    if (online(l)) {
      if (fetch(m, p, "weight", &t, name)) goto gone;
      const float *w = t.data;
      for (int64_t r = 0; r < p->n; ++r) {
        float most = 0;
        for (int64_t k = 0; k < l->k; ++k) most = fmaxf(most, fabsf(w[r * l->k + k]));
        const float scale = most > 0 ? most / 127 : 1;
        memcpy(x->codes + n * l->k + (row + r) * 4, &scale, 4);
        for (int64_t k = 0; k < l->k; ++k) x->codes[(row + r) * l->k + k] = (int8_t)lrintf(w[r * l->k + k] / scale);
      }
    } else {
      if (fetch(m, p, "codes", &t, name) || fetch(m, p, "scale", &sc, name)) goto gone;
      if ((uintptr_t)sc.data % 4) abort(); /* the host promises alignment */
      memcpy(x->codes + row * l->k, t.data, (size_t)(p->n * l->k));
      memcpy(x->codes + n * l->k + row * 4, sc.data, (size_t)p->n * 4);
    }
    row += p->n;
  }
  *out = x;
  return QE_OK;
gone:
  say(e->subject, sizeof e->subject, name);
  say(e->message, sizeof e->message, "is gone");
  destroy(x);
  return QE_E_CHECKPOINT;
}

static float scale_of(qe_linear x, int64_t row) {
  float s;
  memcpy(&s, x->codes + x->n * x->k + row * 4, 4);
  return s;
}

struct job {
  qe_linear x;
  const qe_run *r;
};

static void one_token(void *arg, int64_t t) {
  const struct job *j = arg;
  const qe_linear x = j->x;
  const float *in = (const float *)j->r->in.data + t * j->r->in.stride[0];
  float *out = (float *)j->r->out.data + t * j->r->out.stride[0];
  if (strcmp(x->fault, "crash in a worker") == 0 && t == 7) abort();
  for (int64_t n = 0; n < x->n; ++n) {
    float sum = 0;
    for (int64_t k = 0; k < x->k; ++k) sum += in[k] * (float)x->codes[n * x->k + k];
    out[n] = sum * scale_of(x, n);
  }
}

static qe_status run(qe_linear x, const qe_run *r, qe_error *e) {
  if (strcmp(x->fault, "crash") == 0) abort();
  if (r->workspace_bytes != 128 || !r->workspace) {
    say(e->message, sizeof e->message, "no workspace");
    return QE_E_INTERNAL;
  }
  if (strcmp(x->fault, "run") == 0) {
    say(e->subject, sizeof e->subject, "in");
    say(e->message, sizeof e->message, "is not to my taste");
    return QE_E_ARGUMENT;
  }
  memset(r->workspace, 0x5a, 128);
  struct job j = {x, r};
  host->parallel_for(host->self, r->m, one_token, &j);
  return QE_OK;
}

static qe_status dequant(qe_linear x, int64_t a, int64_t b, qe_tensor *out, qe_stream stream, qe_error *e) {
  (void)stream, (void)e;
  for (int64_t n = a; n < b; ++n)
    for (int64_t k = 0; k < x->k; ++k) ((float *)out->data)[(n - a) * out->stride[0] + k] = scale_of(x, n) * (float)x->codes[n * x->k + k];
  return QE_OK;
}

static qe_status rows(qe_linear x, const int32_t *ids, int64_t n, qe_tensor *out, qe_stream stream, qe_error *e) {
  qe_tensor row = *out;
  for (int64_t i = 0; i < n; ++i) {
    row.data = (float *)out->data + i * out->stride[0];
    dequant(x, ids[i], ids[i] + 1, &row, stream, e);
  }
  return QE_OK;
}

static uint64_t bytes(qe_linear x, int32_t mem) {
  if (mem != QE_MEM_WEIGHT) return 0;
  return (uint64_t)(x->n * x->k + x->n * 4) - (strcmp(x->fault, "bytes") == 0);
}

static const qe_weight_v1 weight = {sizeof weight, 0, plan, tensors, load, NULL, run, dequant, rows, bytes, destroy};

static qe_status init(const qe_host *h, qe_error *e) {
  (void)e;
  host = h;
#ifdef TOY_INIT_FAILS
  say(e->message, sizeof e->message, "no toys today");
  return QE_E_INTERNAL;
#else
  return QE_OK;
#endif
}

static const void *extension(const char *id) { return strcmp(id, "qe.weight/1") == 0 ? &weight : NULL; }

static const qe_capability cpu_native = {sizeof cpu_native, QE_CPU, 0, 0, 1}, cpu_slow = {sizeof cpu_slow, QE_CPU, 0, 0, 2};
static const qe_capability *const cpu_rows[] = {&cpu_native, &cpu_slow};
static const qe_method i8 = {sizeof i8, 2, "i8", TOY_METHOD, "int8 with a scale per row", cpu_rows},
                       online_method = {sizeof online_method, 1, "online", "none", "the same, made at load", cpu_rows};
static const qe_method *const methods[] = {&i8, &online_method};
static const qe_alias old_name = {sizeof old_name, 2, "plaything", TOY_METHOD, TOY_NAME, "0.9.0", "2.0.0", "or " TOY_NAME ":i8"},
                      synonym = {sizeof synonym, 2, "auto_toy", TOY_METHOD, TOY_NAME, "", "", ""},
                      split_none = {sizeof split_none, 2, "plaything", "none", TOY_NAME ":online", "", "", ""},
                      head = {sizeof head, 4, "quantize-lm-head=toy8", "", TOY_NAME ":online", "", "", ""},
                      evil = {sizeof evil, 1, "--be-nice", "", "--trust any", "", "", ""};
static const qe_alias *const aliases[] = {&old_name, &synonym, &split_none, &head, &evil};
static const char *const options[] = {"speed", "colour"};

static const qe_plugin plugin = {
    TOY_SIZE, TOY_MAGIC, TOY_MAJOR, TOY_BUILT, TOY_NEEDS, 2, 5, 2, TOY_ID, TOY_NAME, TOY_VERSION, "Toymakers", "Apache-2.0", "", "", "",
    methods, aliases, options, init, NULL, detect, NULL, NULL, extension};

#ifdef TOY_NO_EXPORT
__attribute__((visibility("hidden")))
#else
__attribute__((visibility("default")))
#endif
const qe_plugin *qe_plugin_query(uint32_t major, uint32_t minor) {
  (void)minor;
#ifdef TOY_NOT_FOR_ME
  (void)major;
  return NULL;
#else
  (void)major;
  return &plugin;
#endif
}
