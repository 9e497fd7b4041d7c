// Heads of 128 dimensions.
#include "core/layers/cuda/attention_instances.cuh"

namespace qengine::cuda {
QE_ATTENTION(128)
}  // namespace qengine::cuda
