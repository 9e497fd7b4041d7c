// --load-format dummy, --shape and --format: which model is made up, and in which format.
#pragma once

#include <memory>

#include "apps/qengine/command.hpp"
#include "core/engine/dummy.hpp"

namespace qengine {

// --shape and --format, for the commands that can do without the files of a model.
const SettingGroup& dummy_settings();

// Null unless --load-format is dummy. Sets what in `format` makes the format from 16-bit weights.
// Throws Error E101 for flags that do not go together and for unknown names.
std::shared_ptr<const DummyModel> dummy_model(const Invocation& in, FormatOptions& format);

}  // namespace qengine
