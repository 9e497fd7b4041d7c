// Backend: one loaded model under a name; Router: which one a new request goes to.
//
// A request holds its backend from its first step to its last, so that a change moves new requests only: the KV cache that one
// set of weights made means nothing to another. A backend that takes no more requests is "leaving" until the last of them is
// done, and then destroyed with everything that it holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/engine/engine.hpp"

namespace qengine::server {

// How to load one.
struct BackendSpec {
  std::string name;
  std::string key;  // everything that decides what is loaded: equal keys load the same
  EngineOptions options;
  // Sampling of a request that says nothing: [sampling], the checkpoint's generation_config.json, neutral.
  std::function<SamplingParams(const Checkpoint&)> sampling;
};

struct Backend {
  // Throws Error as Engine::load does.
  Backend(BackendSpec spec, std::uint64_t number);
  // Of a model that is loaded already.
  Backend(BackendSpec spec, std::uint64_t number, std::unique_ptr<Engine> engine);

  const BackendSpec spec;
  const std::uint64_t number;  // 1, 2, ... in the order of loading, over the life of the process
  const std::unique_ptr<Engine> engine;
  SamplingParams sampling;
  std::string plugin, scheme, kv_dtype;  // of the decoder layers and the cache
  std::string root;                      // the model's path
  std::string model_sha256;              // of its config and the names, types and shapes of its tensors
  // Requests that ended with an error of the backend: non-finite logits, a plugin, the device.
  std::atomic<std::int64_t> faults{0};

  Json json() const;  // name, plugin, scheme, kv_cache_dtype, root
};

// Thread-safe.
class Router {
 public:
  explicit Router(std::shared_ptr<Backend> first);

  // What new requests go to. Null: nothing is loaded, a swap has emptied the server.
  std::shared_ptr<Backend> stable() const;
  // New requests go to `next` (may be null) from here on. What took them before is leaving; null when there was nothing.
  Backend* set_stable(std::shared_ptr<Backend> next);

  // The second backend, for a share of the requests; null: there is none. Set, the one before is leaving.
  std::shared_ptr<Backend> canary() const;
  Backend* set_canary(std::shared_ptr<Backend> next);
  // The canary becomes the stable one; what was it is leaving. Null: there was none.
  Backend* promote();

  // Waits until no request holds `leaving`, and destroys it. False, and nothing is destroyed, when give_up() came true before.
  bool retire(const Backend* leaving, const std::function<bool()>& give_up);
  // Takes a leaving backend back as stable; what is stable leaves.
  Backend* restore(const Backend* leaving);

  void clear();  // destroys all. REQUIRES: nobody else holds one

  std::vector<std::shared_ptr<Backend>> all() const;  // stable, canary, then those that leave
  std::int64_t holders(const Backend* leaving) const;  // requests that are still on it, about

  // Counts of everything that ever ran here; levels of what runs now.
  EngineStats totals() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Backend> stable_, canary_;
  std::vector<std::shared_ptr<Backend>> leaving_;
  EngineStats gone_;  // counts of what was destroyed
};

}  // namespace qengine::server
