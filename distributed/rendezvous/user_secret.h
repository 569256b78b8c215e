// Random bytes that the processes of one user on one host have in common and others do not know: by
// them ranks of one host know each other without having been told anything.
#pragma once

#include <string>

#include "distributed/rendezvous/launch_place.h"

namespace tenon::distributed {

// The folders in which the secret may lie, by the variables that say so.
struct SecretFolders {
  std::string runtime;  // XDG_RUNTIME_DIR: taken as it is, and only where it is this user's
  std::string cache;    // of Tenon, made where it is absent; empty: nobody knows the user's home
};
SecretFolders secret_folders();

// Whichever process asks first makes it: a file for its owner alone in the first folder that is the
// user's own. UserError, with what to give instead, where there can be none.
Digest user_secret(const SecretFolders& folders);

// With a token that only this user's processes on this host can know, where nobody gave one.
LaunchPlace with_user_secret(LaunchPlace place, const SecretFolders& folders);

}  // namespace tenon::distributed
