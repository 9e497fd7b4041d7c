// Runner: the forward pass of one model on one device. It touches the device and never decides:
// which tokens run, in which blocks, is the scheduler's.
//
// One call at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/base/error.hpp"
#include "core/engine/run_observer.hpp"
#include "core/kv/block_manager.hpp"

namespace qengine {

// Consecutive tokens of one sequence; every earlier position is in the cache.
struct RunSpan {
  std::span<const std::int32_t> tokens;
  std::int64_t first = 0;             // position of tokens[0]
  std::span<const BlockId> blocks;    // covers first + tokens.size() positions
};

class Runner {
 public:
  virtual ~Runner() = default;

  virtual std::int64_t max_rows() const = 0;        // tokens of one forward(), at most
  virtual std::int64_t max_logit_rows() const = 0;  // rows of one logits(), at most
  virtual std::int64_t vocab_size() const = 0;      // length of a row of logits

  // Runs the tokens through every layer and writes their keys and values. Rows are numbered through
  // the spans. Throws Error when a plugin fails.
  virtual void forward(std::span<const RunSpan> spans) = 0;

  // Logits of some rows of the last forward(), in host memory: out [rows, vocab_size].
  virtual void logits(std::span<const std::int32_t> rows, float* out) = 0;

  // The best of the ids below `limit` for some rows of the last forward(), and whether all logits of the
  // row are finite. False: this runner leaves that to whoever reads logits().
  struct Greedy {
    std::int32_t token = 0;  // lowest of equals
    bool finite = true;
  };
  virtual bool greedy(std::span<const std::int32_t> /*rows*/, std::int32_t /*limit*/, Greedy* /*out*/) { return false; }

  // Why one token's logits are not finite: runs it again and looks. "in layer 11 (float16, largest
  // activation 6.5e4)".
  virtual std::string diagnose(const RunSpan& token) = 0;

  // Shows the passes from here on to `observer` (borrowed; null: nobody). Throws Error E107 where the device cannot.
  virtual void observe(RunObserver* observer) {
    if (observer) throw Error("E107", "layers cannot be watched on this device").hint("--device cpu can");
  }

  virtual std::uint64_t kv_bytes() const = 0;
  virtual std::uint64_t workspace_bytes() const = 0;
};

}  // namespace qengine
