// The threads that prepare requests: JSON, template, tokenizer, grammar. Inside Service only.
#pragma once

#include <boost/asio/thread_pool.hpp>

#include "core/server/service.hpp"

namespace qengine::server {

struct Service::Workers {
  boost::asio::thread_pool pool{2};
};

}  // namespace qengine::server
