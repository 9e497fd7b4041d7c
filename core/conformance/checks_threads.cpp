// 7xx: several of everything at once: handles, devices, copies of the library.
#include <atomic>
#include <cstdlib>
#include <thread>

#include "core/conformance/subject.hpp"

namespace qengine::conformance {
namespace {

void two_handles(const Subject& s, Notes&) {
  auto session = weight_session(s);
  std::vector<std::unique_ptr<LayerArgs>> args;
  std::vector<std::unique_ptr<Packed>> packed;
  std::vector<std::vector<float>> in, want;
  for (const Unit& u : session->units()) {
    if (packed.size() == 6) break;
    args.push_back(std::make_unique<LayerArgs>(*u.of, u.parts, u.k));
    packed.push_back(std::make_unique<Packed>(session->load(*args.back())));
  }
  if (packed.size() == 1) {
    const Unit& u = session->units().front();
    args.push_back(std::make_unique<LayerArgs>(*u.of, u.parts, u.k));
    packed.push_back(std::make_unique<Packed>(session->load(*args.back())));
  }
  const std::int64_t m = 5;
  for (std::size_t i = 0; i < packed.size(); ++i) {
    in.push_back(activations(m, packed[i]->k, static_cast<std::uint32_t>(i)));
    want.push_back(packed[i]->run(in.back(), m));
  }
  std::atomic<bool> go{false}, wrong{false};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < packed.size(); ++i)
    threads.emplace_back([&, i] {
      while (!go) std::this_thread::yield();
      for (int r = 0; r < 200 && !wrong; ++r)
        if (!same_bits(packed[i]->run(in[i], m), want[i])) wrong = true;
    });
  go = true;
  for (std::thread& t : threads) t.join();
  if (wrong) fail("%zu handles run at once, each on a thread of its own, give other numbers than alone", packed.size());
}

void two_devices(const Subject& s, Notes&) {
  auto session = weight_session(s);
  const Unit& u = session->units().front();
  const qe_plugin& p = *session->plugin;
  LayerArgs l(*u.of, u.parts, u.k);
  const auto x = activations(3, u.k, 2);
  Packed first = session->load(l);
  const auto want = first.run(x, 3);
  qe_dev other = nullptr;
  if (p.dev_open) session->checked("dev_open", "", [&](qe_error* e) { return p.dev_open(&session->device, &other, e); });
  qe_linear h = nullptr;
  u.of->tensors.loading = true;
  session->checked("load", l.name(), [&](qe_error* e) { return session->weight->load(other, &l.model, &l.layer, nullptr, &h, e); });
  u.of->tensors.loading = false;
  {
    Packed second(*session, h, l.n(), l.k(), first.plan);
    if (!same_bits(second.run(x, 3), want)) fail("a layer loaded on a second instance of the device gives other numbers");
  }
  if (p.dev_close) session->call("dev_close", "", [&] { p.dev_close(other); });
  if (!same_bits(first.run(x, 3), want)) fail("closing a second instance of the device changes what the first one computes");
  Packed third = session->load(l);
  if (!same_bits(third.run(x, 3), want)) fail("after a second instance of the device was closed, the first one loads other weights");
}

void two_copies(const Subject& s, Notes&) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "qe-conform-XXXXXX").string();
  if (!mkdtemp(folder.data())) fail("no temporary folder can be made");
  const fs::path copy = fs::path(folder) / s.library.filename();
  fs::copy_file(s.library, copy);
  struct Gone {
    std::string folder;
    ~Gone() {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
    }
  } gone{folder};
  auto a = weight_session(s);
  const Unit& u = a->units().front();
  LayerArgs la(*u.of, u.parts, u.k);
  const auto x = activations(3, u.k, 2);
  Packed first = a->load(la);
  const auto want = first.run(x, 3);
  const std::size_t held = a->host.blocks();
  Session b(s, copy);
  if (b.plugin == a->plugin) fail("a copy of the library has the same descriptor: it is not a library of its own");
  const Unit& v = b.units().front();
  LayerArgs lb(*v.of, v.parts, v.k);
  {
    Packed second = b.load(lb);
    if (a->host.blocks() != held || b.host.blocks() == 0) fail("a copy of the library takes its memory from the host of the first");
    if (!same_bits(second.run(x, 3), want)) fail("a copy of the library gives other numbers");
    Packed again = a->load(la);
    if (a->host.blocks() <= held) fail("after a copy of the library was started, the first one takes its memory from the other's host");
  }
  if (!same_bits(first.run(x, 3), want)) fail("after a copy of the library was started, the first one gives other numbers");
}

}  // namespace

const std::vector<Check> thread_checks{
    {"QEP-701", "threads", "handles run at once as they run alone", two_handles},
    {"QEP-702", "threads", "two instances on one device do not know of each other", two_devices},
    {"QEP-703", "threads", "two versions in one process do not know of each other", two_copies},
};

}  // namespace qengine::conformance
