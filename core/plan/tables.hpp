// The tables that a plan draws on: models, cards, formats. Data: config/*.toml.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/plan.hpp"

namespace qengine {

struct KnownShape {
  Shape shape;
  std::string config_json;  // as config.json would say it
};

std::span<const KnownShape> known_shapes();
std::span<const Card> known_cards();
std::span<const WeightFormat> known_formats();

// Throw Error E101 with the nearest name.
const KnownShape& shape_named(std::string_view name);
const Card& card_named(std::string_view name);
const WeightFormat* find_format(std::string_view name);  // also by alias; null when unknown
const WeightFormat& format_named(std::string_view name);

// "h200,rtx4090", "sm=89,mem=8188MiB,bw=256GB/s", or several of both: a card of its own begins with the
// first key that it has already. Keys: sm, mem, bw, tflops, fp8, fp4, name. Throws Error E101.
std::vector<Card> parse_cards(std::string_view text);

}  // namespace qengine
