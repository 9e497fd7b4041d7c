/* toy_kv: a KV format in plain C11, for tests of the host. Values are stored as round(x * 8 / scale)
 * in int16. Scales come from layers.L.self_attn.k_scale / v_scale of the checkpoint, else 1. */
#include <qe/plugin.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const qe_host *host;

struct qe_kv_s {
  int64_t width, block_tokens, layers;
  float *scale; /* [layers][2] */
};

static bool scale_at(const qe_model *m, int32_t layer, const char *which, float *out) {
  char name[128];
  snprintf(name, sizeof name, "model.layers.%d.self_attn.%s_scale", (int)layer, which);
  qe_tensor t;
  if (!m->ckpt || host->tensor(host->self, m->ckpt, (qe_str){name, strlen(name)}, &t) != QE_OK || !t.data) return false;
  memcpy(out, t.data, 4);
  return true;
}

static int32_t detect(const qe_model *m, qe_reason why) {
  if (host->cfg_size(host->self, m->cfg, "kv_cache_scheme") < 0) {
    snprintf(why, sizeof(qe_reason), "no kv_cache_scheme");
    return 0;
  }
  snprintf(why, sizeof(qe_reason), "kv_cache_scheme in the checkpoint");
  return 900;
}

static qe_status plan(const qe_device *d, const qe_model *m, int32_t block_tokens, qe_kv_plan *out, qe_error *e) {
  (void)d, (void)e;
  qe_str method = {"", 0};
  host->cfg_str(host->self, m->cfg, "options.method", &method);
  if (m->head_dim > 256) {
    snprintf(out->reason, sizeof out->reason, "head_dim %d; supported: up to 256", m->head_dim);
    return QE_OK;
  }
  float s;
  int found = 0;
  for (int32_t l = 0; l < m->layers; ++l) found += scale_at(m, l, "k", &s) + scale_at(m, l, "v", &s);
  out->claim = 2;
  out->scale_kind = found ? QE_KV_SCALE_CHECKPOINT : QE_KV_SCALE_ONE;
  snprintf(out->reason, sizeof out->reason, "scheme %.*s", (int)method.n, method.p);
  out->block_bytes_k = out->block_bytes_v = (uint64_t)block_tokens * m->kv_heads * m->head_dim * 2;
  out->align = 64;
  return QE_OK;
}

static qe_status open_kv(qe_dev dev, const qe_model *m, int32_t block_tokens, qe_kv *out, qe_error *e) {
  (void)dev, (void)e;
  qe_kv kv = calloc(1, sizeof *kv);
  kv->width = (int64_t)m->kv_heads * m->head_dim;
  kv->block_tokens = block_tokens;
  kv->layers = m->layers;
  kv->scale = malloc(sizeof(float) * 2 * (size_t)m->layers);
  for (int32_t l = 0; l < m->layers; ++l) {
    if (!scale_at(m, l, "k", &kv->scale[2 * l])) kv->scale[2 * l] = 1;
    if (!scale_at(m, l, "v", &kv->scale[2 * l + 1])) kv->scale[2 * l + 1] = 1;
  }
  *out = kv;
  return QE_OK;
}

static int16_t *place(const qe_kv kv, void *pool, int64_t slot) { return (int16_t *)pool + slot * kv->width; }

static qe_status store(qe_kv kv, const qe_kv_args *a, qe_error *e) {
  if (a->layer >= kv->layers) {
    snprintf(e->message, sizeof e->message, "layer %d of %d", a->layer, (int)kv->layers);
    return QE_E_ARGUMENT;
  }
  for (int32_t t = 0; t < a->n_tokens; ++t) {
    if (a->slot[t] < 0) continue;
    for (int side = 0; side < 2; ++side) {
      const qe_tensor *x = side ? &a->v : &a->k;
      int16_t *to = place(kv, side ? a->pool_v : a->pool_k, a->slot[t]);
      for (int64_t i = 0; i < kv->width; ++i) to[i] = (int16_t)lrintf(((float *)x->data)[t * x->stride[0] + i] * 8 / kv->scale[2 * a->layer + side]);
    }
  }
  return QE_OK;
}

static qe_status gather(qe_kv kv, const qe_kv_args *a, qe_error *e) {
  (void)e;
  int64_t row = 0;
  for (int32_t s = 0; s < a->n_seqs; ++s)
    for (int32_t t = 0; t < a->seq_len[s]; ++t, ++row) {
      const int64_t slot = a->block_table[s * a->max_blocks + t / kv->block_tokens] * kv->block_tokens + t % kv->block_tokens;
      for (int side = 0; side < 2; ++side) {
        const qe_tensor *x = side ? &a->v : &a->k;
        const int16_t *from = place(kv, side ? a->pool_v : a->pool_k, slot);
        for (int64_t i = 0; i < kv->width; ++i) ((float *)x->data)[row * x->stride[0] + i] = (float)from[i] * kv->scale[2 * a->layer + side] / 8;
      }
    }
  return QE_OK;
}

static void close_kv(qe_kv kv) {
  free(kv->scale);
  free(kv);
}

static const qe_kv_v1 table = {sizeof table, 0, plan, open_kv, store, gather, NULL, NULL, close_kv};

static qe_status init(const qe_host *h, qe_error *e) {
  (void)e;
  host = h;
  return QE_OK;
}

static const void *extension(const char *id) { return strcmp(id, "qe.kv/1") == 0 ? &table : NULL; }

static const qe_capability cpu = {sizeof cpu, QE_CPU, 0, 0, 1};
static const qe_capability *const rows[] = {&cpu};
static const qe_method i16 = {sizeof i16, 1, "i16", "", "int16 eighths", rows};
static const qe_method *const methods[] = {&i16};
static const qe_alias value = {sizeof value, 4, "kv-cache-dtype=toy16", "", "toy_kv:i16", "", "", ""};
static const qe_alias *const aliases[] = {&value};
static const qe_plugin plugin = {sizeof plugin, QE_MAGIC, QE_ABI_MAJOR, QE_ABI_MINOR, QE_ABI_MINOR, 1, 1, 0, "test.toy_kv", "toy_kv", "1.2.3", "Toymakers", "Apache-2.0",
                                 "", "", "", methods, aliases, NULL, init, NULL, detect, NULL, NULL, extension};

__attribute__((visibility("default"))) const qe_plugin *qe_plugin_query(uint32_t major, uint32_t minor) {
  (void)minor;
  return major == QE_ABI_MAJOR ? &plugin : NULL;
}
