// A plugin's shared library: opened, checked, hashed, loaded, asked for its descriptor. Never unloaded.
//
// What was hashed is what is loaded: the library is opened once, hashed through that descriptor and
// loaded by its /proc/self/fd name, and the descriptor stays open as long as the process, so that its
// number cannot come to mean another file.
#pragma once

#include <qe/plugin.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "core/plugin_host/manifest.hpp"

namespace qengine {

class Descriptor {  // an open file
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  int keep() { return std::exchange(fd_, -1); }  // stays open for good

 private:
  int fd_;
};

// Opens a plugin file for reading; it must be a regular file. Throws Error E307.
Descriptor open_plugin_file(const std::filesystem::path& file);

// Throws Error E305 when somebody else could put files into this folder or swap it: it and all its
// parents belong to root or us, and neither other users nor a group that is not ours can write to
// them (a sticky folder such as /tmp passes).
void check_place(const std::filesystem::path& folder, const Descriptor& file);

// Loads the open library and checks its descriptor against the manifest. Throws Error E301, E306, E307
// or E309. `file` is for messages.
std::unique_ptr<Plugin> load_library(Descriptor fd, const std::filesystem::path& file, const std::string& sha256, const Manifest& manifest);

}  // namespace qengine
