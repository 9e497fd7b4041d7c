// ChatTemplate: messages -> prompt text, by the model's own Jinja template.
//
// Templates come with untrusted files: rendering is bounded in output (1 MiB), steps and recursion, and
// touches nothing outside its inputs. Constructs: formats.md 2.10.
//
// Thread-safe after construction.
#pragma once

#include <memory>
#include <string>

#include "core/model/checkpoint.hpp"  // Json

namespace qengine {

class ChatTemplate {
 public:
  // Throws Error E504 with line and column when the template does not parse.
  explicit ChatTemplate(std::string source, std::string bos_token = {}, std::string eos_token = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // `variables` becomes the template's globals: messages (required), tools, documents,
  // add_generation_prompt, and any extra keys (enable_thinking). Throws Error E504 when the template
  // raises an exception, uses something undefined wrongly, or exceeds a bound.
  std::string render(const Json& variables) const;

 private:
  struct Program;
  std::unique_ptr<Program> program_;
};

}  // namespace qengine
