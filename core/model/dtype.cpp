#include "core/model/dtype.hpp"

#include <qe/plugin.h>

#include <string>

#include "core/model/checkpoint.hpp"

namespace qengine {
namespace {

constexpr SafetensorsType kSafetensors[] = {
    {"BF16", QE_BF16, 16},          {"F16", QE_F16, 16},
    {"F32", QE_F32, 32},            {"I32", QE_I32, 32},
    {"U8", QE_U8, 8},               {"I8", QE_I8, 8},
    {"I16", QE_I16, 16},            {"I64", QE_I64, 64},
    {"F8_E4M3", QE_E4M3, 8},        {"F8_E5M2", QE_E5M2, 8},
    {"F8_E8M0", QE_E8M0, 8},        {"F4", QE_E2M1X2, 4},
    {"BOOL", kDtypeBool, 8},        {"U16", kDtypeU16, 16},
    {"U32", kDtypeU32, 32},         {"U64", kDtypeU64, 64},
    {"F64", kDtypeF64, 64},         {"C64", kDtypeC64, 64},
    {"F8_E4M3FNUZ", kDtypeE4M3Fnuz, 8}, {"F8_E5M2FNUZ", kDtypeE5M2Fnuz, 8},
    {"F6_E2M3", kDtypeE2M3, 6},     {"F6_E3M2", kDtypeE3M2, 6},
};

// Ids 4, 5, 31 to 33 and 36 to 38 are retired.
constexpr GgmlType kGgml[] = {
    {0, "F32", 1, 4},        {1, "F16", 1, 2},        {2, "Q4_0", 32, 18},     {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},     {7, "Q5_1", 32, 24},     {8, "Q8_0", 32, 34},     {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},   {11, "Q3_K", 256, 110},  {12, "Q4_K", 256, 144},  {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},  {15, "Q8_K", 256, 292},  {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50}, {20, "IQ4_NL", 32, 18},  {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},  {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},       {25, "I16", 1, 2},
    {26, "I32", 1, 4},       {27, "I64", 1, 8},       {28, "F64", 1, 8},       {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},      {34, "TQ1_0", 256, 54},  {35, "TQ2_0", 256, 66},  {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},   {41, "Q1_0", 128, 18},   {42, "Q2_0", 64, 18},
};

}  // namespace

const SafetensorsType* safetensors_type(std::string_view name) {
  for (const auto& t : kSafetensors)
    if (t.name == name) return &t;
  return nullptr;
}

const GgmlType* ggml_type(std::int32_t id) {
  for (const auto& t : kGgml)
    if (t.id == id) return &t;
  return nullptr;
}

std::string dtype_name(std::int32_t dtype) {
  for (const auto& t : kSafetensors)
    if (t.dtype == dtype) return std::string(t.name);
  if (const GgmlType* t = ggml_type(dtype - QE_GGML)) return std::string(t->name);
  return "dtype " + std::to_string(dtype);
}

}  // namespace qengine
