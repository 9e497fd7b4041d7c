#include <qe/format_impl.hpp>

#include "../formats.hpp"

QE_FORMAT(qengine::awq::W4Offset)
