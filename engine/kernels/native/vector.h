// Vectors of 32-bit lanes, and the element types that share a lane.
//
// Owns everything that differs between instruction sets: the same source is compiled once for each.
// A word is 32 bits and holds P neighbouring elements of one sum (float: 1, bfloat16: 2), so a dot
// product is one operation per word whatever the type. Conversions round to nearest even.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace promptmill {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef int32_t Integers __attribute__((vector_size(kLanes * 4)));

typedef int32_t Integers4 __attribute__((vector_size(16)));

template <class To, class From>
inline To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class Type>
inline Type load_as(const void* from) {
  Type value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline Vector load(const float* from) { return load_as<Vector>(from); }
inline Words load_words(const uint32_t* from) { return load_as<Words>(from); }
inline void store(float* to, Vector value) { std::memcpy(to, &value, sizeof value); }
inline Vector splat(float value) { return Vector{} + value; }
inline Words splat_word(uint32_t value) { return Words{} + value; }

inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }
inline int ceil_to_lanes(int count) { return (count + kLanes - 1) / kLanes * kLanes; }

// Adding 1.5 * 2^23 leaves the nearest integer in the low bits, ties to even.
constexpr float kRound = 12582912.0f;

inline Integers nearest(Vector value) {
  return bits_as<Integers>(value + kRound) - bits_as<int32_t>(kRound);
}

inline int nearest(float value) {
  return bits_as<int32_t>(value + kRound) - bits_as<int32_t>(kRound);
}

typedef float Quarter __attribute__((vector_size(16)));

// Fold the lanes pairwise; the order is fixed, so equal rows give equal bits wherever they are.
template <class Fold>
inline float fold_lanes(Vector value, const Fold& fold) {
  Quarter quarters[kLanes / 4];
  std::memcpy(quarters, &value, sizeof value);
  for (int width = kLanes / 8; width; width /= 2) {
    for (int index = 0; index < width; ++index) {
      quarters[index] = fold(quarters[index], quarters[index + width]);
    }
  }
  const Quarter pairs = fold(quarters[0], __builtin_shuffle(quarters[0], Integers4{2, 3, 0, 1}));
  return fold(pairs, __builtin_shuffle(pairs, Integers4{1, 0, 3, 2}))[0];
}

inline float sum(Vector value) {
  return fold_lanes(value, [](Quarter a, Quarter b) { return a + b; });
}

inline float largest(Vector value) {
  return fold_lanes(value, [](Quarter a, Quarter b) { return a > b ? a : b; });
}

struct Float32 {
  using Stored = float;
  using Sum = Vector;
  static constexpr int kPerWord = 1;
  static Vector dot(Vector total, Words a, Words b) {
    return total + bits_as<Vector>(a) * bits_as<Vector>(b);
  }
  static float widen(float value) { return value; }
  static float narrow(float value) { return value; }
  static Vector load_wide(const float* from) { return load(from); }
  static void store_narrow(float* to, Vector value) { store(to, value); }
  static Words join(const Vector* values) { return bits_as<Words>(values[0]); }
};

struct Bfloat16 {
  using Stored = uint16_t;
  using Sum = Vector;
  static constexpr int kPerWord = 2;

  static Vector dot(Vector total, Words a, Words b) {
#if defined(__AVX512BF16__)
    return bits_as<Vector>(_mm512_dpbf16_ps(bits_as<__m512>(total), bits_as<__m512bh>(a),
                                            bits_as<__m512bh>(b)));
#else
    total += bits_as<Vector>(a << 16) * bits_as<Vector>(b << 16);
    return total + bits_as<Vector>(a & 0xffff0000u) * bits_as<Vector>(b & 0xffff0000u);
#endif
  }

  static float widen(uint16_t value) { return bits_as<float>(uint32_t{value} << 16); }

  static uint16_t narrow(float value) {
    const uint32_t bits = bits_as<uint32_t>(value);
    if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }

  static Vector load_wide(const uint16_t* from) {
    typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
    const Words words = __builtin_convertvector(load_as<Halves>(from), Words);
    return bits_as<Vector>(words << 16);
  }

  static void store_narrow(uint16_t* to, Vector value) {
#if defined(__AVX512BF16__)
    const __m256bh halves = _mm512_cvtneps_pbh(bits_as<__m512>(value));
    std::memcpy(to, &halves, sizeof halves);
#else
    for (int lane = 0; lane < kLanes; ++lane) to[lane] = narrow(value[lane]);
#endif
  }

  // One word of two numbers for each lane.
  static Words join(const Vector* values) {
    return (rounded(values[0]) >> 16) | (rounded(values[1]) & 0xffff0000u);
  }

  // Finite numbers, to nearest even in their upper halves.
  static Words rounded(Vector value) {
    const Words bits = bits_as<Words>(value);
    return bits + 0x7fff + ((bits >> 16) & 1);
  }
};

// Products of quantised rows, bytes from 0 to 255, with signed bytes of a weight; sums are exact.
struct Int8 {
  using Sum = Integers;
  static constexpr int kPerWord = 4;
  static constexpr int kZero = 128;  // what a row's zero is stored as

  static Integers dot(Integers total, Words weights, Words row) {
#if defined(__AVX512VNNI__)
    return bits_as<Integers>(_mm512_dpbusd_epi32(bits_as<__m512i>(total), bits_as<__m512i>(row),
                                                 bits_as<__m512i>(weights)));
#else
    const Integers signed_bytes = bits_as<Integers>(weights), bytes = bits_as<Integers>(row);
    total += (bytes & 0xff) * ((signed_bytes << 24) >> 24);
    total += ((bytes >> 8) & 0xff) * ((signed_bytes << 16) >> 24);
    total += ((bytes >> 16) & 0xff) * ((signed_bytes << 8) >> 24);
    return total + ((bytes >> 24) & 0xff) * (signed_bytes >> 24);
#endif
  }
};

// e to the x: x = n ln 2 + r, a polynomial for r (Cephes, single/expf.c), n into the exponent.
inline Vector exponential(Vector x) {
  x = x > 88.0f ? splat(88.0f) : x;
  x = x < -87.0f ? splat(-87.0f) : x;
  const Vector shifted = x * 1.44269504088896341f + kRound;
  const Vector n = shifted - kRound;
  const Vector r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vector p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Integers exponent = __builtin_convertvector(n, Integers);
  return bits_as<Vector>(bits_as<Integers>(p) + (exponent << 23));
}

inline Vector hyperbolic_tangent(Vector x) {
  const Vector e = exponential(x * 2.0f);
  return 1.0f - 2.0f / (e + 1.0f);
}

}  // namespace promptmill
