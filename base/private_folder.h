// Folders and files of nobody but this user, for what others must not write or know.
#pragma once

#include <sys/stat.h>

#include <string>

#include "base/replace_file.h"
#include "base/support.h"

namespace tenon {

// Absolute, without "." and without a slash at the end, which would make a link its target.
std::string plain_path(const std::string& folder);

// No: it is another user's, or others may write to it.
Support is_ours(const struct stat& known);

// Opens the folder at a plain path. `make`: it and its parents are made where they are absent, for
// their owner alone. One that is a symlink or not ours is refused. After a no errno is ENOENT where
// there is none.
[[nodiscard]] Support open_private_folder(const std::string& path, bool make, Descriptor& folder);

}  // namespace tenon
