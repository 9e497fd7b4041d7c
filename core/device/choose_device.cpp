#include <charconv>

#include "core/base/error.hpp"
#include "core/device/gpu.hpp"

namespace qengine {

const GpuInfo* choose_device(const std::string& text, const GpuList& list) {
  if (text == "cpu") return nullptr;
  if (text == "auto") return list.gpus.empty() ? nullptr : &list.gpus.front();
  int ordinal = 0;
  const char *begin = text.data() + std::min<std::size_t>(text.size(), 5), *end = text.data() + text.size();
  const bool numbered = text.starts_with("cuda:") && begin != end && std::from_chars(begin, end, ordinal).ptr == end && ordinal >= 0;
  if (!numbered && text != "cuda") throw Error("E107", "--device is " + text).hint("allowed: auto, cpu, cuda, cuda:N");
  if (list.gpus.empty()) throw Error("E402", "no usable GPU: " + list.why).hint("--device cpu works with every shipped plugin");
  for (const GpuInfo& g : list.gpus)
    if (g.device.ordinal == ordinal) return &g;
  throw Error("E402", "no usable GPU: " + text + " was asked for, and there " + (list.gpus.size() == 1 ? "is only cuda:0" : "are cuda:0 to " + list.gpus.back().label()))
      .hint("qengine doctor lists what is there");
}

}  // namespace qengine
