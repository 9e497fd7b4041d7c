// JSON as an answer's body. Bytes that are no UTF-8 become U+FFFD.
#pragma once

#include "core/model/checkpoint.hpp"  // Json
#include "core/server/http.hpp"

namespace qengine::server {

inline std::string dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

inline http::Response json_reply(const Json& j, int status = 200) { return {status, {{"Content-Type", "application/json"}}, dump(j)}; }

}  // namespace qengine::server
