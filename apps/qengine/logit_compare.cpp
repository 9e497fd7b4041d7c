#include "apps/qengine/logit_compare.hpp"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace qengine {
namespace {

// Rows of logits on their way from the reference's thread to ours.
class Rows {
 public:
  // False when the reader has given up.
  bool push(std::span<const float> row) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return rows_.size() < kMost || closed_; });
    if (closed_) return false;
    rows_.emplace_back(row.begin(), row.end());
    changed_.notify_all();
    return true;
  }
  // Empty when the writer ended early.
  std::vector<float> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !rows_.empty() || closed_; });
    if (rows_.empty()) return {};
    std::vector<float> row = std::move(rows_.front());
    rows_.pop_front();
    changed_.notify_all();
    return row;
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  static constexpr std::size_t kMost = 16;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<float>> rows_;
  bool closed_ = false;
};

struct Stopped {};  // thrown through all_logits to leave it

bool scored(const Window& w, std::int64_t position) { return position + 1 >= w.first && position + 1 < std::ssize(w.ids); }

}  // namespace

void compare_logits(Engine& base, Engine& model, const Window& w,
                    const std::function<void(std::int64_t, std::span<const float>, std::span<const float>)>& each) {
  Rows rows;
  std::exception_ptr failed;
  std::thread reference([&] {
    try {
      base.all_logits(w.ids, [&](std::int64_t position, std::span<const float> row) {
        if (scored(w, position) && !rows.push(row)) throw Stopped{};
      });
    } catch (const Stopped&) {
    } catch (...) {
      failed = std::current_exception();
    }
    rows.close();
  });
  std::exception_ptr ours;
  try {
    model.all_logits(w.ids, [&](std::int64_t position, std::span<const float> row) {
      if (!scored(w, position)) return;
      const std::vector<float> expected = rows.pop();
      if (expected.size() != row.size()) throw Stopped{};
      each(position, expected, row);
    });
  } catch (const Stopped&) {
  } catch (...) {
    ours = std::current_exception();
  }
  rows.close();
  reference.join();
  if (failed) std::rethrow_exception(failed);
  if (ours) std::rethrow_exception(ours);
}

}  // namespace qengine
