#include <qe/format_impl.hpp>

#include "../formats.hpp"

QE_FORMAT(qengine::gptq::W4F32)
