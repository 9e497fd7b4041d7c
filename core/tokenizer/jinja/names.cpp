// Filters and tests that do not exist: early where every rendering would come to them, else when one does.
#include "core/tokenizer/jinja/ast.hpp"

namespace qengine::jinja {
namespace {

// What is evaluated whenever `e` is.
void check(const Expr& e) {
  using K = Expr::Kind;
  if ((e.kind == K::kFilter && !e.filter) || (e.kind == K::kTest && !e.test)) unknown_name(e);
  const bool only_first = e.kind == K::kAnd || e.kind == K::kOr || e.kind == K::kCondition;
  for (std::size_t i = 0; i < (only_first ? 1 : e.children.size()); ++i)
    if (e.children[i]) check(*e.children[i]);
  for (const ExprPtr& p : e.args.positional) check(*p);
  for (const auto& [name, p] : e.args.named) check(*p);
  for (const ExprPtr* p : {&e.args.rest, &e.args.named_rest})
    if (*p) check(**p);
}

}  // namespace

void unknown_name(const Expr& e) {
  throw Failure(std::string("there is no ") + (e.kind == Expr::Kind::kFilter ? "filter" : "test") + " called '" + e.name + "'", e.pos);
}

void check_names(const Body& body) {
  using K = Stmt::Kind;
  for (const auto& s : body) {
    if (s->expr) check(*s->expr);
    for (const auto& [target, e] : s->assignments) check(*e);
    if (s->kind == K::kIf && s->branches[0].condition) check(*s->branches[0].condition);
    if (s->kind == K::kBreak || s->kind == K::kContinue) return;
    if (s->kind == K::kFilterBlock || s->kind == K::kSetBlock || s->kind == K::kWith || s->kind == K::kScope) check_names(s->body);
  }
}

}  // namespace qengine::jinja
