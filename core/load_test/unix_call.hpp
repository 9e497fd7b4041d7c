// One HTTP request to a server that listens on a Unix socket, waited for.
#pragma once

#include <string>
#include <utility>

namespace qengine {

// {status, body}. `body` "" sends none. Throws Error E505 when the server cannot be reached or says nothing for `timeout_s`.
std::pair<int, std::string> unix_call(const std::string& socket, const std::string& method, const std::string& path, const std::string& body, int timeout_s);

}  // namespace qengine
