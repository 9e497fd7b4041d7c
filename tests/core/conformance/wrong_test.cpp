// Each deliberately wrong plugin (tests/wrong_plugins) fails the check that is meant for it, and no other.
#include <gtest/gtest.h>

#include "core/conformance/kit.hpp"
#include "tests/support/paths.hpp"

namespace qengine::test {
namespace {

using namespace conformance;

struct Wrong {
  const char* file;
  const char* check;  // "": it is right
};
void PrintTo(const Wrong& w, std::ostream* out) { *out << w.file; }

class WrongPlugin : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongPlugin, FailsItsCheckAndNoOther) {
  Subject subject;
  subject.library = binary_dir() / "tests/wrong_plugins" / (std::string(GetParam().file) + ".so");
  subject.quick = true;
  subject.builtin_plugins = binary_dir() / "bin/plugins";
  const Report report = run_kit(subject, {});
  std::string failed, text;
  for (const Outcome& o : report.outcomes)
    if (o.verdict == Verdict::kFailed) {
      failed += (failed.empty() ? "" : " ") + o.id;
      text += o.id + ": " + o.why + "\n";
      EXPECT_FALSE(o.why.empty()) << o.id;
    }
  EXPECT_EQ(failed, GetParam().check) << text;
  EXPECT_LT(report.seconds, 120);
}

INSTANTIATE_TEST_SUITE_P(, WrongPlugin, ::testing::Values(
    Wrong{"none", ""}, Wrong{"kv_none", ""},
    // binary
    Wrong{"exports_more", "QEP-101"}, Wrong{"needs_cudart", "QEP-102"}, Wrong{"unique_symbol", "QEP-103"}, Wrong{"greets", "QEP-105"},
    Wrong{"another_descriptor_each_time", "QEP-106"}, Wrong{"answers_to_any_major", "QEP-106"},
    // descriptor
    Wrong{"wrong_struct_size", "QEP-201"}, Wrong{"no_build", "QEP-202"}, Wrong{"another_version", "QEP-203"}, Wrong{"alias_to_nowhere", "QEP-204"},
    Wrong{"starts_once", "QEP-205"},
    // planning
    Wrong{"detect_says_nothing", "QEP-301"}, Wrong{"impure_plan", "QEP-302"}, Wrong{"no_reason", "QEP-303"}, Wrong{"claims_any_GPU", "QEP-304"},
    Wrong{"regimes_end_early", "QEP-305"}, Wrong{"bytes_wrap", "QEP-306"}, Wrong{"guesses_without_files", "QEP-307"}, Wrong{"insists_on_sizes", "QEP-308"},
    // loading
    Wrong{"wrong_bytes_in_plan", "QEP-401"}, Wrong{"larger_peak", "QEP-402"}, Wrong{"writes_behind_its_memory", "QEP-403"},
    Wrong{"reads_what_it_did_not_ask_for", "QEP-404"}, Wrong{"names_no_tensor", "QEP-405"}, Wrong{"any_shape", "QEP-406"}, Wrong{"NaN_goes_in", "QEP-407"},
    Wrong{"never_cancelled", "QEP-408"}, Wrong{"keeps_what_failed", "QEP-409"}, Wrong{"leak", "QEP-410"}, Wrong{"heap_leak", "QEP-410"},
    Wrong{"remembers_the_last_plan", "QEP-411"},
    // numerics
    Wrong{"off_by_one_group", "QEP-501"}, Wrong{"wrong_for_seven_tokens", "QEP-503"}, Wrong{"crashes_on_long_prompts", "QEP-503"},
    Wrong{"wrong_for_odd_sizes", "QEP-504"}, Wrong{"every_rank_loads_the_first_rows", "QEP-505"}, Wrong{"fuses_in_another_order", "QEP-506"},
    Wrong{"other_bits_each_time", "QEP-507"}, Wrong{"depends_on_its_company", "QEP-507"}, Wrong{"writes_without_tokens", "QEP-508"},
    Wrong{"writes_between_rows", "QEP-508"}, Wrong{"rows_in_order", "QEP-509"}, Wrong{"dequant_from_the_first_row", "QEP-510"},
    Wrong{"reads_the_workspace_first", "QEP-511"}, Wrong{"exception_crosses", "QEP-512"}, Wrong{"allocates_in_run", "QEP-513"},
    Wrong{"asks_the_host_for_memory_in_run", "QEP-513"}, Wrong{"locks_in_run", "QEP-513"}, Wrong{"talks_in_run", "QEP-513"},
    // threads
    Wrong{"one_scratch_for_all", "QEP-701"}, Wrong{"closing_one_closes_all", "QEP-702"}, Wrong{"host_shared_between_copies", "QEP-703"},
    // KV cache
    Wrong{"odd_alignment", "QEP-801"}, Wrong{"kv_without_a_reason", "QEP-801"}, Wrong{"coarse", "QEP-802"}, Wrong{"stores_skipped_tokens", "QEP-803"},
    Wrong{"keeps_the_old_scale", "QEP-804"}, Wrong{"codes_know_their_block", "QEP-805"}, Wrong{"forgets_the_last_token", "QEP-806"}, Wrong{"kv_allocates", "QEP-807"},
    // speed, end to end
    Wrong{"slow", "QEP-901"}, Wrong{"never_found", "QEP-951"}),
    [](const auto& info) { return std::string(info.param.file); });

#ifdef QE_HAVE_CUDA
INSTANTIATE_TEST_SUITE_P(OnAnyMachine, WrongPlugin, ::testing::Values(Wrong{"pdl_none", ""}), [](const auto& info) { return std::string(info.param.file); });
#endif

TEST(OnAGpu, GraphsAndProgrammaticLaunchesAreTriedAndElsewhereSkippedWithTheReason) {
  const auto outcomes = [](const char* library) {
    Subject subject;
    subject.library = binary_dir() / library;
    std::vector<Outcome> out;
    for (Outcome& o : run_kit(subject, {"graphs", "pdl"}).outcomes)
      if (o.group == "graphs" || o.group == "pdl") out.push_back(std::move(o));
    EXPECT_EQ(out.size(), 8u);
    return out;
  };
  for (const Outcome& o : outcomes("bin/plugins/bf16_ref.so")) {
    if (o.verdict == Verdict::kPassed) EXPECT_FALSE(o.notes.empty()) << o.id;
    else EXPECT_TRUE(o.verdict == Verdict::kNotApplicable && (o.why.find("CUDA") != std::string::npos || o.why.find("programmatic") != std::string::npos)) << o.id << ": " << o.why;
  }
  for (const Outcome& o : outcomes("tests/wrong_plugins/none.so")) EXPECT_TRUE(o.verdict == Verdict::kNotApplicable && o.why == "no method has a CUDA row") << o.id << ": " << o.why;
}

}  // namespace
}  // namespace qengine::test
