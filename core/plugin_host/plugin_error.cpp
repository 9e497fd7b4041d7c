#include "core/plugin_host/plugin_error.hpp"

#include <cctype>
#include <cstring>

#include "core/plugin_host/host_table.hpp"

namespace qengine {
namespace {

template <std::size_t N>
std::string text(const char (&field)[N]) {
  return plugin_text(std::string_view(field, strnlen(field, N)), N);
}

// "E206 x has 3 NaN values" -> "E206", and cuts it off. "" when there is none.
std::string take_code(std::string& message) {
  if (message.size() < 5 || message[0] != 'E' || message[4] != ' ') return {};
  for (int i = 1; i <= 3; ++i)
    if (!std::isdigit(static_cast<unsigned char>(message[i]))) return {};
  std::string code = message.substr(0, 4);
  message.erase(0, 5);
  return code;
}

std::string default_code(qe_status status, bool tensor_there, std::string_view call) {
  switch (status) {
    case QE_E_UNSUPPORTED: return "E304";
    case QE_E_CHECKPOINT: return !tensor_there ? "E202" : call == "load" ? "E206" : "E204";
    case QE_E_OOM: return "E403";
    case QE_E_DEVICE: return "E402";
    case QE_E_CANCELLED: return "E000";
    default: return "E309";
  }
}

}  // namespace

Error plugin_error(qe_status status, const qe_error& error, const PluginCall& call) {
  const Plugin& p = *call.plugin;
  const std::string subject = text(error.subject), hint = text(error.hint);
  std::string message = text(error.message);
  const Tensor* tensor = call.checkpoint && !subject.empty() ? call.checkpoint->find(subject) : nullptr;
  std::string code = take_code(message);
  if (code.empty()) code = default_code(status, tensor != nullptr || subject.empty(), call.call);

  std::string first = message;
  if (!subject.empty() && first.find(subject) == std::string::npos) first = subject + (first.empty() ? "" : " ") + first;
  if (status == QE_E_CANCELLED && first.empty()) first = "loading was cancelled";
  if (status == QE_E_OOM && first.empty()) first = "out of memory";
  const std::string at = (call.layer.empty() ? "" : " of " + call.layer);
  if (first.empty()) first = p.name + " " + p.version + " failed in " + call.call + at + " without saying why (status " + std::to_string(status) + ")";
  else if (code == "E309") first = p.name + " " + p.version + " failed in " + call.call + at + ": " + first;

  Error e(code, first);
  if (tensor && static_cast<std::size_t>(tensor->file) < call.checkpoint->files().size()) {
    std::string in = call.checkpoint->files()[tensor->file].path.filename().string();
    if (tensor->file_name != tensor->name) in += ", as " + tensor->file_name;
    e.in(in);
  }
  if (code != "E309") e.from(p.name + ", " + call.call + at);
  if (!hint.empty())
    e.hint(hint);
  else if (code == "E309")
    e.hint("report it to " + (p.vendor.empty() ? "its author" : p.vendor) + "; --plugin chooses another");
  return e;
}

}  // namespace qengine
