#include <qe/format_impl.hpp>

#include "../block_format.hpp"

QE_FORMAT(qe_gguf::BlockFormat<qe_gguf::Q4_1>)
