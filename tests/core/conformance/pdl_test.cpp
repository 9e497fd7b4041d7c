// Each plugin that breaks what programmatic launches promise (tests/wrong_plugins/wrong_pdl.cpp) fails the check that is meant for
// it, and no other. Needs a GPU of sm_90 or later. The driver is started by the checks alone, which are processes of their own.
#include <gtest/gtest.h>

#include <algorithm>

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

class WrongLaunch : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongLaunch, FailsItsCheckAndNoOther) {
  Subject subject;
  subject.library = binary_dir() / "tests/wrong_plugins" / (std::string(GetParam().file) + ".so");
  const Report report = run_kit(subject, {"graphs", "pdl"});
  const std::string meant = *GetParam().check ? GetParam().check : "QEP-610";
  const auto of = std::find_if(report.outcomes.begin(), report.outcomes.end(), [&](const Outcome& o) { return o.id == meant; });
  ASSERT_NE(of, report.outcomes.end());
  if (of->verdict == Verdict::kNotApplicable) GTEST_SKIP() << of->why;
  std::string failed, text;
  for (const Outcome& o : report.outcomes) {
    if (o.verdict == Verdict::kFailed) failed += (failed.empty() ? "" : " ") + o.id;
    text += o.id + ": " + o.why + "\n";
    EXPECT_TRUE(o.verdict == Verdict::kPassed || !o.why.empty()) << o.id;
  }
  EXPECT_EQ(failed, GetParam().check) << text;
}

INSTANTIATE_TEST_SUITE_P(, WrongLaunch, ::testing::Values(
    Wrong{"pdl_none", ""}, Wrong{"never_programmatic", "QEP-610"}, Wrong{"programmatic_unasked", "QEP-610"}, Wrong{"programmatic_undeclared", "QEP-610"},
    Wrong{"reads_before_the_wait", "QEP-611"}, Wrong{"clears_before_the_wait", "QEP-612"}, Wrong{"ends_before_the_others", "QEP-613"},
    Wrong{"other_bits_when_programmatic", "QEP-614"}, Wrong{"idles_when_programmatic", "QEP-615"}),
    [](const auto& info) { return std::string(info.param.file); });

}  // namespace
}  // namespace qengine::test
