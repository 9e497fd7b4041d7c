// Heads of 32 dimensions.
#include "core/layers/cuda/attention_instances.cuh"

namespace qengine::cuda {
QE_ATTENTION(32)
}  // namespace qengine::cuda
