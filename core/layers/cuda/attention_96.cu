// Heads of 96 dimensions.
#include "core/layers/cuda/attention_instances.cuh"

namespace qengine::cuda {
QE_ATTENTION(96)
}  // namespace qengine::cuda
