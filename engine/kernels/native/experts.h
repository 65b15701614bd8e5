// Which rows go through which experts, and how much of each: engine/kernels/interface.py, Experts.
//
// Rows are grouped by expert, so that the rows of one expert are one product. An expert's results
// are added to the residual before the next expert is computed: a row's sum has the order of its
// own experts' numbers, whatever the rows beside it chose.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "linear.h"

namespace promptmill {

struct Expert {
  PackedWeight gate_up;
  PackedWeight down;
};

struct ExpertChoice {
  int num_experts;  // with the shared one
  int num_chosen;   // without it
  bool is_renormalised;
  bool has_shared;  // it comes last, and every row goes through it

  int num_routed() const { return num_experts - has_shared; }
  int num_places() const { return num_chosen + has_shared; }
};

// Replace one row's scores by shares, then choose; of equal shares the lowest number wins.
inline void choose_experts(const ExpertChoice& choice, float* scores, int* chosen, float* shares) {
  const int num_routed = choice.num_routed();
  const float highest = *std::max_element(scores, scores + num_routed);
  float total = 0;
  for (int expert = 0; expert < num_routed; ++expert) {
    total += scores[expert] = std::exp(scores[expert] - highest);
  }
  float chosen_total = 0;
  for (int place = 0; place < choice.num_chosen; ++place) {
    const int best = static_cast<int>(std::max_element(scores, scores + num_routed) - scores);
    chosen[place] = best;
    chosen_total += shares[place] = scores[best];
    scores[best] = -1;  // below every share
  }
  const float whole = choice.is_renormalised ? chosen_total : total;
  for (int place = 0; place < choice.num_chosen; ++place) shares[place] /= whole;
  if (choice.has_shared) {
    chosen[choice.num_chosen] = num_routed;
    shares[choice.num_chosen] = 1 / (1 + std::exp(-scores[num_routed]));
  }
}

// The rows of each expert, with their shares: those of expert e from starts[e] to starts[e + 1].
struct ExpertGroups {
  std::vector<int> starts;
  std::vector<int> rows;
  std::vector<float> shares;

  // chosen and of_row hold num_places numbers for each row.
  void fill(const ExpertChoice& choice, int num_rows, const int* chosen, const float* of_row) {
    const int num_places = choice.num_places();
    starts.assign(choice.num_experts + 1, 0);
    rows.resize(size_t(num_rows) * num_places);
    shares.resize(rows.size());
    for (size_t at = 0; at < rows.size(); ++at) ++starts[chosen[at] + 1];
    for (int expert = 0; expert < choice.num_experts; ++expert) starts[expert + 1] += starts[expert];
    std::vector<int> next(starts.begin(), starts.end() - 1);
    for (size_t at = 0; at < rows.size(); ++at) {
      const int place = next[chosen[at]]++;
      rows[place] = static_cast<int>(at / num_places);
      shares[place] = of_row[at];
    }
  }
};

// Add the sums, times a share, to the float rows they belong to.
struct AddShare {
  AddToResidual sink;
  const int* rows;
  const float* shares;

  void operator()(int row, int panel, const Vector (&sums)[kVectors]) const {
    Vector scaled[kVectors];
    for (int part = 0; part < kVectors; ++part) scaled[part] = sums[part] * shares[row];
    sink(rows[row], panel, scaled);
  }
};

}  // namespace promptmill
