#include <qe/format_impl.hpp>

#include "format.hpp"

QE_FORMAT(bf16_ref::BF16)
