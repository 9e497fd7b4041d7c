// out[m, n] = in[m, k] W[n, k]^T. cuBLASLt thinks in columns: out^T [n, m] = W in^T, with W^T [k, n] and
// in^T [k, m] as they lie in memory, so W is taken transposed and the rest as it is.
//
// An algorithm is asked for once per shape, by the library's own heuristic, and remembered for the life
// of the process.
#include "core/device/gemm.hpp"

#include <cublasLt.h>
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <tuple>

#include "core/base/log.hpp"

namespace qengine {
namespace {

struct Library {
  std::string name, why;
  cublasLtHandle_t handle = nullptr;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtGetVersion) version;
};

// The version that the headers are of comes first. QENGINE_CUBLASLT names a file that no search finds.
Library open_library() {
  Library l;
  void* so = nullptr;
  const std::string soname = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  const char* named = secure_getenv("QENGINE_CUBLASLT");  // nothing when privileged
  for (const std::string& path : {std::string(named ? named : ""), soname, "/usr/local/cuda/lib64/" + soname}) {
    if (path.empty()) continue;
    so = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (so) {
      l.name = path;
      break;
    }
    if (const char* e = dlerror(); e && l.why.empty()) l.why = e;
  }
  if (!so) return l;
  const auto load = [&](auto& f, const char* name) {
    f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(so, name));
    if (!f && l.why.empty()) l.why = l.name + " has no " + name;
    return f != nullptr;
  };
  l.why.clear();
  const bool whole = load(l.create, "cublasLtCreate") & load(l.matmul, "cublasLtMatmul") & load(l.desc_create, "cublasLtMatmulDescCreate") & load(l.desc_destroy, "cublasLtMatmulDescDestroy") &
                     load(l.desc_set, "cublasLtMatmulDescSetAttribute") & load(l.layout_create, "cublasLtMatrixLayoutCreate") & load(l.layout_destroy, "cublasLtMatrixLayoutDestroy") &
                     load(l.preference_create, "cublasLtMatmulPreferenceCreate") & load(l.preference_destroy, "cublasLtMatmulPreferenceDestroy") &
                     load(l.preference_set, "cublasLtMatmulPreferenceSetAttribute") & load(l.heuristic, "cublasLtMatmulAlgoGetHeuristic") & load(l.version, "cublasLtGetVersion");
  if (!whole) return l;
  if (const cublasStatus_t s = l.create(&l.handle); s != CUBLAS_STATUS_SUCCESS) {
    l.handle = nullptr;
    l.why = l.name + " could not be started: status " + std::to_string(s);
    return l;
  }
  const std::size_t v = l.version();
  log("device").info("dense products: {} {}.{}.{}", l.name, v / 10000, v / 100 % 100, v % 100);
  return l;
}

bool opened = false;
const Library& library() {
  static const Library l = open_library();
  opened = true;
  return l;
}

// Alignment in bytes that a pointer and a row stride keep, at most 256.
std::uint32_t alignment(const qe_tensor& t, std::int64_t size) {
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(t.data) | static_cast<std::uintptr_t>(t.stride[0] * size) | 256;
  return static_cast<std::uint32_t>(bits & -bits);
}

enum class Scales { kNone, kScalar, kRows, kBlocks };

struct Problem {
  std::int64_t m, n, k, in_stride, weight_stride, out_stride;
  std::int32_t type, out_type, device;
  Scales scales;
  std::uint32_t align_in, align_weight, align_out;
  std::uint64_t workspace;
  auto operator<=>(const Problem&) const = default;
};

struct Made {  // what a shape needs, kept
  bool usable = false;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algo{};
};

qe_status fail(qe_error* e, qe_status status, const char* what, std::int32_t code = 0) {
  e->device_code = code;
  e->subject[0] = e->hint[0] = 0;
  std::snprintf(e->message, sizeof e->message, "dense product: %s", what);
  return status;
}

Made make(const Problem& p) {
  const Library& l = library();
  Made r;
  const cudaDataType_t type = p.type == QE_BF16 ? CUDA_R_16BF : CUDA_R_8F_E4M3, out = p.out_type == QE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
  const auto n = static_cast<std::uint64_t>(p.n), m = static_cast<std::uint64_t>(p.m), k = static_cast<std::uint64_t>(p.k);
  bool ok = l.desc_create(&r.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS;
  const auto set = [&](cublasLtMatmulDescAttributes_t a, const auto& value) { ok = ok && l.desc_set(r.desc, a, &value, sizeof value) == CUBLAS_STATUS_SUCCESS; };
  const cublasOperation_t yes = CUBLAS_OP_T, no = CUBLAS_OP_N;
  set(CUBLASLT_MATMUL_DESC_TRANSA, yes);
  set(CUBLASLT_MATMUL_DESC_TRANSB, no);
  if (p.scales == Scales::kRows || p.scales == Scales::kBlocks) {
    const bool rows = p.scales == Scales::kRows;
    const cublasLtMatmulMatrixScale_t weight = rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const cublasLtMatmulMatrixScale_t in = rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, weight);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, in);
  }
  if (p.scales != Scales::kNone) {  // the heuristic wants to see that there are any
    const void* some = reinterpret_cast<const void*>(std::uintptr_t{256});
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, some);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, some);
  }
  ok = ok && l.layout_create(&r.w, type, k, n, p.weight_stride) == CUBLAS_STATUS_SUCCESS;
  ok = ok && l.layout_create(&r.x, type, k, m, p.in_stride) == CUBLAS_STATUS_SUCCESS;
  ok = ok && l.layout_create(&r.y, out, n, m, p.out_stride) == CUBLAS_STATUS_SUCCESS;
  cublasLtMatmulPreference_t preference = nullptr;
  ok = ok && l.preference_create(&preference) == CUBLAS_STATUS_SUCCESS;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t a, const auto& value) { ok = ok && l.preference_set(preference, a, &value, sizeof value) == CUBLAS_STATUS_SUCCESS; };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::size_t>(p.workspace));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.align_weight);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.align_in);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.align_out);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.align_out);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  r.usable = ok && l.heuristic(l.handle, r.desc, r.w, r.x, r.y, r.y, preference, 1, &found, &count) == CUBLAS_STATUS_SUCCESS && count > 0;
  r.algo = found.algo;
  if (preference) l.preference_destroy(preference);
  return r;
}

// False: not a problem that this service knows.
bool describe(const qe_gemm_args& a, Problem& p) {
  const std::int64_t size = a.in.dtype == QE_BF16 ? 2 : 1;
  if ((a.in.dtype != QE_BF16 && a.in.dtype != QE_E4M3) || a.weight.dtype != a.in.dtype || (a.out.dtype != QE_BF16 && a.out.dtype != QE_F32)) return false;
  if (a.in.stride[1] != 1 || a.weight.stride[1] != 1 || a.out.stride[1] != 1) return false;
  p = {.m = a.m, .n = a.n, .k = a.k, .in_stride = a.in.stride[0], .weight_stride = a.weight.stride[0], .out_stride = a.out.stride[0], .type = a.in.dtype, .out_type = a.out.dtype, .device = 0,
       .scales = Scales::kNone, .align_in = alignment(a.in, size), .align_weight = alignment(a.weight, size), .align_out = alignment(a.out, a.out.dtype == QE_BF16 ? 2 : 4),
       .workspace = a.workspace ? a.workspace_bytes : 0};
  if (a.in.dtype == QE_E4M3) {
    const auto one = [](const qe_tensor& t) { return t.data && t.dtype == QE_F32 && (t.rank == 0 || (t.rank == 1 && t.dim[0] == 1)); };
    const auto rows = [](const qe_tensor& t, std::int64_t n) { return t.data && t.dtype == QE_F32 && t.rank == 1 && t.dim[0] == n; };
    const auto blocks = [](const qe_tensor& t, std::int64_t n, std::int64_t k) { return t.data && t.dtype == QE_F32 && t.rank == 2 && t.dim[0] == n && t.dim[1] == k && alignment(t, 16) >= 16; };
    const std::int64_t groups = (a.k + 127) / 128;
    if (one(a.in_scale) && one(a.weight_scale)) p.scales = Scales::kScalar;
    else if (rows(a.in_scale, a.m) && rows(a.weight_scale, a.n)) p.scales = Scales::kRows;
    else if (blocks(a.in_scale, a.m, groups) && blocks(a.weight_scale, (a.n + 127) / 128, groups) && a.in_scale.stride[0] == 1 && a.in_scale.stride[1] == a.m && a.m % 4 == 0 &&
             a.weight_scale.stride[0] == (groups + 3) / 4 * 4 && a.weight_scale.stride[1] == 1) p.scales = Scales::kBlocks;
    else return false;
  }
  return true;
}

std::mutex mutex;
std::map<Problem, Made> known;

const Made& made_for(const Problem& p) {
  const std::lock_guard lock(mutex);
  const auto it = known.find(p);
  return it != known.end() ? it->second : known.emplace(p, make(p)).first->second;
}

qe_status gemm(void*, const qe_gemm_args* a, qe_error* error) noexcept {
  try {
    if (a->m == 0 || a->n == 0) return QE_OK;
    Problem p;
    if (!describe(*a, p)) return fail(error, QE_E_UNSUPPORTED, "types, strides or scales that cuBLASLt is not used for");
    if (cudaGetDevice(&p.device) != cudaSuccess) return fail(error, QE_E_DEVICE, "no current device");
    const Made& made = made_for(p);
    if (!made.usable) return fail(error, QE_E_UNSUPPORTED, "cuBLASLt has no algorithm for this shape");
    const Library& l = library();
    std::unique_lock<std::mutex> lock;  // scales are set on what others use, too
    if (p.scales != Scales::kNone) {
      lock = std::unique_lock(mutex);
      l.desc_set(made.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &a->weight_scale.data, sizeof(void*));
      l.desc_set(made.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a->in_scale.data, sizeof(void*));
    }
    const float one = 1, zero = 0;
    const cublasStatus_t s = l.matmul(l.handle, made.desc, &one, a->weight.data, made.w, a->in.data, made.x, &zero, a->out.data, made.y, a->out.data, made.y, &made.algo, a->workspace, p.workspace,
                                      static_cast<cudaStream_t>(a->stream));
    return s == CUBLAS_STATUS_SUCCESS ? QE_OK : fail(error, QE_E_DEVICE, "cuBLASLt failed", s);
  } catch (...) {
    return fail(error, QE_E_OOM, "no memory");
  }
}

// Choosing needs no run.
qe_status warmup(void*, const qe_gemm_args* a, qe_error* error) noexcept {
  try {
    Problem p;
    if (!describe(*a, p)) return fail(error, QE_E_UNSUPPORTED, "types, strides or scales that cuBLASLt is not used for");
    cudaGetDevice(&p.device);
    return made_for(p).usable ? QE_OK : fail(error, QE_E_UNSUPPORTED, "cuBLASLt has no algorithm for this shape");
  } catch (...) {
    return fail(error, QE_E_OOM, "no memory");
  }
}

}  // namespace

const qe_gemm_v1* dense_gemm() {
  static const qe_gemm_v1 table{sizeof(qe_gemm_v1), 0, nullptr, gemm, warmup};
  return library().handle ? &table : nullptr;
}

const std::string& why_no_gemm() { return library().why; }

std::string dense_gemm_library() { return opened && library().handle ? library().name : ""; }

}  // namespace qengine
