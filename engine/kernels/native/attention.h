// Attention over the paged cache for any mix of prompt chunks and single tokens.
//
// A tile is a few query rows (tokens times the query heads that share a key head) of one sequence.
// It walks its sequence's blocks in spans, keeping a running maximum and sum (Milakov and
// Gimelshein 2018; FlashAttention, Dao et al. 2022). Spans lie at fixed places of the context and a
// row for which a span holds nothing is left exactly as it was, so a row's result does not depend
// on the rows beside it or on how its prompt was cut into chunks. The two products with what is
// cached are Products' business: attention_words.h for caches of the model's type,
// attention_bytes.h for caches of bytes.
//
// A step reads each cached key and value about once, from memory and block by block, too scattered
// for the processor to foresee. So while keys are scored the same blocks' values are fetched, and
// while values are added the keys of the next tile.
#pragma once

#include <algorithm>

#include "vector.h"

namespace promptmill {

constexpr int kQueryRows = 6;
constexpr int kSpan = 128;
constexpr int kLargestHead = 256;

template <class Element>
struct Tile {
  using Stored = typename Element::Stored;

  const Stored* queries[kQueryRows];
  Stored* outs[kQueryRows];
  int positions[kQueryRows];
  const int32_t* blocks;
  int head;
  int context;                 // slots beyond it may hold anything
  const int32_t* next_blocks;  // of the tile this thread will probably run next
  int num_next_blocks;
  int next_head;

  // Return the next tile's block that lies as far into its context as this position into ours.
  int next_block(int position, int block_size) const {
    return next_blocks[std::min(position / block_size, num_next_blocks - 1)];
  }
};

template <class Element, class Products>
struct Attention {
  Products products;
  int num_heads;
  float scale;
  int window;     // 0: none
  float softcap;  // 0: none

  template <int kRows>
  void run(const Tile<Element>& tile, float* scratch) const {
    const int head_dim = products.cache.head_dim;
    const typename Products::template Queries<kRows> queries(tile, head_dim);
    const int last = tile.positions[kRows - 1];
    const int first = window ? std::max(0, tile.positions[0] - window + 1) : 0;
    float* sums = scratch;  // [kRows][head_dim]
    std::fill(sums, sums + kRows * head_dim, 0.0f);
    float maxima[kRows], totals[kRows];
    for (int row = 0; row < kRows; ++row) maxima[row] = -1e30f, totals[row] = 0;
    for (int start = first / kSpan * kSpan; start <= last; start += kSpan) {
      alignas(64) float weights[kRows][kSpan];
      const int num_seen = std::min(kSpan, last + 1 - start);
      products.score(tile, queries, start, num_seen, weights);
      for (int row = 0; row < kRows; ++row) {
        const float shrink =
            weigh(weights[row], start, num_seen, tile.positions[row], maxima[row], totals[row]);
        if (shrink == 1.0f) continue;
        for (int dim = 0; dim < head_dim; ++dim) sums[row * head_dim + dim] *= shrink;
      }
      products.add_values(tile, start, num_seen, weights, sums);
    }
    for (int row = 0; row < kRows; ++row) {
      int dim = 0;
      for (; dim + kLanes <= head_dim; dim += kLanes) {
        Element::store_narrow(tile.outs[row] + dim, load(sums + row * head_dim + dim) / totals[row]);
      }
      for (; dim < head_dim; ++dim) {
        tile.outs[row][dim] = Element::narrow(sums[row * head_dim + dim] / totals[row]);
      }
    }
  }

 private:
  // Turn a row's scores into weights where they are; return by how much earlier sums shrink.
  float weigh(float* scores, int start, int num_seen, int position, float& maximum,
              float& total) const {
    const int from = window ? std::max(0, position - window + 1 - start) : 0;
    const int to = std::min(num_seen, position + 1 - start);
    const int padded = ceil_to_lanes(num_seen);
    for (int place = 0; place < padded; place += kLanes) {
      Vector value = load(scores + place) * scale;
      if (softcap > 0) value = softcap * hyperbolic_tangent(value / softcap);
      store(scores + place, value);
    }
    for (int place = 0; place < std::min(from, padded); ++place) scores[place] = -INFINITY;
    for (int place = std::max(to, 0); place < padded; ++place) scores[place] = -INFINITY;
    Vector best = splat(-1e30f);
    for (int place = 0; place < padded; place += kLanes) {
      best = larger(best, load(scores + place));
    }
    const float new_maximum = std::max(maximum, largest(best));
    Vector added{};
    for (int place = 0; place < padded; place += kLanes) {
      const Vector score = load(scores + place);
      const Vector weight = score > -1e30f ? exponential(score - new_maximum) : Vector{};
      store(scores + place, weight);
      added += weight;
    }
    const float shrink = maximum == new_maximum ? 1.0f : exponential(splat(maximum - new_maximum))[0];
    total = total * shrink + sum(added);
    maximum = new_maximum;
    return shrink;
  }
};

}  // namespace promptmill
