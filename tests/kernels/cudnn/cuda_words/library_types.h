// cudnn_graph.h asks for it and takes one type from it.
#pragma once

enum libraryPropertyType { kMajorVersion, kMinorVersion, kPatchLevel };
