#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tenon {

// Of these names the one that was probably meant; empty: none is near.
std::string_view nearest_name(std::string_view given, std::span<const std::string_view> names);

// " (did you mean 'precision_mode'?)" to stand in an error's text; empty where no name is near.
std::string did_you_mean(std::string_view given, std::span<const std::string_view> names);

}  // namespace tenon
