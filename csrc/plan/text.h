// Problems as lines of text, in which they pass between libraries and to Python:
// "op=fprop dtype=float32 N=1 C=64 … x_strides=200704,3136,56,1 … tf32=1 …". Those of volumes have
// their depth too, and strides of five numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/problem.h"

namespace customconv {

// The fields of a problem by name, and the least and the most that a number can be.
template <typename T>
struct ProblemField {
  const char* name;
  T ConvProblem::* member;
  int64_t least = 0, most = 1;
};

constexpr int64_t kMostOfSize = int64_t{1} << 40;
constexpr ProblemField<int64_t> kProblemNumbers[] = {
    {"N", &ConvProblem::N, 1, kMostOfSize},
    {"C", &ConvProblem::C, 1, kMostOfSize},
    {"H", &ConvProblem::H, 1, kMostOfSize},
    {"W", &ConvProblem::W, 1, kMostOfSize},
    {"K", &ConvProblem::K, 1, kMostOfSize},
    {"R", &ConvProblem::R, 1, kMostOfSize},
    {"S", &ConvProblem::S, 1, kMostOfSize},
    {"P", &ConvProblem::P, 1, kMostOfSize},
    {"Q", &ConvProblem::Q, 1, kMostOfSize},
    {"groups", &ConvProblem::groups, 1, kMostOfSize},
    {"stride_h", &ConvProblem::stride_h, 1, kMostOfSize},
    {"stride_w", &ConvProblem::stride_w, 1, kMostOfSize},
    {"pad_h", &ConvProblem::pad_h, 0, kMostOfSize},
    {"pad_w", &ConvProblem::pad_w, 0, kMostOfSize},
    {"dilation_h", &ConvProblem::dilation_h, 1, kMostOfSize},
    {"dilation_w", &ConvProblem::dilation_w, 1, kMostOfSize},
};
// Those that only problems of volumes have.
constexpr ProblemField<int64_t> kDepthNumbers[] = {
    {"D", &ConvProblem::D, 1, kMostOfSize},
    {"T", &ConvProblem::T, 1, kMostOfSize},
    {"O", &ConvProblem::O, 1, kMostOfSize},
    {"stride_d", &ConvProblem::stride_d, 1, kMostOfSize},
    {"pad_d", &ConvProblem::pad_d, 0, kMostOfSize},
    {"dilation_d", &ConvProblem::dilation_d, 1, kMostOfSize},
};
constexpr ProblemField<bool> kProblemFlags[] = {
    {"tf32", &ConvProblem::tf32},
    {"bias", &ConvProblem::has_bias},
    {"residual", &ConvProblem::has_residual},
    {"x_aligned", &ConvProblem::x_aligned},
    {"w_aligned", &ConvProblem::w_aligned},
    {"y_aligned", &ConvProblem::y_aligned},
};
// Those of problems that are not tuned.
constexpr ProblemField<bool> kUntunedFlags[] = {
    {"statistics", &ConvProblem::has_statistics},
    {"batch_invariant", &ConvProblem::batch_invariant},
};
constexpr ProblemField<Shape5> kProblemStrides[] = {
    {"x_strides", &ConvProblem::x_strides, 0, int64_t{1} << 50},
    {"w_strides", &ConvProblem::w_strides, 0, int64_t{1} << 50},
    {"y_strides", &ConvProblem::y_strides, 0, int64_t{1} << 50},
};
// More than any epilogue has.
constexpr ProblemField<int> kEpiloguePasses = {"epilogue_passes", &ConvProblem::epilogue_passes, 0,
                                               16};

// The value of that name; std::invalid_argument if there is none.
DType dtype_named(const std::string& name);
Pass pass_named(const std::string& name);
// The strides that a text or a dictionary has.
std::vector<int64_t> listed_strides(const ConvProblem& problem, const Shape5& strides);
// Throws std::invalid_argument where a problem contradicts itself; whether it was given a depth.
void check_fields(const ConvProblem& problem, bool has_depth);

std::string problem_text(const ConvProblem& problem);
// The problem whose text it is. Throws std::invalid_argument where it is none's.
ConvProblem parse_problem(const std::string& text);

}  // namespace customconv
