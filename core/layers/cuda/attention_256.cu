// Heads of 256 dimensions.
#include "core/layers/cuda/attention_instances.cuh"

namespace qengine::cuda {
QE_ATTENTION(256)
}  // namespace qengine::cuda
