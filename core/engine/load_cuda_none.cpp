// A build without CUDA: list_gpus() is empty there, so nobody comes here.
#include "core/base/error.hpp"
#include "core/engine/load.hpp"

namespace qengine {

LoadedDevice load_on_gpu(Engine::Impl&, const GpuInfo& gpu, const std::function<void(double)>&) {
  throw Error("E402", "no usable GPU: this build has no GPU support").from(gpu.label()).hint("--device cpu works with every shipped plugin");
}

}  // namespace qengine
