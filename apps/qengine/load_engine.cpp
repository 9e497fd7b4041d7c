// Loading an engine with progress on the terminal.
#include "apps/qengine/model_setup.hpp"

namespace qengine {

std::unique_ptr<Engine> load_engine(const Invocation& in, EngineOptions options) {
  Progress progress(in, "loading", /*lines=*/false);
  options.progress = [&](double fraction, const std::string& what) { progress.at(fraction, what); };
  return Engine::load(options);
}

}  // namespace qengine
