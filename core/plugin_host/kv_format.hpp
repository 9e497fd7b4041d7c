// KvFormat: how keys and values are stored, when that is a plugin's business (qe.kv/1).
//
// Core has a cache of its own for 16- and 32-bit values. Anything else is encoded by a plugin: it
// says how many bytes a block takes, stores rotated k and v by slot, and gathers blocks back; some
// also attend. Independent of the weights' plugins.
#pragma once

#include <qe/plugin.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/model/checkpoint.hpp"
#include "core/model/config.hpp"
#include "core/plugin_host/plugin_host.hpp"

namespace qengine {

class ThreadPool;

struct KvFormatOptions {
  std::string dtype = "auto";  // --kv-cache-dtype
  std::string plugin;          // --kv-plugin ID[:SCHEME]
  std::int32_t block_tokens = 16;
  qe_device device{};          // struct_size 0: this CPU
};

class KvFormat {
 public:
  // Who stores the cache. Null: core itself, as float32, float16 or bfloat16; `dtype` then says which
  // ("auto": the model's). Throws E103 for a name that no installed plugin offers, E304 when the
  // plugin cannot store this model. Warnings (W401) and the choice go to the log.
  static std::unique_ptr<KvFormat> make(const PluginHost& host, std::shared_ptr<const Checkpoint> checkpoint,
                                        const ModelConfig& config, const KvFormatOptions& options, ThreadPool& pool);
  ~KvFormat();
  KvFormat(const KvFormat&) = delete;
  KvFormat& operator=(const KvFormat&) = delete;

  const Plugin& plugin() const;
  const std::string& scheme() const;  // "e4m3"
  const std::string& why() const;     // one line
  const qe_kv_plan& plan() const;     // bytes of a block of one layer
  const char* scale_source() const;   // "none", "default_one", "checkpoint"
  std::uint64_t bytes_per_token() const;  // over all layers

  // Scales of one layer, [kv heads] each; 1 where the plugin has none. Throws Error when the plugin fails.
  void scales(int layer, std::vector<float>& k, std::vector<float>& v) const;

  // All [step]; struct_size is filled in here. Throw Error when the plugin fails.
  void store(qe_kv_args& args) const;
  void gather(qe_kv_args& args) const;
  bool has_decode() const;
  void decode(qe_kv_args& args) const;
  bool has_prefill() const;
  void prefill(qe_kv_args& args) const;

  struct Impl;

 private:
  explicit KvFormat(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace qengine
