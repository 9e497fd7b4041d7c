#include "core/structured/numbers.hpp"

#include <algorithm>
#include <charconv>
#include <tuple>

namespace qengine::structured {
namespace {

constexpr int kMaxInteger = 18, kMaxFraction = 17;  // digits

struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction;  // no needless zeros
  bool zero() const { return whole == "0" && fraction.empty(); }
};

Decimal read(std::string_view s) {
  Decimal d;
  if (s.starts_with('-')) d.negative = true, s.remove_prefix(1);
  const auto dot = s.find('.');
  d.whole = std::string(s.substr(0, dot));
  if (dot != std::string_view::npos) d.fraction = std::string(s.substr(dot + 1));
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size() - 1));
  while (d.fraction.ends_with('0')) d.fraction.pop_back();
  if (d.zero()) d.negative = false;
  return d;
}

int compare_size(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int c = a.whole.compare(b.whole)) return c < 0 ? -1 : 1;
  const int c = a.fraction.compare(b.fraction);  // a shorter one is the smaller, as with trailing zeros
  return c < 0 ? -1 : c > 0 ? 1 : 0;
}

struct Limit {
  Decimal value;
  bool excluded;
};

// Where the digits written so far stand against a limit, were the number of digits equal.
enum Order : signed char { kLess = -1, kEqual = 0, kMore = 1 };

Order step_whole(Order so_far, const Decimal& limit, int index, char digit) {
  if (so_far != kEqual || index >= static_cast<int>(limit.whole.size())) return so_far;
  const char c = limit.whole[static_cast<std::size_t>(index)];
  return digit < c ? kLess : digit > c ? kMore : kEqual;
}
Order end_whole(Order so_far, const Decimal& limit, int digits) {
  const int want = static_cast<int>(limit.whole.size());
  return digits < want ? kLess : digits > want ? kMore : so_far;
}
Order step_fraction(Order so_far, const Decimal& limit, int index, char digit) {
  if (so_far != kEqual) return so_far;
  const char c = index < static_cast<int>(limit.fraction.size()) ? limit.fraction[static_cast<std::size_t>(index)] : '0';
  return digit < c ? kLess : digit > c ? kMore : kEqual;
}
Order end_fraction(Order so_far, const Decimal& limit, int digits) {
  return so_far == kEqual && digits < static_cast<int>(limit.fraction.size()) ? kLess : so_far;
}

// Magnitudes from `low` to `high` after an optional sign was written.
Dfa magnitudes(const std::optional<Limit>& low, const std::optional<Limit>& high, bool negative, const NumberBounds& bounds, Budget& budget) {
  enum Phase { kStart, kSign, kZero, kWhole, kDot, kFraction };
  struct State {
    int phase = kStart, digits = 0;  // of the part being written
    signed char low = kEqual, high = kEqual;
    std::int64_t rest = 0;  // the integer so far, modulo multiple_of
    bool operator<(const State& o) const { return std::tie(phase, digits, low, high, rest) < std::tie(o.phase, o.digits, o.low, o.high, o.rest); }
  };
  const bool integer = bounds.integer || bounds.multiple_of > 0;
  const auto holds = [&](const State& s) {
    if (bounds.multiple_of > 0 && s.rest != 0) return false;
    const auto final_order = [&](signed char o, const Decimal& d) {
      const auto order = static_cast<Order>(o);
      return s.phase == kFraction ? end_fraction(order, d, s.digits) : end_fraction(end_whole(order, d, s.digits), d, 0);
    };
    if (low) {
      const Order o = final_order(s.low, low->value);
      if (o == kLess || (o == kEqual && low->excluded)) return false;
    }
    if (high) {
      const Order o = final_order(s.high, high->value);
      if (o == kMore || (o == kEqual && high->excluded)) return false;
    }
    return true;
  };
  const auto step = [&](const State& s, char b) -> std::optional<State> {
    State t = s;
    if (b == '-') {
      if (s.phase != kStart || !negative) return std::nullopt;
      t.phase = kSign;
      return t;
    }
    if (b == '.') {
      if (integer || (s.phase != kZero && s.phase != kWhole)) return std::nullopt;
      if (low) t.low = end_whole(static_cast<Order>(s.low), low->value, s.digits);
      if (high) t.high = end_whole(static_cast<Order>(s.high), high->value, s.digits);
      t.phase = kDot;
      t.digits = 0;
      return t;
    }
    if (s.phase == kZero) return std::nullopt;
    if (s.phase == kStart || s.phase == kSign || s.phase == kWhole) {
      if (negative && s.phase == kStart) return std::nullopt;
      if (s.digits >= kMaxInteger) return std::nullopt;
      if (low) t.low = step_whole(static_cast<Order>(s.low), low->value, s.digits, b);
      if (high) t.high = step_whole(static_cast<Order>(s.high), high->value, s.digits, b);
      t.phase = s.phase != kWhole && b == '0' ? kZero : kWhole;
      if (bounds.multiple_of > 0) t.rest = (s.rest * 10 + (b - '0')) % bounds.multiple_of;
      ++t.digits;
      return t;
    }
    if (s.digits >= kMaxFraction) return std::nullopt;
    if (low) t.low = step_fraction(static_cast<Order>(s.low), low->value, s.digits, b);
    if (high) t.high = step_fraction(static_cast<Order>(s.high), high->value, s.digits, b);
    t.phase = kFraction;
    ++t.digits;
    return t;
  };
  return enumerate(State{}, "-.0123456789", step, [&](const State& s) { return (s.phase == kZero || s.phase == kWhole || s.phase == kFraction) && holds(s); }, budget);
}

Dfa plain(bool integer, Budget& budget) {
  enum Phase { kStart, kSign, kZero, kWhole, kDot, kFraction, kE, kESign, kExponent };
  using S = std::pair<int, int>;
  return enumerate(
      S{kStart, 0}, "-+.eE0123456789",
      [&](const S& s, char b) -> std::optional<S> {
        const auto [phase, n] = s;
        const bool digit = b >= '0' && b <= '9', number = phase == kZero || phase == kWhole || phase == kFraction;
        if (b == '-' && phase == kStart) return S{kSign, 0};
        if ((b == '-' || b == '+') && phase == kE) return S{kESign, 0};
        if (b == '.' && !integer && (phase == kZero || phase == kWhole)) return S{kDot, 0};
        if ((b == 'e' || b == 'E') && !integer && number) return S{kE, 0};
        if (!digit || phase == kZero) return std::nullopt;
        if (phase == kStart || phase == kSign) return b == '0' ? S{kZero, 0} : S{kWhole, 1};
        if (phase == kWhole) return n < kMaxInteger ? std::optional(S{kWhole, n + 1}) : std::nullopt;
        if (phase == kDot || phase == kFraction) return n < kMaxFraction ? std::optional(S{kFraction, n + 1}) : std::nullopt;
        return n < 2 ? std::optional(S{kExponent, n + 1}) : std::nullopt;
      },
      [](const S& s) { return s.first == kZero || s.first == kWhole || s.first == kFraction || s.first == kExponent; }, budget);
}

}  // namespace

std::string decimal_text(const Json& number) {
  if (number.is_number_integer()) return number.dump();
  char buffer[512];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number.get<double>(), std::chars_format::fixed);
  return end.ec == std::errc{} ? std::string(buffer, end.ptr) : std::string("0");
}

int compare_decimal(const std::string& x, const std::string& y) {
  const Decimal a = read(x), b = read(y);
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  return a.negative ? -compare_size(a, b) : compare_size(a, b);
}

void NumberBounds::at_least(const Json& value, bool excluded) {
  const std::string text = decimal_text(value);
  const int c = least ? compare_decimal(text, *least) : 1;
  if (c > 0) least = text, least_excluded = excluded;
  else if (c == 0) least_excluded |= excluded;
}

void NumberBounds::at_most(const Json& value, bool excluded) {
  const std::string text = decimal_text(value);
  const int c = most ? compare_decimal(text, *most) : -1;
  if (c < 0) most = text, most_excluded = excluded;
  else if (c == 0) most_excluded |= excluded;
}

Dfa number_dfa(const NumberBounds& b, Budget& budget) {
  if (!b.least && !b.most && b.multiple_of == 0) return plain(b.integer, budget);
  const auto limit = [](const std::optional<std::string>& text, bool excluded) -> std::optional<Limit> {
    return text ? std::optional(Limit{read(*text), excluded}) : std::nullopt;
  };
  const std::optional<Limit> least = limit(b.least, b.least_excluded), most = limit(b.most, b.most_excluded);
  Dfa positive, negative;
  if (!most || (!most->value.negative && !(most->value.zero() && most->excluded)))
    positive = magnitudes(least && (!least->value.negative) ? least : std::nullopt, most, false, b, budget);
  if (!least || least->value.negative)
    negative = magnitudes(most && most->value.negative ? most : std::nullopt, least, true, b, budget);
  // "-0" is 0: it belongs to the negative texts only where 0 itself is allowed.
  if (!negative.empty() && most && !most->value.negative && most->value.zero() && most->excluded)
    negative = magnitudes(Limit{Decimal{}, true}, least, true, b, budget);
  return either(positive, negative, budget);
}

}  // namespace qengine::structured
