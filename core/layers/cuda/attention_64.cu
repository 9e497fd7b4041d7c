// Heads of 64 dimensions.
#include "core/layers/cuda/attention_instances.cuh"

namespace qengine::cuda {
QE_ATTENTION(64)
}  // namespace qengine::cuda
