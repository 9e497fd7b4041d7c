// Memory read bandwidth of this machine: the ceiling of decode speed, measured where it is used.
#pragma once

namespace qengine {

// Bytes a second that `threads` threads read together from their own 256 MiB each; the best of a few
// rounds. Takes under a second and gives its memory back.
double read_bandwidth(int threads);

}  // namespace qengine
