#include <qe/format_impl.hpp>

#include "../block_format.hpp"

QE_FORMAT(qe_gguf::F32)
