// One layer's cache, see engine/kv_cache.py: where each key and value lies, and how it is stored.
#pragma once

#include "rows.h"
#include "vector.h"

namespace promptmill {

// Keys [N, G, D/P, B, P] and values [N, G, B/P, D, P] of the model's type.
template <class Element>
struct WordCache {
  typename Element::Stored* keys;
  typename Element::Stored* values;
  int num_kv_heads;
  int head_dim;
  int block_size;

  size_t head_at(int block, int head) const {
    return (size_t(block) * num_kv_heads + head) * head_dim * block_size;
  }

  void store(int slot, int head, const typename Element::Stored* key,
             const typename Element::Stored* value) const {
    constexpr int P = Element::kPerWord;
    const int place = slot % block_size;
    typename Element::Stored* to_keys = keys + head_at(slot / block_size, head) + place * P;
    typename Element::Stored* to_values =
        values + head_at(slot / block_size, head) + size_t(place / P) * head_dim * P + place % P;
    for (int dim = 0; dim < head_dim; ++dim) {
      to_keys[size_t(dim / P) * block_size * P + dim % P] = key[dim];
      to_values[dim * P] = value[dim];
    }
  }
};

// The same of signed bytes, P = 4, with scales [N, G, 2, B]: keys' before values'.
template <class Element>
struct ByteCache {
  int8_t* keys;
  int8_t* values;
  float* scales;
  int num_kv_heads;
  int head_dim;
  int block_size;

  size_t head_at(int block, int head) const {
    return (size_t(block) * num_kv_heads + head) * head_dim * block_size;
  }

  float* key_scales_at(int block, int head) const {
    return scales + (size_t(block) * num_kv_heads + head) * 2 * block_size;
  }

  float* value_scales_at(int block, int head) const {
    return key_scales_at(block, head) + block_size;
  }

  void store(int slot, int head, const typename Element::Stored* key,
             const typename Element::Stored* value) const {
    constexpr int P = Int8::kPerWord;
    const int block = slot / block_size, place = slot % block_size;
    int8_t* to_keys = keys + head_at(block, head) + place * P;
    int8_t* to_values =
        values + head_at(block, head) + size_t(place / P) * head_dim * P + place % P;
    uint8_t raised_key[kLargestHead], raised_value[kLargestHead];
    key_scales_at(block, head)[place] = quantise_row<Element>(key, head_dim, raised_key);
    value_scales_at(block, head)[place] = quantise_row<Element>(value, head_dim, raised_value);
    for (int dim = 0; dim < head_dim; ++dim) {
      to_keys[size_t(dim / P) * block_size * P + dim % P] =
          static_cast<int8_t>(raised_key[dim] - Int8::kZero);
      to_values[dim * P] = static_cast<int8_t>(raised_value[dim] - Int8::kZero);
    }
  }
};

}  // namespace promptmill
