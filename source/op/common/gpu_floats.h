// Arithmetic of float2 and float4, number by number.
#pragma once

#include "common/math.h"

namespace mdops {

MDOPS_D float2 operator+(float2 a, float2 b) {
  return {a.x + b.x, a.y + b.y};
}
MDOPS_D float2 operator-(float2 a, float2 b) {
  return {a.x - b.x, a.y - b.y};
}
MDOPS_D float2 operator*(float2 a, float2 b) {
  return {a.x * b.x, a.y * b.y};
}

MDOPS_D float4 operator+(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
MDOPS_D float4 operator-(const float4& a, const float4& b) {
  return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w};
}
MDOPS_D float4 operator*(const float4& a, const float4& b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}
MDOPS_D float4 operator*(float a, const float4& b) {
  return {a * b.x, a * b.y, a * b.z, a * b.w};
}
MDOPS_D float4& operator+=(float4& a, const float4& b) {
  return a = a + b;
}

}  // namespace mdops
